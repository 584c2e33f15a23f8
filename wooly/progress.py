"""Two lines on standard error: where the script runs, and what it used.

May live here: these lines. May not: anything on standard output, which belongs to the script.
"""

from __future__ import annotations

import contextlib
import sys
import time

from bus_schemas.session import SessionClosed, SessionOpened
from wooly.errors import ConfigError
from wooly.rest import Credentials, open_url

__all__ = ["checked", "opened", "closed", "opened_text", "closed_text", "credits_text"]

_MICRO = 1_000_000
_BILLING_S = 2.0


def credits_text(micro: int) -> str:
    """Micro-credits as credits, without trailing zeros: ``1.5``."""
    whole, part = divmod(abs(micro), _MICRO)
    text = f"{whole}.{part:06d}".rstrip("0").rstrip(".")
    return f"-{text}" if micro < 0 else text


def opened_text(info: SessionOpened, tenant: str) -> str:
    """The node, the GPUs, and the tenant that pays."""
    node = info.node
    if node is None:
        return f"wooly: session {info.session}, tenant {tenant}"
    index = info.gpus[0] if info.gpus else 0
    name = next((device.name for device in node.devices if device.index == index), "?")
    return f"wooly: node {node.name}, GPU {index} ({name}), tenant {tenant}"


def closed_text(totals: SessionClosed, seconds: float, credits: str = "") -> str:
    """What the session used. ``credits``: what billing says of it, when it says something."""
    core_s = totals.core_ns / 1e9
    cores = f"{core_s:.1f} core-seconds" if core_s >= 1 else f"{core_s * 1e3:.1f} core-milliseconds"
    gib_s = totals.byte_ms / 1e3 / (1 << 30)
    return f"wooly: {seconds:.1f} s, {totals.launches} launches, {cores}, {gib_s:.3g} GiB-seconds{'; ' + credits if credits else ''}"


def _credits(billing_url: str, task: str, credentials: Credentials) -> str:
    """What billing has of a task so far; empty when it does not answer at once or does not know the task."""
    if not (billing_url and task):
        return ""
    import json

    try:
        with open_url(f"{billing_url.rstrip('/')}/api/v1/billing/credits?by=task", credentials, timeout_s=_BILLING_S) as answer:
            items = json.loads(answer.read())["items"]
        line = next(item for item in items if item["key"] == task)
        return f"credits: {line['core_credits']} core, {line['vram_credits']} VRAM"
    except (OSError, ValueError, KeyError, TypeError, StopIteration, ConfigError):
        return ""  # the bill can be asked for later; the end of a script must not fail for it


def _say(line: str) -> None:
    # Standard error may be closed, as under a daemon: then the line is dropped.
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(line + "\n")
        sys.stderr.flush()


def opened(info: SessionOpened, tenant: str) -> float:
    """Say where the script runs; returns the time for ``closed``."""
    _say(opened_text(info, tenant))
    return time.monotonic()


def closed(
    totals: SessionClosed | None, opened_at_s: float, billing_url: str = "", task: str = "", credentials: Credentials | None = None
) -> None:
    """Say what it used; ``totals`` None: the node did not say."""
    if totals is None:
        _say("wooly: the node did not say what the session used; `wooly credits` shows the bill")
    else:
        _say(closed_text(totals, time.monotonic() - opened_at_s, _credits(billing_url, task, credentials or Credentials())))


def checked(summary: str) -> None:
    """Say how many operations WOOLY_CHECK compared."""
    _say(f"wooly: WOOLY_CHECK=cpu: {summary}")
