"""Asking the controller for a place: one REST call, and polling while the task waits for room.

May live here: submitting, waiting, withdrawing. May not: what the wait looks like on a terminal (progress), sessions.
"""

from __future__ import annotations

import json
import os
import threading
import time
import urllib.error
from dataclasses import dataclass
from typing import Any, Final

from wooly import outcome, progress
from wooly.config import Config
from wooly.errors import PlacementError, TaskCancelledError
from wooly.rest import Credentials, open_url

__all__ = ["Place", "ask", "place_for"]

_TIMEOUT_S: Final = 8.0
_POLL_S: Final = 0.5
_EXPLAIN_S: Final = 1.0
_EXPLAIN_MAX_S: Final = 5.0
_AWAY_MAX_S: Final = 60.0
"""How long a task that waits outlives a controller that does not answer."""
_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Place:
    """Where the task goes, and what its sessions ask the node for. ``vram_quota_bytes`` 0: as much as the device has."""

    task: str
    node: str
    gpus: tuple[int, ...]
    priority: int
    vram_quota_bytes: int
    exclusive: bool
    swap: bool
    weight: int
    sla_ms_p99: int
    pace_percent: int


_places: dict[tuple[int, Config], tuple[Place, set[int]]] = {}
_lock: Final = threading.Lock()


def place_for(config: Config, title: str, device: int) -> Place:
    """The place of this process's task, for its device ``device``: one task serves all devices of a script, each once.

    Raises what ``ask`` does."""
    key = (os.getpid(), config)
    with _lock:
        known = _places.get(key)
        if known is None or device in known[1]:  # the device's session ended, and the task with it
            known = _places[key] = (ask(config, title), set())
        known[1].add(device)
        return known[0]


def ask(config: Config, title: str) -> Place:
    """Submit a task, or take up the one that WOOLY_TASK_ID names, wait for room if it queues, and return its place.

    Raises PlacementError with the controller's reason, TaskCancelledError when the task is cancelled while it waits.
    """
    tasks = _Tasks(config.controller_url.rstrip("/") + "/api/v1/tasks", Credentials.of(config))
    if config.task_id:
        task = tasks.get(config.task_id)
    else:
        task = tasks.submit(_body(config, title))
    if task.get("node") is None and task.get("state") == "queued":
        task = _wait(tasks, task, own=not config.task_id)
    return _place(task)


def _body(config: Config, title: str) -> dict[str, Any]:
    said = {"priority": config.prio, "required_vram_mb": config.required_vram_mb}
    return {
        **({"tenant": config.tenant} if "WOOLY_TENANT" in config.origin or not config.api_key else {}),  # else the key says it
        **{key: value for key, value in said.items() if value is not None},  # else the controller decides
        "gpu_count": config.device_count,
        "gpu_mode": config.gpu_mode,
        "groups": list(config.controller_node_group_ids),
        "noswap": not config.swap_from_vram,
        "title": title,
        "queue": config.queue,
        "weight": config.weight,
        "sla_ms_p99": config.sla_ms_p99,
        "pace_percent": config.pace_percent,
    }


def _place(task: dict[str, Any]) -> Place:
    """Raises PlacementError when the task is over."""
    name, state, reason = task["id"], task.get("state"), task.get("reason")
    if state == "cancelled":
        raise TaskCancelledError(f"task {name} was {reason or 'cancelled'}")
    if state not in ("queued", "started") or task.get("node") is None:
        raise PlacementError(f"task {name} is {state}{f': {reason}' if reason else ''}; submit a new one")
    return Place(
        task=str(name),
        node=str(task["node"]),
        gpus=tuple(task.get("gpus") or (0,)),
        priority=int(task["priority"]),
        vram_quota_bytes=0 if task["vram_grows"] else int(task["required_vram_mb"]) * _MIB,
        exclusive=task["gpu_mode"] == "Exclusive",
        swap=not task["noswap"],
        weight=int(task["weight"]),
        sla_ms_p99=int(task["sla_ms_p99"]),
        pace_percent=int(task["pace_percent"]),
    )


def _wait(tasks: _Tasks, task: dict[str, Any], *, own: bool) -> dict[str, Any]:
    """Poll until the task is placed or over, and say why it waits. ``own``: this script submitted it, so leaving withdraws it."""
    name = str(task["id"])
    began_s = heard_s = time.monotonic()
    explain_s, pause_s = began_s, _EXPLAIN_S
    outcome.watch()
    with progress.WaitingLine() as line:

        def leave(*_: object) -> None:
            line.left(name, withdrawn=own and tasks.withdraw(name))

        stay = outcome.on_kill(leave)
        try:
            while task.get("node") is None and task.get("state") == "queued":
                now_s = time.monotonic()
                try:
                    if now_s >= explain_s:
                        explain_s, pause_s = now_s + pause_s, min(pause_s * 1.5, _EXPLAIN_MAX_S)
                        line.show(tasks.why_waiting(name), now_s - began_s)
                    time.sleep(_POLL_S)
                    task = tasks.get(name)
                    heard_s = time.monotonic()
                except _Unreachable:
                    if time.monotonic() - heard_s > _AWAY_MAX_S:
                        raise
                    line.show(None, time.monotonic() - began_s)
        except BaseException:  # Ctrl-C above all: the place in the queue is given back
            leave()
            raise
        finally:
            stay()
    return task


class _Unreachable(PlacementError):
    """The controller does not answer now; it may later."""


class _Tasks:
    """The tasks of one controller, at ``url``, as REST shows them. Each method raises PlacementError."""

    def __init__(self, url: str, credentials: Credentials) -> None:
        self._url = url
        self._credentials = credentials

    def submit(self, body: dict[str, Any]) -> dict[str, Any]:
        return self._task(self._url, "refused the task", json.dumps(body).encode())

    def get(self, name: str) -> dict[str, Any]:
        return self._task(f"{self._url}/{name}", "does not show the task")

    def why_waiting(self, name: str) -> dict[str, Any] | None:
        """Place, reasons and remedies; None once it does not wait any more."""
        try:
            answer = self._call(f"{self._url}/{name}/waiting", "does not show the task")
        except _Unreachable:
            raise
        except PlacementError:
            return None
        return answer if isinstance(answer, dict) else None

    def withdraw(self, name: str) -> bool:
        """Cancel the task; whether that worked."""
        try:
            self._call(f"{self._url}/{name}/cancel", "does not cancel the task", b"")
        except PlacementError:
            return False
        return True

    def _task(self, url: str, failing: str, body: bytes | None = None) -> dict[str, Any]:
        task = self._call(url, failing, body)
        if not isinstance(task, dict) or "id" not in task:
            raise PlacementError(f"{url} does not answer like a controller; check CONTROLLER_URL")
        return task

    def _call(self, url: str, failing: str, body: bytes | None = None) -> Any:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        method = "GET" if body is None else "POST"
        try:
            with open_url(url, self._credentials, method=method, data=body, headers=headers, timeout_s=_TIMEOUT_S) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            kind = _Unreachable if error.code >= 500 else PlacementError
            raise kind(f"the controller {failing}: {_detail(error)}") from None
        except (OSError, ValueError) as error:
            raise _Unreachable(f"no controller answers at {url} ({error}); check CONTROLLER_URL") from None


def _detail(error: urllib.error.HTTPError) -> str:
    """The sentence for the user in a problem+json answer, or the status line, and what to do."""
    advice = "; `wooly login` stores a key that is good" if error.code == 401 else ""
    try:
        problem = json.loads(error.read())
        if problem.get("type") == "urn:wooly:problem:no-placement":
            advice = "; WOOLY_QUEUE=1, or `wooly run --queue`, waits for a place"
        return str(problem.get("detail") or problem.get("title") or error.reason) + advice
    except (ValueError, OSError, AttributeError):
        return f"HTTP {error.code} {error.reason}{advice}"
