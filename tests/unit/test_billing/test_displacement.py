"""The bill of a task that is displaced: what it was charged is not charged again where it is repeated, and nothing else is free."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from billing.errors import CorruptSnapshotError
from billing.projection import BillingView, verify
from bus_schemas.events import (
    DeviceFact,
    Event,
    KeyIssued,
    NodeLost,
    NodeRecovered,
    NodeRegistered,
    SessionClosedFact,
    SessionOpenedFact,
    TaskDisplaced,
    TaskPlaced,
    TaskStayed,
    TaskSubmitted,
    UsageRecorded,
)

SECOND = 10**9
START = 1_700_000_000 * SECOND
AT = START + 100 * SECOND
"""When the task is displaced."""
HOUR = START + 3_600 * SECOND
GIB = 1 << 30
NODES = ("a", "b", "c")
TASKS = [TaskSubmitted(START, task, tenant, 2, GIB) for task, tenant in (("t", "beta"), ("u", "beta"), ("other", "acme"))]
DEVICES = [NodeRegistered(START, name, name, "", 1, (DeviceFact(0, "d", "host", 8, GIB),)) for name in NODES]
KEYS = [KeyIssued(START, f"k{name}", "", "", "node", "hash", node=name) for name in NODES] + [
    KeyIssued(START, name, tenant, "", "member", "hash") for name, tenant in (("kb", "beta"), ("kc", "acme"))
]


def placed(node: str, task: str = "t") -> TaskPlaced:
    return TaskPlaced(START, task, node, (0,), (), (), 0)


def opened(session: str, node: str, replaces: str = "", task: str = "t", tenant: str = "beta", **more: Any) -> SessionOpenedFact:
    terms = {"at_ns": START, "gpu": 0, "priority": 2, "quota_bytes": GIB, "title": "model"} | more
    return SessionOpenedFact(session=session, tenant=tenant, task=task, node=node, replaces=replaces, **terms)


def closed(session: str, node: str, reason: str = "displaced") -> SessionClosedFact:
    return SessionClosedFact(START, session, node, reason, 0, 0, 0, 0, "")


def died(session: str, node: str) -> SessionClosedFact:
    """Its node started anew."""
    return msgspec.structs.replace(closed(session, node, "node_restarted"), failed=True)


def lost(node: str, task: str = "t") -> TaskDisplaced:
    return TaskDisplaced(AT, task, node, True)


def forgot(session: str, node: str) -> SessionClosedFact:
    """Its node had lost its memory, and its client continues elsewhere."""
    return msgspec.structs.replace(closed(session, node), failed=True)


def moved(node: str, task: str = "t") -> TaskDisplaced:
    return TaskDisplaced(AT, task, node, False)


def used(session: str, node: str, seconds: int, *, repeats: int = 0, **more: Any) -> UsageRecorded:
    """So many core-seconds, of which the client says that ``repeats`` repeat the work of another node. ``fold`` gives it its serial."""
    terms = {"epoch": 1, "gpu": 0, "tenant": "beta", "task": "t", "priority": 2, "from_ns": START, "byte_ms": 0, "instructions": 0} | more
    terms = {"launches": 0, "displaced_ns": repeats * SECOND} | terms
    terms = {"to_ns": START + 60 * SECOND} | terms
    return UsageRecorded(node=node, serial=0, session=session, core_ns=seconds * SECOND, **terms)


def fold(*events: Event, keys: bool = True) -> BillingView:
    view, serials = BillingView(), dict.fromkeys(NODES, 0)
    for position, event in enumerate([*(KEYS if keys else []), *DEVICES, *TASKS, placed("a"), *events], start=1):
        if isinstance(event, UsageRecorded):
            serials[event.node] += 1
            event = msgspec.structs.replace(event, serial=serials[event.node])
        view.apply(position, [event], START + 60 * SECOND if keys else 0)
    return view


def charged(view: BillingView) -> dict[str, int]:
    """Core-seconds by node."""
    out: dict[str, int] = {}
    for (_, _, _, node, _), row in view.rows.items():
        out[node] = out.get(node, 0) + row.core_ns // SECOND
    return out


BEGUN = [opened("kb-1", "a"), used("kb-1", "a", 10)]
LOST = [*BEGUN, lost("a"), placed("b"), opened("kb-2", "b", "kb-1")]
"""Ten seconds were charged on a lost node."""
MOVED = [*BEGUN, moved("a"), closed("kb-1", "a"), placed("b"), opened("kb-2", "b", "kb-1")]
GOES = [opened("kb-1", "a"), TaskDisplaced(AT, "t", "a", False, "b", (0,)), opened("kb-2", "b", "kb-1")]
"""It runs ahead on the node to which it is moved."""
ANEW = [NodeLost(START, "a", 1, "silent"), NodeRecovered(START, "a", 1), placed("b")]
"""The node was lost before the log had a session of the task there."""
EXECUTOR = [opened("kb-2", "a", "kb-1"), closed("kb-1", "a", "executor_lost")]
"""Another session takes the place of the first, on its node."""
IMAGE = [opened("kb-1", "a"), used("kb-1", "a", 10, image=5)]
"""The client has an image of what took ten seconds."""


@pytest.mark.parametrize("keys", [True, False])
@pytest.mark.parametrize(
    ("events", "charges"),
    [
        pytest.param([*LOST, used("kb-2", "b", 10, repeats=10)], {"a": 10, "b": 0}, id="what was charged is repeated"),
        pytest.param([*LOST, used("kb-2", "b", 14, repeats=12)], {"a": 10, "b": 4}, id="no more than was charged is free"),
        pytest.param([*LOST, used("kb-2", "b", 14, repeats=6)], {"a": 10, "b": 8}, id="no more than is repeated is free"),
        pytest.param([*LOST, used("kb-2", "b", 6, repeats=6), used("kb-2", "b", 6, repeats=6)], {"a": 10, "b": 2}, id="free only once"),
        pytest.param([*LOST, used("kb-2", "b", 6, repeats=4), used("kb-2", "b", 6, repeats=6)], {"a": 10, "b": 8},
                     id="nothing is repeated after something new"),
        pytest.param([*LOST, used("kb-2", "b", 0, byte_ms=5, compile_ns=SECOND), used("kb-2", "b", 6, repeats=6)], {"a": 10, "b": 1},
                     id="memory and compiling are nothing new"),
        pytest.param([*LOST, used("kb-1", "a", 5)], {"a": 10}, id="use after the loss is not charged"),
        pytest.param([*LOST, used("kb-1", "a", 5), closed("kb-1", "a"), used("kb-2", "b", 20, repeats=20)], {"a": 10, "b": 10},
                     id="and gives nothing to repeat"),
        pytest.param([*LOST, lost("a"), used("kb-2", "b", 20, repeats=20)], {"a": 10, "b": 10}, id="a loss that is recorded twice"),
        pytest.param([*LOST, used("kb-2", "b", 10, repeats=10), lost("a"), used("kb-2", "b", 5, repeats=5)], {"a": 10, "b": 5},
                     id="a loss that is recorded again later"),
        pytest.param([*GOES, used("kb-1", "a", 10), used("kb-2", "b", 10, repeats=10), closed("kb-1", "a"), used("kb-2", "b", 3)],
                     {"a": 10, "b": 3}, id="ahead: charged once"),
        pytest.param([*GOES, used("kb-2", "b", 10, repeats=10), used("kb-1", "a", 10), closed("kb-1", "a"), used("kb-2", "b", 3)],
                     {"a": 0, "b": 13}, id="ahead: the log has it first"),
        pytest.param([*GOES, used("kb-2", "b", 4, repeats=4), used("kb-1", "a", 6), used("kb-2", "b", 6, repeats=6), used("kb-1", "a", 4)],
                     {"a": 2, "b": 8}, id="ahead: the log has some of each first"),
        pytest.param([*GOES, used("kb-1", "a", 4), used("kb-2", "b", 13, repeats=10), used("kb-1", "a", 6), closed("kb-1", "a")],
                     {"a": 4, "b": 9}, id="ahead: it runs alone before the log has all of the other one"),
        pytest.param([*GOES, used("kb-1", "a", 5), closed("kb-1", "a"), used("kb-2", "b", 5, repeats=5), used("kb-2", "b", 4, repeats=4)],
                     {"a": 5, "b": 4}, id="ahead: no more than was charged is free"),
        pytest.param([*GOES, used("kb-1", "a", 5), used("kb-2", "b", 3, repeats=3), TaskStayed(AT, "t", "a", "no"), closed("kb-2", "b"),
                      used("kb-1", "a", 5)], {"a": 10, "b": 0}, id="ahead: it stays"),
        pytest.param([*GOES[:2], TaskStayed(AT, "t", "a", "no"), GOES[2], used("kb-2", "b", 3, repeats=3), used("kb-1", "a", 5)],
                     {"a": 2, "b": 3}, id="ahead: it stays, and the log has the session late"),
        pytest.param([*GOES, used("kb-1", "a", 5), NodeLost(START, "b", 1, "silent"), TaskStayed(AT, "t", "a", "no"), used("kb-1", "a", 5),
                      used("kb-2", "b", 9, repeats=9)], {"a": 10, "b": 0}, id="ahead: its node was lost, and reports late"),
        pytest.param([*GOES, used("kb-1", "a", 5), used("kb-2", "b", 5, repeats=5), lost("a"), placed("c"), opened("kb-3", "c", "kb-1"),
                      used("kb-3", "c", 8, repeats=5)], {"a": 5, "b": 0, "c": 3}, id="ahead: the other one's node is lost"),
        pytest.param([*GOES, *(event for number in range(3, 9) for event in (opened(f"kb-{number}", "b", "kb-1"),
                      used(f"kb-{number}", "b", 5, repeats=5), closed(f"kb-{number}", "b", "x"))), used("kb-1", "a", 5)],
                     {"a": 0, "b": 20}, id="ahead: what is tried again is charged once, as often as tries are made"),
        pytest.param([*GOES, used("kb-1", "a", 5), closed("kb-2", "b", "x"), *(event for number in range(3, 9) for event in (
                      opened(f"kb-{number}", "b", "kb-1"), used(f"kb-{number}", "b", 5, repeats=5), closed(f"kb-{number}", "b", "x")))],
                     {"a": 5, "b": 15}, id="ahead: not more often than tries are made"),
        pytest.param([*GOES, opened("kb-3", "a", "kb-1"), died("kb-1", "a"), used("kb-3", "a", 14), died("kb-3", "a"),
                      closed("kb-2", "b", "unused"), placed("b"), opened("kb-4", "b", "kb-3", origin="kb-1"),
                      used("kb-4", "b", 14, repeats=14)], {"a": 14, "b": 0}, id="ahead: the other node starts anew, and it is not used"),
        pytest.param([*GOES, opened("kb-3", "a", "kb-1"), died("kb-1", "a"), used("kb-3", "a", 5), used("kb-2", "b", 5, repeats=5),
                      closed("kb-3", "a"), used("kb-2", "b", 2)], {"a": 5, "b": 2}, id="ahead: the other one's node starts anew"),
        pytest.param([*GOES, used("kb-1", "a", 10), closed("kb-2", "b", "unused"), opened("kb-3", "a", "kb-1"), died("kb-1", "a"),
                      died("kb-3", "a"), opened("kb-4", "a", "kb-3", origin="kb-1"), used("kb-4", "a", 11, repeats=10), died("kb-4", "a"),
                      placed("b"), opened("kb-5", "b", "kb-4", origin="kb-1"), used("kb-5", "b", 12, repeats=11)], {"a": 11, "b": 1},
                     id="it is ended again where it is to leave"),
        pytest.param([*GOES, used("kb-1", "a", 10), closed("kb-1", "a"), opened("kb-3", "b", "kb-2", origin="kb-1"), died("kb-2", "b"),
                      used("kb-3", "b", 14, repeats=10)], {"a": 10, "b": 4}, id="ahead: it took the place, and its node starts anew"),
        pytest.param([*GOES, used("kb-1", "a", 10), closed("kb-1", "a"), used("kb-2", "b", 6, repeats=6),
                      opened("kb-3", "b", "kb-2", origin="kb-1"), died("kb-2", "b"), used("kb-3", "b", 14, repeats=10)],
                     {"a": 10, "b": 10}, id="ahead: and what it had repeated is repeated for a charge"),
        pytest.param([*MOVED, used("kb-2", "b", 12, repeats=11)], {"a": 10, "b": 2}, id="moved"),
        pytest.param([opened("kb-1", "a"), moved("a"), used("kb-1", "a", 10), closed("kb-1", "a"), placed("b"), opened("kb-2", "b", "kb-1"),
                      used("kb-2", "b", 12, repeats=11)], {"a": 10, "b": 2}, id="moved: it is charged until it has left"),
        pytest.param([*MOVED, used("kb-2", "b", 3, repeats=1), lost("b"), placed("c"), opened("kb-3", "c", "kb-2"),
                      used("kb-3", "c", 20, repeats=20)], {"a": 10, "b": 2, "c": 8}, id="moved with its memory, and lost"),
        pytest.param([*BEGUN, moved("a"), lost("a"), used("kb-1", "a", 5), placed("b"), opened("kb-2", "b", "kb-1"),
                      used("kb-2", "b", 20, repeats=20), closed("kb-1", "a"), used("kb-2", "b", 5, repeats=5)],
                     {"a": 10, "b": 15}, id="lost while it was moved"),
        pytest.param([opened("kb-1", "a"), used("kb-1", "a", 10, compile_ns=4 * SECOND), lost("a"), placed("b"),
                      opened("kb-2", "b", "kb-1"), used("kb-2", "b", 14, repeats=14, compile_ns=4 * SECOND)], {"a": 14, "b": 8},
                     id="what was compiled is not repeated"),
        pytest.param([opened("kb-1", "a"), opened("kb-2", "a"), used("kb-1", "a", 3), used("kb-2", "a", 4), lost("a"), placed("b"),
                      opened("kb-3", "b", "kb-1"), opened("kb-4", "b", "kb-2"), used("kb-3", "b", 4, repeats=4),
                      used("kb-4", "b", 4, repeats=4)], {"a": 7, "b": 1}, id="several devices: each repeats its own"),
        pytest.param([opened("kb-1", "a"), opened("kb-2", "a"), used("kb-1", "a", 3), used("kb-2", "a", 4), moved("a"), closed("kb-1", "a"),
                      closed("kb-2", "a"), placed("b"), opened("kb-3", "b", "kb-1"), opened("kb-4", "b", "kb-2"),
                      used("kb-4", "b", 4, repeats=4), used("kb-3", "b", 4, repeats=4)], {"a": 7, "b": 1}, id="several devices that move"),
        pytest.param([*LOST, used("kb-2", "b", 10, repeats=10), used("kb-2", "b", 5), lost("b"), placed("c"), opened("kb-3", "c", "kb-2"),
                      used("kb-3", "c", 16, repeats=16)], {"a": 10, "b": 5, "c": 1}, id="lost twice: repeated twice, charged once"),
        pytest.param([*LOST, used("kb-2", "b", 4, repeats=4), lost("b"), placed("c"), opened("kb-3", "c", "kb-2"),
                      used("kb-3", "c", 11, repeats=11)], {"a": 10, "b": 0, "c": 1}, id="lost again while it repeats"),
        pytest.param([*LOST, lost("b"), placed("c"), opened("kb-3", "c", "kb-2"), used("kb-3", "c", 11, repeats=11)], {"a": 10, "c": 1},
                     id="lost again before it repeats"),
        pytest.param([*LOST, lost("b"), placed("c"), opened("kb-3", "c", "kb-1"), used("kb-3", "c", 11, repeats=11)], {"a": 10, "c": 1},
                     id="the client did not hear of the second place"),
        pytest.param([*LOST, opened("kb-3", "b", "kb-2"), closed("kb-2", "b", "executor_lost"), used("kb-3", "b", 11, repeats=11)],
                     {"a": 10, "b": 1}, id="an executor is lost before it repeats"),
        pytest.param([*LOST, used("kb-2", "b", 2, repeats=2), opened("kb-3", "b", "kb-2"), closed("kb-2", "b", "executor_lost"),
                      used("kb-3", "b", 4, repeats=2, recovered_ns=2 * SECOND), used("kb-3", "b", 7, repeats=7)], {"a": 10, "b": 1},
                     id="an executor is lost while it repeats"),
        pytest.param([*BEGUN, lost("a"), placed("b"), lost("b"), opened("kb-2", "b", "kb-1", at_ns=AT - 1), closed("kb-2", "b"),
                      placed("c"), opened("kb-3", "c", "kb-2"), used("kb-3", "c", 11, repeats=11)], {"a": 10, "c": 1},
                     id="the log hears too late of the second place"),
        pytest.param([*BEGUN, lost("a"), placed("a"), opened("kb-2", "a", "kb-1"), used("kb-2", "a", 5), closed("kb-2", "a", "done"),
                      opened("kb-3", "a", "kb-2"), used("kb-3", "a", 5, repeats=5)], {"a": 20}, id="what ends beside it does not leave"),
        pytest.param([placed("a", "u"), opened("kb-5", "a", "", "u"), moved("a", "u"), *BEGUN, closed("kb-1", "a", "done"),
                      opened("kb-2", "a", "kb-1"), used("kb-2", "a", 5, repeats=5)], {"a": 15}, id="another task leaves"),
        pytest.param([*MOVED, used("kb-2", "b", 10, repeats=10), moved("b"), closed("kb-2", "b"), placed("a"), opened("kb-3", "a", "kb-2"),
                      used("kb-3", "a", 11, repeats=11)], {"a": 11, "b": 0}, id="moved there and back"),
        pytest.param([*BEGUN, *EXECUTOR, used("kb-2", "a", 12, recovered_ns=10 * SECOND), lost("a"), placed("b"),
                      opened("kb-3", "b", "kb-2"), used("kb-3", "b", 13, repeats=13)], {"a": 12, "b": 1},
                     id="an executor was lost, then its node"),
        pytest.param([*BEGUN, *EXECUTOR, used("kb-2", "a", 30, recovered_ns=30 * SECOND), lost("a"), placed("b"),
                      opened("kb-3", "b", "kb-2"), used("kb-3", "b", 30, repeats=30)], {"a": 10, "b": 20},
                     id="what a node says is repeated gives nothing to repeat"),
        pytest.param([*BEGUN, moved("a"), *EXECUTOR, used("kb-2", "a", 12, recovered_ns=10 * SECOND), closed("kb-2", "a"), placed("b"),
                      opened("kb-3", "b", "kb-2"), used("kb-3", "b", 13, repeats=12)], {"a": 12, "b": 1},
                     id="an executor was lost while its task was moved"),
        pytest.param([*BEGUN, moved("a"), opened("kb-2", "a"), used("kb-2", "a", 3), closed("kb-1", "a"), closed("kb-2", "a"), placed("b"),
                      opened("kb-3", "b", "kb-2"), used("kb-3", "b", 4, repeats=4)], {"a": 13, "b": 1},
                     id="a session that was opened while its task was moved"),
        pytest.param([*LOST, opened("kb-9", "a", at_ns=AT - 1), used("kb-9", "a", 5)], {"a": 10},
                     id="a session from before the loss that the log did not know is given up"),
        pytest.param([*LOST, opened("kb-9", "a", at_ns=AT), used("kb-9", "a", 5)], {"a": 15}, id="one that is opened there later is not"),
        pytest.param([*LOST, opened("kb-1", "a"), used("kb-1", "a", 5)], {"a": 10}, id="a session that is announced again stays given up"),
        pytest.param([*LOST, placed("a"), opened("kb-9", "a"), used("kb-9", "a", 5), used("kb-1", "a", 5)], {"a": 15},
                     id="placed there again: only the old session is given up"),
        pytest.param([*BEGUN, lost("a"), placed("a"), opened("kb-2", "a", "kb-1"), used("kb-2", "a", 11, repeats=11)], {"a": 11},
                     id="placed there again: it repeats beside the old one"),
        pytest.param([*BEGUN, closed("kb-1", "a", "done"), moved("a"), opened("kb-2", "a", "kb-1"), used("kb-2", "a", 10),
                      closed("kb-2", "a", "done"), opened("kb-3", "a", "kb-2"), used("kb-3", "a", 10, repeats=10)],
                     {"a": 30}, id="a move of a task without sessions makes nothing free"),
        pytest.param([*BEGUN, closed("kb-1", "a", "done"), lost("a"), placed("b"), opened("kb-2", "b", "kb-1"),
                      used("kb-2", "b", 10, repeats=10)], {"a": 10, "b": 10}, id="what had ended before is not repeated"),
        pytest.param([*LOST[:-1], opened("kb-2", "b"), used("kb-2", "b", 10, repeats=10)], {"a": 10, "b": 10},
                     id="a session that takes no place repeats nothing"),
        pytest.param([*LOST, used("kb-2", "b", 10), used("kb-2", "b", 5, recovered_ns=5 * SECOND)], {"a": 10, "b": 10},
                     id="nothing is free that the client does not claim"),
        pytest.param([*BEGUN, used("kb-1", "a", 5, repeats=5)], {"a": 15}, id="a claim without a loss"),
        pytest.param([*BEGUN, opened("kb-2", "a", "kb-1"), used("kb-2", "a", 5, repeats=5)], {"a": 15}, id="nothing was lost"),
        pytest.param([*BEGUN, *EXECUTOR, closed("kb-2", "a", "done"), opened("kb-3", "a", "kb-2"), used("kb-3", "a", 5, repeats=5)],
                     {"a": 15}, id="a chain that has ended"),
        pytest.param([*ANEW, *BEGUN, opened("kb-2", "b", "kb-1"), used("kb-1", "a", 5), used("kb-2", "b", 12, repeats=11)],
                     {"a": 10, "b": 2}, id="placed anew before the log heard of its session"),
        pytest.param([*ANEW, opened("kb-2", "b", "kb-1"), *BEGUN, used("kb-2", "b", 10, repeats=10), closed("kb-1", "a", "lease"),
                      used("kb-2", "b", 1)], {"a": 0, "b": 11}, id="the log hears of a session after the one in its place"),
        pytest.param([ANEW[0], lost("a"), placed("b"), opened("kb-2", "b", "kb-1"), ANEW[1], opened("kb-1", "a", at_ns=AT + 90 * SECOND),
                      used("kb-1", "a", 5), used("kb-2", "b", 10, repeats=10)], {"a": 0, "b": 10}, id="the lost node has another time"),
        pytest.param([NodeLost(START, "a", 1, "silent"), lost("a"), placed("b"), opened("kb-3", "b", "kb-2"),
                      used("kb-3", "b", 10, repeats=10), opened("kb-1", "a", at_ns=AT + 90 * SECOND), used("kb-1", "a", 5),
                      opened("kb-2", "a", "kb-1", at_ns=AT + 95 * SECOND), closed("kb-1", "a", "executor_lost")],
                     {"a": 0, "b": 10}, id="it has another time, and lost an executor before"),
        pytest.param([*BEGUN, used("kb-1", "a", 4, begun_ns=3 * SECOND), lost("a"), placed("b"), opened("kb-2", "b", "kb-1"),
                      used("kb-2", "b", 11, repeats=11), used("kb-2", "b", 8, resumed_ns=6 * SECOND)], {"a": 14, "b": 5},
                     id="a batch that was not over is charged once"),
        pytest.param([*BEGUN, used("kb-1", "a", 4, begun_ns=3 * SECOND), lost("a"), placed("b"), opened("kb-2", "b", "kb-1"),
                      used("kb-2", "b", 13, repeats=13), used("kb-2", "b", 8, resumed_ns=8 * SECOND)], {"a": 14, "b": 7},
                     id="no more than was charged of it is free"),
        pytest.param([*BEGUN, used("kb-1", "a", 4, begun_ns=3 * SECOND), used("kb-1", "a", 2), lost("a"), placed("b"),
                      opened("kb-2", "b", "kb-1"), used("kb-2", "b", 16, repeats=16), used("kb-2", "b", 8, resumed_ns=8 * SECOND)],
                     {"a": 16, "b": 8}, id="it was over before the loss"),
        pytest.param([*BEGUN, used("kb-1", "a", 4, begun_ns=3 * SECOND), lost("a"), placed("b"), opened("kb-2", "b", "kb-1"),
                      used("kb-2", "b", 11, repeats=11), used("kb-2", "b", 2, resumed_ns=2 * SECOND, begun_ns=2 * SECOND), lost("b"),
                      placed("c"), opened("kb-3", "c", "kb-2"), used("kb-3", "c", 11, repeats=11),
                      used("kb-3", "c", 8, resumed_ns=8 * SECOND)], {"a": 14, "b": 0, "c": 5}, id="it was not over twice"),
        pytest.param([*BEGUN, used("kb-1", "a", 4, begun_ns=3 * SECOND), lost("a"), placed("b"), opened("kb-2", "b", "kb-1"),
                      used("kb-2", "b", 16, repeats=16)], {"a": 14, "b": 2}, id="the client says that it was repeated as well"),
        pytest.param([*BEGUN, lost("a"), placed("b"), opened("kb-3", "b", "kb-2", origin="kb-1"),
                      opened("kb-2", "a", "kb-1", origin="kb-1", at_ns=AT - 1), used("kb-2", "a", 11, recovered_ns=11 * SECOND),
                      used("kb-3", "b", 12, repeats=12)], {"a": 10, "b": 2}, id="the log hears too late of the one whose place it takes"),
        pytest.param([*BEGUN, *EXECUTOR, lost("a"), placed("b"), opened("kb-3", "b", "kb-1"), used("kb-3", "b", 11, repeats=11)],
                     {"a": 10, "b": 1}, id="the client did not hear of the second session"),
        pytest.param([*BEGUN, *EXECUTOR, opened("kb-3", "a", "kb-2"), closed("kb-2", "a", "executor_lost"), lost("a"), placed("b"),
                      opened("kb-4", "b", "kb-2", origin="kb-1"), used("kb-4", "b", 11, repeats=11)],
                     {"a": 10, "b": 1}, id="the client did not hear of the third session"),
        pytest.param([*ANEW, opened("kb-2", "b", "kb-1"), used("kb-2", "b", 10, repeats=10), closed("kb-2", "b", "done"), *BEGUN],
                     {"a": 0, "b": 10}, id="the log hears of a session after the end of the one in its place"),
        pytest.param([*LOST, used("kb-2", "b", 6, repeats=6), opened("kb-9", "a", "kb-1", at_ns=AT - 1), used("kb-2", "b", 6, repeats=6)],
                     {"a": 10, "b": 2}, id="a session that the log hears of too late gives nothing to repeat"),
        pytest.param([*BEGUN, lost("a"), opened("kb-2", "a", "kb-1", at_ns=AT + 1), closed("kb-1", "a", "node_restarted"),
                      used("kb-2", "a", 14, recovered_ns=10 * SECOND), closed("kb-2", "a"), placed("b"), opened("kb-3", "b", "kb-2"),
                      used("kb-3", "b", 15, repeats=15)], {"a": 14, "b": 1}, id="the lost node was back before the task had a place"),
        pytest.param([NodeLost(START, "a", 1, "silent"), *BEGUN, NodeRecovered(START, "a", 1), opened("kb-2", "a", "kb-1"),
                      closed("kb-1", "a"), used("kb-2", "a", 11, repeats=11)], {"a": 11}, id="its client took it for lost, and returned"),
        pytest.param([placed("b"), *BEGUN, used("kb-1", "a", 5)], {"a": 15}, id="it stays where it began, though it was placed anew"),
        pytest.param([*BEGUN, placed("b"), opened("kb-2", "a", "kb-1"), used("kb-2", "a", 5, repeats=5)], {"a": 15},
                     id="nothing is given up for a session where the task is not placed"),
        pytest.param([*MOVED, opened("kb-9", "a", origin="kb-1"), used("kb-9", "a", 100)], {"a": 110},
                     id="a session on a node that was left, in a chain that continues elsewhere, is charged"),
        pytest.param([*MOVED, opened("kb-8", "a"), opened("kb-9", "b", "kb-8"), used("kb-8", "a", 100)], {"a": 110},
                     id="and so is one whose place another one is said to take"),
        pytest.param([*ANEW, opened("kb-2", "b", "kb-1"), opened("kb-9", "a", origin="kb-1", at_ns=HOUR), used("kb-9", "a", 100)],
                     {"a": 100}, id="and one that was opened an hour after its node was lost"),
        pytest.param([*ANEW, opened("kb-2", "b", "kb-1"), *BEGUN, used("kb-1", "a", 50, from_ns=HOUR, to_ns=HOUR + 60 * SECOND)],
                     {"a": 50}, id="and what is used an hour after"),
        pytest.param([*IMAGE, used("kb-1", "a", 4), lost("a"), placed("b"), opened("kb-2", "b", "kb-1", image=5),
                      used("kb-2", "b", 7, repeats=6)], {"a": 14, "b": 3}, id="nothing of what an image holds is repeated"),
        pytest.param([*IMAGE, used("kb-1", "a", 4), lost("a"), placed("b"), opened("kb-2", "b", "kb-1", image=6),
                      used("kb-2", "b", 7, repeats=6)], {"a": 14, "b": 1}, id="the log knows of no such image"),
        pytest.param([*IMAGE, used("kb-1", "a", 4, image=8), lost("a"), placed("b"), opened("kb-2", "b", "kb-1", image=5),
                      used("kb-2", "b", 7, repeats=6)], {"a": 14, "b": 3}, id="the client uses the image before"),
        pytest.param([*IMAGE, used("kb-1", "a", 4, image=7), lost("a"), placed("b"), opened("kb-2", "b", "kb-1", image=7),
                      used("kb-2", "b", 2, repeats=1, image=9), used("kb-2", "b", 2), lost("b"), placed("c"),
                      opened("kb-3", "c", "kb-2", image=9), used("kb-3", "c", 4, repeats=3)], {"a": 14, "b": 4, "c": 2},
                     id="two images, and both nodes are lost"),
        pytest.param([*ANEW, *IMAGE, opened("kb-2", "b", "kb-1", image=5), used("kb-1", "a", 5), used("kb-2", "b", 7, repeats=6)],
                     {"a": 10, "b": 7}, id="the session in its place comes before the loss, with an image"),
        pytest.param([*IMAGE, *EXECUTOR, used("kb-2", "a", 2), lost("a"), placed("b"), opened("kb-3", "b", "kb-2", image=5),
                      used("kb-3", "b", 7, repeats=6)], {"a": 12, "b": 5}, id="an image, an executor that is lost, and its node"),
        pytest.param([*IMAGE, used("kb-1", "a", 4), TaskDisplaced(AT, "t", "a", False, "b", (0,)), lost("a"), placed("b"),
                      opened("kb-2", "b", "kb-1", image=5), used("kb-2", "b", 7, repeats=6)], {"a": 14, "b": 3},
                     id="an image, and the node is lost when its task was to leave it"),
        pytest.param([*IMAGE, TaskDisplaced(AT, "t", "a", False, "b", (0,)), opened("kb-2", "b", "kb-1"), used("kb-1", "a", 4),
                      forgot("kb-1", "a"), closed("kb-2", "b", "unused"), placed("b"), opened("kb-3", "b", "kb-1", image=5),
                      used("kb-3", "b", 7, repeats=6)], {"a": 14, "b": 3},
                     id="an image, and its memory is lost while another one runs ahead"),
        pytest.param([*BEGUN, forgot("kb-1", "a"), placed("b"), opened("kb-2", "b", "kb-1"), used("kb-2", "b", 12, repeats=11)],
                     {"a": 10, "b": 2}, id="its memory is lost, and its client continues elsewhere"),
        pytest.param([*BEGUN, placed("b"), opened("kb-2", "b", "kb-1"), forgot("kb-1", "a"), used("kb-2", "b", 12, repeats=11)],
                     {"a": 10, "b": 2}, id="the log hears of the loss after the session elsewhere"),
        pytest.param([*GOES, used("kb-2", "b", 5, repeats=5), closed("kb-2", "b", "unused"), opened("kb-3", "a", "kb-1"), died("kb-1", "a"),
                      used("kb-3", "a", 7)], {"a": 2, "b": 5}, id="ahead: it was first, is not used, and the other node starts anew"),
        pytest.param([*IMAGE, used("kb-1", "a", 4), lost("a"), opened("kb-9", "a", "kb-1", at_ns=AT - 1), placed("b"),
                      opened("kb-2", "b", "kb-1", image=5), used("kb-2", "b", 7, repeats=6)], {"a": 14, "b": 3},
                     id="a session that the log hears of too late uses no image"),
        pytest.param([lost("a", "none"), moved("a", "none"), opened("kb-1", "a"), used("kb-1", "a", 1)], {"a": 1}, id="an unknown task"),
    ],
)  # fmt: skip
def test_the_bill_of_displaced_work(events: list[Event], charges: dict[str, int], keys: bool) -> None:
    view = fold(*events, keys=keys)
    assert charged(view) == charges and not view.findings
    assert verify(BillingView.decode(view.encode()), fold(*events, keys=keys)).ok


@pytest.mark.parametrize(
    ("events", "charges"),
    [
        pytest.param([opened("kb-2", "b", "kb-1", "u"), used("kb-2", "b", 10, repeats=10, task="u")], 20, id="another task"),
        pytest.param([opened("kc-2", "b", "kb-1", "t", "acme"), used("kc-2", "b", 10, repeats=10, tenant="acme")], 20, id="another tenant"),
        pytest.param([opened("kb-2", "b", "kb-1", "u", origin="kb-1"), used("kb-2", "b", 10, repeats=10, task="u")], 20,
                     id="another task that names its origin"),
        pytest.param([opened("kc-2", "b", "kb-1", "t", "acme", origin="kb-1"), used("kc-2", "b", 10, repeats=10, tenant="acme")], 20,
                     id="another tenant that does"),
        pytest.param([opened("kb-2", "b", "kb-1", ""), used("kb-2", "b", 10, repeats=10, task="")], 20, id="no task"),
    ],
)  # fmt: skip
def test_others_have_nothing_of_it(events: list[Event], charges: int) -> None:
    view = fold(*LOST[:-1], *events, keys=False)
    assert sum(charged(view).values()) == charges


def ran(session: str, node: str, launches: int, repeats: int = 0, recovered_ns: int = 0) -> UsageRecorded:
    """So many launches, of which the client says that ``repeats`` repeat some of another node; a thousand instructions each."""
    more = {"launches": launches, "displaced_launches": repeats, "recovered_ns": recovered_ns, "instructions": 1_000 * launches}
    return msgspec.structs.replace(used(session, node, 10), displaced_instructions=1_000 * repeats, **more)


@pytest.mark.parametrize(
    ("events", "counts"),
    [
        pytest.param([ran("kb-1", "a", 20), lost("a"), placed("b"), opened("kb-2", "b", "kb-1"), ran("kb-2", "b", 30, 20)],
                     {"a": 20, "b": 10}, id="what the log knows is repeated"),
        pytest.param([ran("kb-1", "a", 18), lost("a"), placed("b"), opened("kb-2", "b", "kb-1"), ran("kb-2", "b", 30, 20)],
                     {"a": 18, "b": 12}, id="the log does not know of the last ones"),
        pytest.param([ran("kb-1", "a", 18), lost("a"), ran("kb-1", "a", 7), placed("b"), opened("kb-2", "b", "kb-1"),
                      ran("kb-2", "b", 30, 20)], {"a": 18, "b": 12}, id="it hears of them too late"),
        pytest.param([ran("kb-1", "a", 20), lost("a"), placed("b"), opened("kb-2", "b", "kb-1"), ran("kb-2", "b", 15, 15), lost("b"),
                      placed("c"), opened("kb-3", "c", "kb-2"), ran("kb-3", "c", 25, 20)], {"a": 20, "b": 0, "c": 5}, id="lost twice"),
        pytest.param([ran("kb-1", "a", 20), *EXECUTOR, ran("kb-2", "a", 4, 0, 5 * SECOND), lost("a"), placed("b"),
                      opened("kb-3", "b", "kb-2"), ran("kb-3", "b", 25, 24)], {"a": 24, "b": 1}, id="an executor first"),
        pytest.param([ran("kb-1", "a", 20), opened("kb-2", "a"), closed("kb-1", "a", "done"), ran("kb-2", "a", 4), lost("a"), placed("b"),
                      opened("kb-3", "b", "kb-2"), ran("kb-3", "b", 25, 24)], {"a": 24, "b": 21}, id="what ended is not repeated"),
        pytest.param([ran("kb-1", "a", 20), moved("a"), closed("kb-1", "a"), placed("b"), opened("kb-2", "b", "kb-1"),
                      ran("kb-2", "b", 30, 1), lost("b"), placed("a"), opened("kb-3", "a", "kb-2"), ran("kb-3", "a", 5, 4)],
                     {"a": 20 + 1, "b": 29}, id="moved with its memory, then lost"),
    ],
)  # fmt: skip
def test_every_batch_counts_once(events: list[Event], counts: dict[str, int]) -> None:
    view = fold(opened("kb-1", "a"), *events)
    assert not view.findings
    assert {key[3]: row.launches for key, row in view.rows.items()} == counts
    assert {key[3]: row.instructions for key, row in view.rows.items()} == {node: 1_000 * count for node, count in counts.items()}


def test_a_loss_ends_the_charge_of_the_task_alone() -> None:
    """Sessions of other tasks, of other tenants who name the task, and of other nodes are charged on."""
    others = [("kb-5", "a", "u", "beta"), ("kc-6", "a", "t", "acme"), ("kb-7", "b", "t", "beta")]
    opens = [opened(session, node, "", task, tenant) for session, node, task, tenant in others]
    uses = [used(session, node, 5, task=task, tenant=tenant) for session, node, task, tenant in others]
    view = fold(*LOST[:2], *opens, lost("a"), *uses, used("kb-1", "a", 5), keys=False)
    assert charged(view) == {"a": 20, "b": 5}


def test_what_is_not_charged_shows_in_the_row() -> None:
    view = fold(*LOST, used("kb-1", "a", 3), used("kb-2", "b", 12, repeats=12, compile_ns=SECOND))
    assert {key[3]: (row.core_ns // SECOND, row.recovered_ns // SECOND, row.facts) for key, row in view.rows.items()} == {
        "a": (10, 3, 1), "b": (3, 10, 1)
    }  # fmt: skip
    assert view.ledger.balance_micro("beta") == -sum(row.core_micro + row.vram_micro for row in view.rows.values())


@pytest.mark.parametrize(
    "terms",
    [
        {"repeats": 11}, {"repeats": -1}, {"repeats": 6, "recovered_ns": 5 * SECOND}, {"recovered_ns": -1},
        {"displaced_launches": 1}, {"displaced_launches": -1}, {"launches": 3, "displaced_launches": 4},
        {"displaced_instructions": 1}, {"displaced_instructions": -1}, {"instructions": 3, "displaced_instructions": 4},
    ],
)  # fmt: skip
def test_usage_that_is_less_than_nothing_is_a_finding(terms: dict[str, Any]) -> None:
    view = fold(*LOST, used("kb-2", "b", 10, **terms))
    assert charged(view) == {"a": 10} and "less than nothing" in view.findings[0]
    assert not fold(*LOST, used("kb-2", "b", 10, repeats=10)).findings


@pytest.mark.parametrize(
    ("events", "kept"),
    [
        (BEGUN, ["kb-1"]),
        ([*BEGUN, closed("kb-1", "a", "done")], []),
        ([*BEGUN, *EXECUTOR], ["kb-1"]),
        ([*BEGUN, *EXECUTOR, closed("kb-2", "a", "done")], []),
        (LOST[:-1], ["kb-1"]),
        (LOST, ["kb-1"]),
        ([*LOST, closed("kb-2", "b", "done")], []),
        ([*LOST, closed("kb-1", "a"), closed("kb-2", "b", "done")], []),
        (MOVED[:-1], ["kb-1"]),
        ([*MOVED, closed("kb-2", "b", "done")], []),
        ([*MOVED, lost("b"), placed("c"), opened("kb-3", "c", "kb-2"), closed("kb-3", "c", "done")], []),
    ],
)
def test_nothing_is_kept_of_what_is_over(events: list[Event], kept: list[str]) -> None:
    assert list(fold(*events).evidence.tasks["t"].chains) == kept


def test_a_view_that_an_older_version_saved_is_derived_anew() -> None:
    """It lacks what its fields of today sum up, as the core time of the sessions that are open."""
    saved = msgspec.json.decode(fold(*LOST[:2]).encode())
    for other in (["0" * 32, *saved[1:]], saved[1:]):
        with pytest.raises(CorruptSnapshotError):
            BillingView.decode(msgspec.json.encode(other))
