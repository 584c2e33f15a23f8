"""Lines on standard error: why the script waits for a place, where it runs and what it used; and the debug output of ``WOOLY_DEBUG=1``, a
line for the session, for every batch and for every wait.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from bus_schemas.quotas import QUOTAS, Excess
from bus_schemas.session import SessionClosed, SessionOpened
from bus_schemas.texts import printable
from wooly.errors import ConfigError
from wooly.link import Flush, Link, LinkWrapper, ReadBytes, Ticket
from wooly.rest import UNANSWERED, Credentials, open_url

if TYPE_CHECKING:
    from wooly.api.answers import Waiting

_BILLING_S = 2.0


def waiting_text(waiting: Waiting | None) -> str:
    """Position in the queue, why the task waits and what would let it in, from the controller's answer (None: there is none now)."""
    if waiting is None:
        return "the controller does not say why"
    out = f"number {waiting.place} of {waiting.queue_length}"
    if not waiting.remedies:
        return f"{out}; there is room, and it is placed when its turn comes"
    reasons = ", ".join(reason.text or reason.reason for reason in waiting.refused)
    return f"{out}; {reasons}; would let it in: {', or '.join(remedy.text for remedy in waiting.remedies)}"


class WaitingLine:
    """A ``with`` block in which a script waits for its place. On a terminal one line is rewritten, with the time waited; elsewhere, as in a
    log file, a line is added only when something changes."""

    def __init__(self) -> None:
        self._text: str | None = None
        self._live = _is_terminal()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if self._live and self._text is not None:
            _write("\r\x1b[K")

    def show(self, waiting: Waiting | None, seconds: float) -> None:
        """The state of the wait after ``seconds``; ``waiting``: the controller's answer, None: it gives none."""
        text = printable(waiting_text(waiting))
        if self._live:
            line = f"wooly: waiting for a place for {seconds:.0f} s: {text}"
            _write("\r\x1b[K" + line[: shutil.get_terminal_size().columns - 1])
        elif text != self._text:
            say(f"wooly: waiting for a place: {text}")
        self._text = text

    def left(self, task: str, *, withdrawn: bool) -> None:
        """The script does not wait any more."""
        if self._live:
            _write("\r\x1b[K")
        self._text = None
        if withdrawn:
            say(f"wooly: task {task} is withdrawn from the queue")
        else:
            say(f"wooly: task {task} stays in the queue; `wooly tasks cancel {task}` withdraws it")


@contextlib.contextmanager
def slow(what: str, after_s: float = 2.0) -> Iterator[None]:
    """Announce a block that takes longer than ``after_s`` seconds, in one line: on a terminal, and under WOOLY_DEBUG=1 everywhere."""
    if not _is_terminal() and os.environ.get("WOOLY_DEBUG", "").strip() in ("", "0"):
        yield
        return
    timer = threading.Timer(after_s, say, (f"wooly: {what} ...",))
    timer.daemon = True
    if after_s > 0:
        timer.start()
    else:
        timer.function(*timer.args)
    try:
        yield
    finally:
        timer.cancel()


def delayed(excess: Excess, tenant: str) -> None:
    """Announce that the node delays the session's batches."""
    text = excess.sentence(f"tenant {tenant}") if excess.quota in QUOTAS else f"quota {excess.quota} is used up"
    say(f"wooly: the node delays this script: {printable(text)}")


def _is_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):
        return False


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
    if totals.compile_ns >= 50_000_000:
        cores += f", {totals.compile_ns / 1e9:.1f} s of compiling"
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
    except (*UNANSWERED, KeyError, TypeError, StopIteration, ConfigError):
        return ""  # the bill can be asked for later; the end of a script must not fail for it


def say(line: str) -> None:
    """Write a line to standard error."""
    _write(line + "\n")


def _write(text: str) -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):  # standard error may be closed, as under a daemon
        sys.stderr.write(text)
        sys.stderr.flush()


def opened(info: SessionOpened, tenant: str) -> float:
    """Say where the script runs; returns the time for ``closed``."""
    say(printable(opened_text(info, tenant)))
    return time.monotonic()


def closed(
    totals: SessionClosed | None, opened_at_s: float, billing_url: str = "", task: str = "", credentials: Credentials | None = None
) -> None:
    """Say what it used; ``totals`` None: the node did not say."""
    if totals is None:
        say("wooly: the node did not say what the session used; `wooly credits` shows the bill")
    else:
        say(closed_text(totals, time.monotonic() - opened_at_s, _credits(billing_url, task, credentials or Credentials())))


def checked(summary: str) -> None:
    """Say how many operations WOOLY_CHECK compared."""
    say(f"wooly: WOOLY_CHECK=cpu: {summary}")


_log: Final = logging.getLogger("wooly")


def switch_on() -> None:
    """Send the log to standard error, apart from whatever logging the script sets up."""
    if not _log.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("wooly %(relativeCreated)d ms: %(message)s"))
        _log.addHandler(handler)
    _log.setLevel(logging.DEBUG)
    _log.propagate = False


class VerboseLink(LinkWrapper):
    """A link that says what passes through it."""

    def __init__(self, link: Link) -> None:
        super().__init__(link)
        info = link.info
        _log.debug("session %s open, quota %d bytes, lease %d ms, limits %s", info.session, info.quota_bytes, info.lease_ms, info.limits)

    def submit(self, flush: Flush) -> Ticket:
        start, before = time.perf_counter(), self._link.wire_bytes
        ticket = self._link.submit(flush)
        sent_bytes, sent_ms = self._link.wire_bytes - before, (time.perf_counter() - start) * 1e3
        uploaded_bytes = sum(len(data) for _, data in flush.uploads)
        _log.debug(
            f"batch {ticket.seq}: {flush.n_ops} operations, program {bytes(flush.program[:4]).hex() or 'none'}, "
            f"{len(flush.scalars)} scalars, {len(flush.uploads)} uploads of {uploaded_bytes} bytes, {len(flush.allocs)} allocations, "
            f"{len(flush.frees)} frees, {len(flush.reads)} reads; {sent_bytes} bytes sent in {sent_ms:.1f} ms"
        )
        return ticket

    def wait(self, ticket: Ticket) -> list[ReadBytes]:
        start = time.perf_counter()
        answers = self._link.wait(ticket)
        _log.debug("batch %d: waited %.1f ms for %d answers", ticket.seq, (time.perf_counter() - start) * 1e3, len(answers))
        return answers

    def close(self) -> None:
        self._link.close()
        _log.debug("session %s closed", self._link.info.session)
