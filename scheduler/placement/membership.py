"""Membership of nodes in groups: those that a node names when it registers, and those that a user assigned. Changed by ``view`` only."""

from __future__ import annotations

from dataclasses import dataclass, field

from bus_schemas.events import GroupChanged
from scheduler.placement.records import GroupView

__all__ = ["Membership"]

_NONE: frozenset[str] = frozenset()


@dataclass(slots=True)
class Membership:
    """``made``: groups that a person made, by id. ``declared``: what each node that joined says of itself."""

    made: dict[str, GroupView] = field(default_factory=dict)
    declared: dict[str, frozenset[str]] = field(default_factory=dict)
    _put: dict[str, set[str]] = field(default_factory=dict)
    """Groups made by a person, by node; of nodes that have not joined too."""
    _members: dict[str, frozenset[str]] | None = field(default=None, compare=False)

    def of(self, node: str) -> frozenset[str]:
        return self.declared.get(node, _NONE) | self._put.get(node, _NONE)

    def members(self, group: str) -> frozenset[str]:
        """The nodes of a group that have joined."""
        return self._by_group().get(group, _NONE)

    def known(self) -> list[str]:
        """Every group there is, by id: those that nodes name, and those that were made, also without members."""
        return sorted(self._by_group())

    def declare(self, node: str, groups: tuple[str, ...]) -> None:
        self.declared[node] = frozenset(groups)
        self._members = None

    def change(self, event: GroupChanged, position: int) -> list[str]:
        """Take a group as it is from now on; the nodes whose groups may have changed."""
        before = self.made[event.group].nodes if event.group in self.made else _NONE
        after = _NONE if event.deleted else frozenset(event.nodes)
        for node in before - after:
            self._put[node].discard(event.group)
            if not self._put[node]:
                del self._put[node]
        for node in after:
            self._put.setdefault(node, set()).add(event.group)
        if event.deleted:
            self.made.pop(event.group, None)
        else:
            self.made[event.group] = GroupView(event.group, event.title, after, event.at_ns, position)
        self._members = None
        return sorted(before | after)

    def _by_group(self) -> dict[str, frozenset[str]]:
        if self._members is None:
            found: dict[str, set[str]] = {group: set() for group in self.made}
            for node in self.declared:
                for group in self.of(node):
                    found.setdefault(group, set()).add(node)
            self._members = {group: frozenset(nodes) for group, nodes in found.items()}
        return self._members
