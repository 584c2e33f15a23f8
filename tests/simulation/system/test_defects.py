"""Defects that the simulation found, each as the shortest story in which it shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgspec

from bus_schemas.batch import decode_done
from bus_schemas.session import SessionOpened
from tests.simulation.system.draw import Fault, Plan, Script, Step, draw
from tests.simulation.system.kernel import MS, S
from tests.simulation.system.run import Outcome, System, simulate
from tests.simulation.system.wire import Message

RUNS = 12


def _script(name: str = "client-0", *, cost_ms: int = 2, think_ns: int = 100 * MS, runs: int = RUNS, target_s: float = 30.0) -> Script:
    runs_ = [Step("run", 1, (2,), salt=number, cost_ms=cost_ms) for number in range(runs)]
    steps = (Step("upload", 1, nbytes=24, salt=7), Step("upload", 2, nbytes=100, salt=8), *runs_, Step("read", 1, nbytes=24, waits=True))
    return Script(name, "acme", 2, 16, 450 * MS, think_ns, True, 1 << 20, target_s, steps)


def _plan(*scripts: Script, faults: tuple[Fault, ...] = (), nodes: int = 1, stop_grace_s: float = 0.0) -> Plan:
    return replace(
        draw(0), nodes=nodes, controllers=1, loss=0.0, skews_ns=(0,), lease_ms=15_000, unlinked_lease_ms=12_000, orphan_s=10.0,
        stop_grace_s=stop_grace_s, scripts=scripts, faults=faults, ends_ns=max([fault.at_ns + fault.for_ns for fault in faults], default=0),
    )  # fmt: skip


def _fault(kind: str, at_ns: int, for_ns: int = 0) -> Fault:
    return Fault(kind, at_ns, for_ns, 0, 1, 1)


def _run(plan: Plan, prepare: Callable[[System], None] = lambda system: None) -> Outcome:
    outcome = simulate(0, plan, prepare)
    assert outcome.counts["scripts: finished"] == len(plan.scripts)
    return outcome


def _once(
    wanted: Callable[[Message], bool], then: Callable[[System], None] = lambda system: None, *, lost: bool = True
) -> Callable[[System], None]:
    """The first message that is ``wanted`` gets lost; then something happens."""

    def prepare(system: System) -> None:
        seen: list[Message] = []

        def drops(message: Message) -> bool:
            if seen or not wanted(message):
                return False
            seen.append(message)
            then(system)
            return lost

        system.broker.drops = drops

    return prepare


def _answers(message: Message, field: bytes) -> bool:
    """Whether it answers a client, with an answer that has this field."""
    return field in message.data and message.subject.startswith("_INBOX_local")


def test_a_closed_session_is_not_built_again() -> None:
    """The answer to its close is lost, the bus restarts, and the node, which reads its batches again, does not know it any more."""

    def restart(system: System) -> None:
        system.world.after(100 * MS, None, lambda: system.broker.kill(power=False))
        system.world.after(200 * MS, None, system.broker.start)

    outcome = _run(_plan(_script()), _once(lambda message: _answers(message, b"launch_digest"), restart))
    assert outcome.counts["sessions built again"] == 0


def test_an_answer_that_is_lost_while_batches_are_repeated_is_had_again() -> None:
    """The node keeps the last answers only: the client must not run ahead of the one that it lacks."""
    sessions: list[str] = []

    def third_of_second(message: Message) -> bool:
        if not message.subject.endswith(".done"):
            return False
        done = decode_done(message.data)
        if done.session not in sessions:
            sessions.append(done.session)
        return done.session == sessions[-1] and len(sessions) == 2 and done.seq == 3

    outcome = _run(_plan(_script(), faults=(_fault("kill executor", 1450 * MS),)), _once(third_of_second))
    assert outcome.counts["sessions built again"] == 1


def test_memory_of_a_session_whose_name_was_used_before_is_given_back() -> None:
    """The answer to its opening is lost, its memory is lost, and it is opened under the same name."""

    def kill(system: System) -> None:
        executor = next(iter(system.nodes.values())).alive()
        assert executor is not None
        system.world.after(MS, None, executor.process.kill)

    _run(_plan(_script()), _once(lambda message: _answers(message, b"token"), kill))


def test_slices_of_a_batch_that_was_not_over_are_charged_once() -> None:
    """Two sessions take turns; the executor dies when some slices of their batches are reported, and charged."""
    scripts = (_script(cost_ms=150, think_ns=0), _script("client-1", cost_ms=150, think_ns=0))
    outcome = _run(_plan(*scripts, faults=(_fault("kill executor", 1700 * MS),)))
    assert outcome.counts["sessions built again"] == 2
    assert outcome.counts["slices stopped"] > 0


def test_slices_of_a_batch_that_was_not_over_on_a_lost_node_are_charged_once() -> None:
    """Two sessions a node take turns; the machine of one fails for longer than its lease, when slices of their batches are charged."""
    scripts = [replace(_script(f"client-{at}", cost_ms=150, think_ns=0), vram_mb=8) for at in range(4)]
    plan = replace(_plan(*scripts, faults=(_fault("fail node", 2420 * MS, 30 * S),), nodes=2), node_lease_ms=2500)
    outcome = _run(plan)
    assert outcome.counts["sessions built again"] == 2


def test_slices_of_the_first_program_are_charged_once_when_the_machine_fails() -> None:
    """Two sessions take turns with their first programs, behind uploads, when the accounts are taken and the machine fails."""
    scripts = [replace(_script(f"client-{at}", cost_ms=900, think_ns=0, runs=2), vram_mb=8) for at in range(2)]
    outcome = _run(_plan(*scripts, faults=(_fault("fail node", 1700 * MS, S),)))
    assert outcome.counts["sessions built again"] == 2


def test_a_server_that_stops_leaves_lost_sessions_to_the_next() -> None:
    """The machine of the node fails; before the client builds its session again, the server is stopped."""
    faults = (_fault("fail node", 1500 * MS, 500 * MS), _fault("stop client", 1400 * MS, 4 * S), _fault("end server", 3200 * MS))
    _run(_plan(_script(), faults=faults))


def test_a_client_whose_data_port_knows_no_session_asks_the_node() -> None:
    """The executor dies while its client is idle, and what the node says of it is lost; the next upload is refused."""
    uploads = tuple(Step("upload", 10 + at, nbytes=100, salt=at) for at in range(3))
    script = _script(think_ns=700 * MS, runs=6)
    script = replace(script, steps=(*script.steps[:-1], *uploads, script.steps[-1]))

    def memory_lost(message: Message) -> bool:
        return message.subject.endswith(".done") and b"MemoryLost" in message.data

    plan = replace(_plan(script, faults=(_fault("kill executor", 6000 * MS),)), lease_ms=30_000)
    _run(plan, _once(memory_lost))


def test_a_lost_session_is_kept_while_the_server_is_stopped() -> None:
    """The executor dies, and the server is stopped for longer than the lease: it heard no client, so none was silent."""
    _run(_plan(_script(), faults=(_fault("kill executor", 1450 * MS), _fault("stop server", 1600 * MS, 16 * S))))


def test_a_session_is_kept_while_the_bus_is_away_and_its_data_port_cannot_be_reached() -> None:
    """For longer than the lease: no client can be heard, so none is silent."""

    def cut(system: System) -> None:
        node, client = system.servers[0].machine.name, system.clients[0].machine.name
        system.world.at(1300 * MS, None, system.network.cut, node, client)
        system.world.at(17 * S, None, system.network.heal, node, client)

    _run(_plan(_script(), faults=(_fault("kill bus", 1450 * MS, 16 * S),)), cut)


def test_a_client_knows_no_session_that_the_next_server_would_not() -> None:
    """The node's disk is slow, and its machine fails just when a client hears that its session is opened, in the place of a lost one."""
    opened: list[Message] = []

    def second(message: Message) -> bool:
        if _answers(message, b"token") and msgspec.msgpack.decode(message.data, type=SessionOpened).fault is None:
            opened.append(message)
        return len(opened) == 2

    def fail(system: System) -> None:
        system.unhealed += 1
        system.world.after(0, None, system.begin, _fault("fail node", 0, S))

    faults = (_fault("kill executor", 1450 * MS), _fault("slow node", 1450 * MS, 3 * S))
    outcome = _run(_plan(_script(), faults=faults), _once(second, fail, lost=False))
    assert outcome.counts["fault: fail node"] == 1


def test_work_of_a_session_that_was_closed_is_charged_by_the_next_server() -> None:
    """The disk is slow, so that the accounts are not there when the server dies; the executor has the reports, and no session any more."""
    faults = (_fault("slow node", 500 * MS, 2 * S), _fault("kill server", 1100 * MS, 500 * MS))
    _run(_plan(_script(think_ns=20 * MS), faults=faults))


def test_a_server_whose_journal_fails_grants_no_grace() -> None:
    """What it executes is in no account, and no controller hears that it leaves."""
    ends: list[int] = []

    def prepare(system: System) -> None:
        server = system.servers[0]
        system.world.after(S, None, lambda: server.process and server.process.on_end.append(lambda: ends.append(system.world.now_ns)))

    _run(_plan(_script(think_ns=300 * MS), faults=(_fault("fill node", 1500 * MS, 2 * S),), stop_grace_s=10.0), prepare)
    assert ends and ends[0] < 4 * S


def test_a_name_of_a_session_that_has_ended_is_not_used_again() -> None:
    """Answers to its opening are lost until its task was moved, and its node ended it: the client asks where the task is placed now."""

    def prepare(system: System) -> None:
        system.broker.drops = lambda message: system.world.now_ns < 14 * S and _answers(message, b"token")

    outcome = _run(_plan(_script(), faults=(_fault("move", S),), nodes=2), prepare)
    assert outcome.counts["moves: 200"] == 1


def test_batches_whose_answers_are_lost_with_their_node_are_charged_once() -> None:
    """Their use was reported; the client repeats them elsewhere without knowing that they were executed."""

    def prepare(system: System) -> None:
        system.broker.drops = lambda message: 800 * MS < system.world.now_ns < 3 * S and message.subject.endswith(".done")

    plan = _plan(_script(cost_ms=20), faults=(_fault("fail node", 2600 * MS, 30 * S),), nodes=2)
    outcome = _run(replace(plan, node_lease_ms=2500), prepare)
    assert outcome.counts["sessions built again"] == 1


def test_a_server_knows_of_sessions_that_the_one_before_had_taken_over() -> None:
    """The disk is full when they are opened, so the first server cannot note them; the machine fails before the second one does so in turn,
    and the client is killed."""
    faults = (_fault("fill node", 470 * MS, 900 * MS), _fault("kill client", 2200 * MS), _fault("fail node", 2250 * MS, S))
    outcome = simulate(0, _plan(_script(think_ns=300 * MS), faults=faults))
    assert outcome.counts["scripts: killed"] == 1


def test_a_client_asks_again_to_leave_a_node_that_could_not_record_it() -> None:
    """The disk is full when its task is moved: the server ends, and the next one has the session, which the client would have left."""
    faults = (_fault("move", S), _fault("fill node", 1060 * MS, 60 * MS))
    outcome = _run(_plan(_script(), faults=faults, nodes=2))
    assert outcome.counts["moves: 200"] == 1 and outcome.counts["nodes started"] == 3


def test_a_script_that_has_ended_asks_for_its_last_answers() -> None:
    """The machine of its node fails, and what the node says of it is lost: the session is built again before its lease is over."""
    script = _script(runs=8)
    script = replace(script, steps=(*script.steps[:-1], Step("upload", 3, nbytes=100, salt=9)))

    def prepare(system: System) -> None:
        system.broker.drops = lambda message: 1300 * MS < system.world.now_ns < 4 * S and message.subject.endswith(".done")

    outcome = _run(_plan(script, faults=(_fault("fail node", 1500 * MS, 500 * MS),)), prepare)
    assert outcome.counts["sessions built again"] == 1 and outcome.virtual_s < 12
