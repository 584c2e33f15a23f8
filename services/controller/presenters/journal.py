"""What callers see of a task's journal: names for sessions, and of other tenants' work no name, priority or core time. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final

from scheduler.placement import ClusterView
from services.controller.presenters import Json, Shown, node_name

HIDDEN: Final = "another tenant's work"


@dataclass(frozen=True, slots=True)
class _Owner:
    """The owner of a session; empty strings where it is unknown."""

    task: str = ""
    title: str = ""
    tenant: str = ""


def waits_answer(view: ClusterView, tenant: str, document: Json, shown: Shown) -> Json:
    """The waits of a task of ``tenant`` from ``services.replay why``, with names. ``shown``: whether the caller may know of a
    tenant's tasks."""
    own = {one["session"] for one in document["sessions"]}
    named = _Names(view, own, tenant, {line["session"] for line in document["by_other"]} | _moved_for(document), shown)
    return {
        **{key: document[key] for key in _SUMS},
        "sessions": [{"session": session, **named.text_of(session)} for session in sorted(own)],
        "by_other": _merged({**line, **named.of(line)} for line in document["by_other"]),
        "longest": [{**batch, "stretches": [{**part, **named.of(part)} for part in batch["stretches"]]} for batch in document["longest"]],
        "memory": _memory(document["memory"], named),
    }


_SUMS: Final = ("asked", "complete", "batches", "finished", "latency_ns", "waited_ns", "waited", "preempted", "by_rule", "programs")


def timeline_answer(view: ClusterView, document: Json) -> Json:
    """The timeline, with the names of nodes."""
    timeline = document["timeline"]
    lanes = [{**lane, "node_name": node_name(view, lane["node"])} for lane in timeline["lanes"]]
    return {"task": document["asked"], "complete": document["complete"], **timeline, "lanes": lanes}


def _moved_for(document: Json) -> set[str]:
    memory = document["memory"]
    return {name for wait in memory["waits"] for name in wait["swapped_out"]} | {move["for_session"] for move in memory["moves"]}


class _Names:
    """Names of sessions, as far as the caller may know of them."""

    def __init__(self, view: ClusterView, own: Collection[str], tenant: str, others: Collection[str], shown: Shown) -> None:
        self._owners = _owners(view, {*own, *others} - {""})
        self._own = own
        self._tenant = tenant
        self._shown = shown

    def may_know(self, session: str) -> bool:
        """Sessions without a known owner are shown to callers who may know of all tenants."""
        owner = self._owners.get(session, _Owner())
        return session in self._own or not session or self._shown(owner.tenant)

    def text_of(self, session: str) -> Json:
        owner = self._owners.get(session, _Owner(tenant=self._tenant if session in self._own else ""))
        about = owner.task or session
        return {
            "task": owner.task,
            "title": owner.title,
            "tenant": owner.tenant,
            "text": f"{about} ({owner.title})" if owner.title else about,
        }

    def of(self, line: Json) -> Json:
        """What replaces the names of a line about another session."""
        if self.may_know(line["session"]):
            return self.text_of(line["session"])
        return {"session": "", "task": "", "title": "", "tenant": "", "text": HIDDEN, "priority": -1, "core_ns": 0}


def _owners(view: ClusterView, sessions: Collection[str]) -> dict[str, _Owner]:
    """From the open sessions, and from the tasks that had one of them."""
    found: dict[str, _Owner] = {}
    for name in sessions:
        known = view.sessions.get(name)
        if known is not None:
            found[name] = _Owner(known.fact.task, known.fact.title, known.fact.tenant)
    missing = {name for name in sessions if name not in found}
    if missing:
        for task in view.tasks.values():
            for name in missing.intersection(task.past_sessions):
                found[name] = _Owner(task.submitted.task, task.submitted.title, task.submitted.tenant)
    return found


def _merged(lines: Iterable[Json]) -> list[Json]:
    """Lines of one hidden priority each become one line."""
    out: list[Json] = []
    hidden: dict[str, Any] | None = None
    for line in lines:
        if line["text"] != HIDDEN or line["session"]:
            out.append(line)
        elif hidden is None:
            hidden = {**line, "rules": dict(line["rules"])}
            out.append(hidden)
        else:
            hidden["ns"] += line["ns"]
            hidden["times"] += line["times"]
            for rule, ns in line["rules"].items():
                hidden["rules"][rule] = hidden["rules"].get(rule, 0) + ns
    return sorted(out, key=lambda line: -int(line["ns"]))


def _memory(memory: Json, named: _Names) -> Json:
    waits = []
    for wait in memory["waits"]:
        given: dict[str, int] = {}
        for session, nbytes in wait["swapped_out"].items():
            key = session if named.may_know(session) else HIDDEN
            given[key] = given.get(key, 0) + nbytes
        waits.append({**wait, "swapped_out": given})
    moves = [{**move, "for_session": move["for_session"] if named.may_know(move["for_session"]) else HIDDEN} for move in memory["moves"]]
    return {**memory, "waits": waits, "moves": moves}
