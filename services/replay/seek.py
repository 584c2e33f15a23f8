"""Where in the journal stream a time begins: by bisection, so that the story of a short task does not need a week of journals."""

from __future__ import annotations

import base64
from typing import Any, Final

from bus_schemas.journal import decode_part
from bus_schemas.subjects import JOURNAL_STREAM
from services.kit.bus import Bus
from services.kit.errors import BusRefused

__all__ = ["start_of"]

_NO_MESSAGE: Final = 10037
_NO_STREAM: Final = 10059
"""JetStream's err_codes."""


async def start_of(bus: Bus, subject: str, at_ns: int) -> int:
    """The position from which on every lane on ``subject`` (wildcards allowed) can be run up to Unix time ``at_ns`` and further: where the
    segment that holds it begins. For services: it asks JetStream itself. Raises BusUnavailable, msgspec.DecodeError."""
    try:
        state: dict[str, Any] = (await bus.js_api(f"STREAM.INFO.{JOURNAL_STREAM}", {"subjects_filter": subject}))["state"]
    except BusRefused as refused:
        if refused.code == _NO_STREAM:
            return 1
        raise
    first, last = max(1, int(state["first_seq"])), int(state["last_seq"])
    starts = [await _lane_start(bus, lane, at_ns, first, last) for lane in state.get("subjects") or ()]
    return min(starts, default=1)


async def _lane_start(bus: Bus, lane: str, at_ns: int, first: int, last: int) -> int:
    """Segments are numbered by the Unix time (ms) of their beginning, and grow along the stream."""
    low, high, segment = first, last + 1, 0
    while low < high:
        middle = (low + high) // 2
        found = await _part(bus, lane, middle)
        if found is None or found[1] * 10**6 > at_ns:
            high = middle
        else:
            low, segment = found[0] + 1, found[1]
    low, high, start = first, last + 1, first
    while low < high:
        middle = (low + high) // 2
        found = await _part(bus, lane, middle)
        if found is not None and found[1] < segment:
            low = found[0] + 1
        else:
            high, start = middle, start if found is None else found[0]
    return start


async def _part(bus: Bus, lane: str, position: int) -> tuple[int, int] | None:
    """Position and segment of the first part of the lane at ``position`` or later."""
    try:
        answer = await bus.js_api(f"STREAM.MSG.GET.{JOURNAL_STREAM}", {"seq": position, "next_by_subj": lane})
    except BusRefused as refused:
        if refused.code == _NO_MESSAGE:
            return None
        raise
    message = answer["message"]
    return int(message["seq"]), decode_part(base64.b64decode(message["data"])).segment
