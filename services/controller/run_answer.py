"""What a run looks like in an answer."""

from __future__ import annotations

from urllib.parse import urlsplit

from bus_schemas.runs import RunState
from services.controller.answers import Json, rfc3339

__all__ = ["run_answer"]


def run_answer(state: RunState) -> Json:
    """``exit_code`` and ``signal`` null: not known, or none. ``webhook``: without its path, which may hold a secret."""
    return {
        "task": state.task,
        "script": state.name,
        "state": state.state,
        "runner": state.runner or None,
        "wanted_runner": state.wanted or None,
        "wall_limit_s": state.wall_s,
        "submitted_at": rfc3339(state.submitted_ns),
        "started_at": rfc3339(state.taken_ns) if state.taken_ns else None,
        "ended_at": rfc3339(state.ended_ns) if state.ended_ns else None,
        "exit_code": state.exit_code,
        "signal": state.signal or None,
        "reason": state.reason,
        "webhook": _origin(state.webhook),
        "webhook_result": state.notified or None,
    }


def _origin(url: str) -> str | None:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}" if url else None
