"""Changes of a page for its browser: parts by their id in the document, the order of lists, new points of charts. Pure.

Two renderings of one page differ by a patch; a page that applies it looks like the second. static/live.js is the other end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

__all__ = ["Patch", "difference", "encode_patch"]

Point = tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Patch:
    """``html``: id in the document to the element's markup, itself with that id. ``lists``: id of a list (a table's body) to the ids of its
    children in order; the markup of each must be in ``html``. ``points``: chart id to its last points: seconds, then one value a series."""

    html: Mapping[str, str] = field(default_factory=dict)
    lists: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    points: Mapping[str, tuple[Point, ...]] = field(default_factory=dict)


def difference(before: Patch | None, after: Patch) -> Patch | None:
    """What turns ``before`` into ``after``; everything when there was nothing, None when nothing changed."""
    if before is None:
        return after
    found = Patch(
        {name: text for name, text in after.html.items() if before.html.get(name) != text},
        {name: order for name, order in after.lists.items() if before.lists.get(name) != order},
        {name: points for name, points in after.points.items() if before.points.get(name) != points},
    )
    return found if found.html or found.lists or found.points else None


def encode_patch(patch: Patch, whole: bool = False) -> bytes:
    """JSON in one line. ``whole``: this is everything, not a change."""
    body: dict[str, Any] = {}
    if patch.html or patch.lists:
        body["html"] = patch.html
    if patch.lists:
        body["lists"] = patch.lists
    if patch.points:
        body["points"] = patch.points
    if whole:
        body["all"] = True
    return msgspec.json.encode(body)
