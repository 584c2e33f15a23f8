"""Asking the controller for a place: one REST call, and polling while the task is queued."""

from __future__ import annotations

import json
import os
import threading
import time
import urllib.error
from dataclasses import dataclass
from typing import Any, Final

from wooly.config import Config
from wooly.errors import ConfigError, PlacementError
from wooly.rest import Credentials, open_url

__all__ = ["Place", "ask", "place_for"]

_TIMEOUT_S: Final = 8.0
_POLL_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class Place:
    """Where the task goes."""

    task: str
    node: str
    gpus: tuple[int, ...]


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
    """Submit a task and return its place. Raises ConfigError without REQUIRED_VRAM, PlacementError with the controller's reason."""
    if config.required_vram_mb is None:
        raise ConfigError("REQUIRED_VRAM is not set: with CONTROLLER_URL a task must say how many MB of device memory it needs")
    body = {
        **({"tenant": config.tenant} if "WOOLY_TENANT" in config.origin or not config.api_key else {}),  # else the key says it
        "priority": config.prio,
        "required_vram_mb": config.required_vram_mb,
        "gpu_count": config.device_count,
        "gpu_mode": config.gpu_mode,
        "groups": list(config.controller_node_group_ids),
        "noswap": not config.swap_from_vram,
        "title": title,
        "weight": config.weight,
        "sla_ms_p99": config.sla_ms_p99,
        "pace_percent": config.pace_percent,
    }
    base = config.controller_url.rstrip("/") + "/api/v1/tasks"
    credentials = Credentials.of(config)
    task = _call(base, json.dumps(body).encode(), credentials)
    while task.get("node") is None:
        if task.get("state") == "failed":
            raise PlacementError(f"the controller has no place for this task: {task.get('reason') or 'no reason given'}")
        time.sleep(_POLL_S)
        task = _call(f"{base}/{task['id']}", None, credentials)
    return Place(str(task["id"]), str(task["node"]), tuple(task.get("gpus") or (0,)))


def _call(url: str, body: bytes | None, credentials: Credentials) -> dict[str, Any]:
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    method = "GET" if body is None else "POST"
    try:
        with open_url(url, credentials, method=method, data=body, headers=headers, timeout_s=_TIMEOUT_S) as answer:
            task = json.loads(answer.read())
    except urllib.error.HTTPError as error:
        advice = "; `wooly login` stores a key that is good" if error.code == 401 else ""
        raise PlacementError(f"the controller refused the task: {_detail(error)}{advice}") from None
    except (OSError, ValueError) as error:
        raise PlacementError(f"no controller answers at {url} ({error}); check CONTROLLER_URL") from None
    if not isinstance(task, dict) or "id" not in task:
        raise PlacementError(f"{url} does not answer like a controller; check CONTROLLER_URL")
    return task


def _detail(error: urllib.error.HTTPError) -> str:
    """The sentence for the user in a problem+json answer, or the status line."""
    try:
        problem = json.loads(error.read())
        parts = [str(problem.get("detail") or problem.get("title") or error.reason)]
        parts += [f"{entry.get('field')}: {entry.get('message')}" for entry in problem.get("errors", ())]
        return "; ".join(parts)
    except (ValueError, OSError, AttributeError):
        return f"HTTP {error.code} {error.reason}"
