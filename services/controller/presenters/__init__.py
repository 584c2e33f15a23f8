"""One presenter for each kind of entity: what REST answers and pages show of it, from the view of the log and what was measured. Pure: no
clock; the time comes with the question. REST answers have their keys in one order and lists by id: equal views, equal bytes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from scheduler.placement import ClusterView

__all__ = ["Json", "Shown", "everyone", "node_name", "rfc3339"]

Json = dict[str, Any]
Shown = Callable[[str], bool]
"""Whether the caller may know of a tenant's tasks and sessions; ``shown("")``: of those of all tenants."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def rfc3339(unix_ns: int) -> str:
    """A Unix time in RFC 3339 with milliseconds, UTC."""
    moment = _EPOCH + timedelta(milliseconds=unix_ns // 1_000_000)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def everyone(tenant: str) -> bool:
    """The ``Shown`` of a caller who may know of all tenants."""
    return True


def node_name(view: ClusterView, node: str) -> str:
    """The display name of a node; its id when it is unknown."""
    known = view.nodes.get(node)
    return known.registered.name if known is not None else node
