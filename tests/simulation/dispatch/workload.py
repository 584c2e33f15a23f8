"""Clients, network and executor around a dispatcher, all drawn from one seed. Knows the interface of the dispatcher, none of its rules."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from scheduler.dispatch import (
    FAULT,
    OK,
    BatchArrived,
    ConfigChanged,
    Decision,
    Dispatch,
    DispatchConfig,
    LaunchFinished,
    LaunchReturned,
    LaunchStopped,
    MemoryReady,
    PriorityChanged,
    SessionClosed,
    SessionOpened,
    Stimulus,
    Tick,
)
from scheduler.dispatch.decisions import Drop, Launch, Preempt, Refuse, Release

__all__ = ["Livelock", "Step", "World", "run"]

SESSIONS_MAX: Final = 12
ALWAYS: Final = ("open", "send", "deliver", "finish")
SOMETIMES: Final = (
    "reorder", "repeat", "lose", "replay", "bogus", "resend", "fault", "close", "configure", "tick", "restart", "await", "memory", "stray",
)  # fmt: skip
ORDERS: Final = ("prioritise", "cancel")
"""What an operator does to sessions that are open."""
KINDS: Final = ((10, 100), (300, 3_000), (5_000, 30_000))
"""Ranges of what batches of a session run for, in ns: short, middle, long beside a quantum of 1000."""

DRAIN_STEPS_MAX: Final = 500_000
"""Of 3,000 seeds the longest drain took 59,083."""

Step = tuple[Stimulus, list[Decision]]


class Livelock(AssertionError):
    """The drain does not end: work is sent and finished for ever, or never taken."""


@dataclass
class Client:
    """``sent``: how many batches it has made; ``over``: it stopped, and why."""

    session: str
    epoch: int
    first: int
    sent: int = 0
    closing: bool = False
    over: str = ""
    kind: int = 0
    cores: int = 1


@dataclass
class Flying:
    """A launch in the executor's queue. ``stop``: it was preempted."""

    session: str
    seq: int
    limit_ns: int
    stop: bool = False


@dataclass
class World:
    """One run. ``enabled`` is the swarm: each seed switches some troubles off entirely. ``refusing``: sessions of which the executor runs
    nothing but the named seq (it lacked a body or memory), or nothing at all (None: it faulted). ``left_ns``: of each batch that began.
    ``unfinished``: the batch of a session that must be over before another one may run. ``awaiting``: sessions without memory."""

    seed: int
    dispatch: Dispatch
    now_ns: int = 0
    clients: dict[str, Client] = field(default_factory=dict)
    network: list[tuple[str, int, int]] = field(default_factory=list)
    executor: deque[Flying] = field(default_factory=deque)
    refusing: dict[str, int | None] = field(default_factory=dict)
    left_ns: dict[tuple[str, int], int] = field(default_factory=dict)
    unfinished: dict[str, int] = field(default_factory=dict)
    awaiting: list[str] = field(default_factory=list)
    head_since_ns: int = 0
    opened: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        # In the order of the table, never of a set: that differs from process to process, and with it every draw after it.
        self.enabled = [name for name in SOMETIMES if self.random.random() < 0.6]
        self.weights = {name: self.random.randint(1, 10) for name in (*ALWAYS, *self.enabled)}
        self.weights["finish"] += 5
        self.policy = self.random.choice(("strict", "strict", "strict", "strict", "fifo", "timeslice"))
        self.special = self.random.choice(("", "", "aging", "reserve"))
        orders = random.Random(f"orders {self.seed}")  # apart, so that what else a seed draws does not depend on them
        self.weights |= {name: orders.randint(1, 4) for name in ORDERS if orders.random() < 0.5}

    def config(self, depth: int = 2, low: int = 2) -> DispatchConfig:
        """Of this seed, scaled to a quantum of 1000 ns."""
        return DispatchConfig(
            depth,
            low,
            self.random.choice((1, 4, 64)),
            self.random.choice((10, 1000)),
            policy=self.policy,
            quantum_ns=1_000,
            low_slice_ns=self.random.choice((1_000, 2_000)),
            slice_min_ns=100,
            stop_ns=50,
            cores=4,
            aging_ns=3_000 if self.special == "aging" else 0,
            reserve_percent=20 if self.special == "reserve" else 0,
            reserve_window_ns=10_000,
            pace_burst_ns=1_000,
            deadline_lead_ns=5_000,
        )

    def stimulus(self) -> Stimulus | None:
        """The next thing that happens, or None when the drawn action is impossible now."""
        self.now_ns += self.random.choice((0, 1, 10, 1000))
        action = self.random.choices(list(self.weights), list(self.weights.values()))[0]
        made: Stimulus | None = getattr(self, "_" + action)()
        return made

    def drain(self) -> Iterator[Stimulus]:
        """The end: trouble stops, clients send what has not run until it has, the executor finishes everything."""
        while True:
            while self.executor:
                yield self._end_of_head(OK)
            progress = False
            for session in list(self.awaiting):
                progress = True
                yield self._memory_for(session)
            for client in list(self.clients.values()):
                state = self.dispatch.state.sessions.get(client.session)
                if state is None or client.over:
                    continue
                for seq in range(state.next_seq, client.first + client.sent):
                    if seq not in state.waiting and seq not in state.launched and (state.last_seq is None or seq <= state.last_seq):
                        progress = True
                        yield self._arrival(client.session, client.epoch, seq)
            wakeup_ns = self.dispatch.next_wakeup_ns()
            if wakeup_ns is not None and not self.executor:
                progress = True
                self.now_ns = max(self.now_ns, wakeup_ns)
                yield Tick(self.now_ns, wake=True)
            if not progress and not self.executor:
                return

    def hear(self, decisions: list[Decision]) -> None:
        """Carry the decisions out."""
        for decision in decisions:
            if isinstance(decision, Launch):
                if not self.executor:
                    self.head_since_ns = self.now_ns
                self.executor.append(Flying(decision.session, decision.seq, decision.limit_ns))
            elif isinstance(decision, Preempt):
                for flying in self.executor:
                    flying.stop |= (flying.session, flying.seq) == (decision.session, decision.seq)
            elif isinstance(decision, Refuse | Release | Drop) and decision.session in self.clients:
                client = self.clients[decision.session]
                if isinstance(decision, Release):
                    client.over = "released"
                elif isinstance(decision, Refuse) and (decision.seq == -1 or decision.reason in ("session_faulted", "session_closing")):
                    client.over = client.over or decision.reason

    # -- clients -------------------------------------------------------------------------------------------------------------------

    def _open(self) -> Stimulus | None:
        alive = [client for client in self.clients.values() if client.over != "released"]
        if len(alive) >= SESSIONS_MAX:
            return None
        self.opened += 1
        first = self.random.choice((0, 1, 7))
        client = Client(f"s{self.opened}", self.random.choice((1, 1, 5)), first)
        client.kind, client.cores = self.random.randrange(len(KINDS)), self.random.choice((1, 1, 4))
        self.clients[client.session] = client
        return self._opening(client)

    def _opening(self, client: Client) -> Stimulus:
        """Of any priority and weight; some with a latency target (possible, or hardly), some with a pace."""
        priority = self.random.choice((0, 0, 1, 2, 3, 4, 4))
        target_ns = self.random.choice((0, 100_000, 1_000)) if priority == 0 else 0
        pace = self.random.choice((0, 0, 0, 50, 500)) if not target_ns else 0
        weight = self.random.choice((100, 100, 1, 400, 10_000))
        return SessionOpened(self.now_ns, client.session, client.epoch, priority, client.first, b"", weight, target_ns, pace)

    def _restart(self) -> Stimulus | None:
        """A released session comes back in a new epoch, from where it was."""
        gone = [client for client in self.clients.values() if client.over == "released"]
        if not gone:
            return None
        client = self.random.choice(gone)
        client.first += client.sent
        client.sent, client.over, client.closing = 0, "", False
        client.epoch += 1
        self._forget(client.session)
        return self._opening(client)

    def _forget(self, session: str) -> None:
        """The executor closed the session's space."""
        self.refusing.pop(session, None)
        self.unfinished.pop(session, None)
        for key in [key for key in self.left_ns if key[0] == session]:
            del self.left_ns[key]

    def _send(self) -> Stimulus | None:
        client = self._some_client()
        if client is not None and not client.closing:
            self.network.append((client.session, client.epoch, client.first + client.sent))
            client.sent += 1
        return None

    def _lose(self) -> Stimulus | None:
        """A reconnect: what was under way is lost, and everything not known to have run is sent again, from an arbitrary place on."""
        client = self._some_client()
        if client is not None:
            self.network = [packet for packet in self.network if packet[0] != client.session]
            begin = self.random.randint(client.first, client.first + client.sent)
            self.network += [(client.session, client.epoch, seq) for seq in range(begin, client.first + client.sent)]
        return None

    def _close(self) -> Stimulus | None:
        client = self._some_client()
        if client is None or self.random.random() < 0.5:
            return None
        client.closing = True
        last = self.random.choice((-1, client.first + client.sent - 1, client.first + client.sent // 2))
        return SessionClosed(self.now_ns, client.session, last)

    def _cancel(self) -> Stimulus | None:
        """Its task is ended: what runs is to stop."""
        client = self._some_client()
        if client is None or self.random.random() < 0.7:
            return None
        client.closing = True
        return SessionClosed(self.now_ns, client.session, -1, stop=True)

    def _prioritise(self) -> Stimulus | None:
        client = self._some_client()
        name = client.session if client is not None else "nobody"
        return PriorityChanged(self.now_ns, name, self.random.randrange(5))

    # -- network -------------------------------------------------------------------------------------------------------------------

    def _deliver(self) -> Stimulus | None:
        return self._arrival(*self.network.pop(0)) if self.network else None

    def _reorder(self) -> Stimulus | None:
        return self._arrival(*self.network.pop(self.random.randrange(len(self.network)))) if self.network else None

    def _repeat(self) -> Stimulus | None:
        if self.network:
            self.network.append(self.random.choice(self.network))
        return None

    def _replay(self) -> Stimulus | None:
        """An old batch turns up again, perhaps of an earlier epoch."""
        client = self._some_client()
        if client is None or not client.sent:
            return None
        return self._arrival(client.session, client.epoch - self.random.randrange(2), client.first + self.random.randrange(client.sent))

    def _bogus(self) -> Stimulus | None:
        client = self._some_client()
        session = client.session if client is not None else "nobody"
        epoch = client.epoch if client is not None else 1
        return self.random.choice(
            (
                self._arrival("nobody", 1, 0),
                self._arrival(session, epoch + 1, 0),
                self._arrival(session, epoch, -1),
                BatchArrived(self.now_ns, session, epoch, 10**6, 1, b"far"),
                SessionOpened(self.now_ns, "outlaw", 1, 9),
                SessionOpened(self.now_ns, "outlaw", 1, 0, weight=self.random.choice((0, -1, 10_001))),
                SessionOpened(self.now_ns, "outlaw", 1, 0, pace_permille=self.random.choice((-1, 1001))),
                SessionOpened(self.now_ns, "outlaw", 1, self.random.choice((0, 1)), sla_ns=-5),
                SessionOpened(self.now_ns, "outlaw", 1, 2, sla_ns=100_000),
                SessionOpened(self.now_ns, "outlaw", 1, 0, sla_ns=100_000, pace_permille=10),
                SessionOpened(self.now_ns, "outlaw", 1, 0, sla_ns=50),
                MemoryReady(self.now_ns, session),
                SessionClosed(self.now_ns, "nobody", 3),
            )
        )

    def _arrival(self, session: str, epoch: int, seq: int) -> Stimulus:
        return BatchArrived(self.now_ns, session, epoch, seq, 1 + seq % 7, f"{session}.{seq}".encode())

    # -- executor ------------------------------------------------------------------------------------------------------------------

    def _finish(self) -> Stimulus | None:
        return self._end_of_head(OK) if self.executor else None

    def _fault(self) -> Stimulus | None:
        return self._end_of_head(FAULT) if self.executor and self.random.random() < 0.1 else None

    def _pop(self) -> Flying:
        self.head_since_ns = self.now_ns
        return self.executor.popleft()

    def _end_of_head(self, outcome: int) -> Stimulus:
        """The executor works strictly in order. What came behind a launch it could not run, or did not run to its end, it gives back."""
        head = self.executor[0]
        session, seq = head.session, head.seq
        if session in self.refusing and self.refusing[session] != seq:
            self._pop()
            return LaunchReturned(self.now_ns, session, seq, False)
        if self.unfinished.get(session, seq) != seq or (head.stop and self.random.random() < 0.5):
            self._pop()  # it is behind an unfinished one, or was stopped before it began
            self.unfinished.setdefault(session, seq)
            return LaunchStopped(self.now_ns, session, seq, 0, 0)
        self.refusing.pop(session, None)
        client = self.clients[session]
        low_ns, high_ns = KINDS[client.kind]
        left_ns = self.left_ns.setdefault((session, seq), self.random.randint(low_ns, high_ns))
        wall_ns = left_ns if outcome == OK else self.random.randint(0, left_ns)
        if head.limit_ns:
            wall_ns = min(wall_ns, head.limit_ns + self.random.choice((0, 0, 30)))
        if head.stop:
            wall_ns = min(wall_ns, max(1, self.now_ns - self.head_since_ns))
        self.now_ns = max(self.now_ns, self.head_since_ns + wall_ns)
        self._pop()
        core_ns = wall_ns * self.random.randint(1, client.cores)
        if outcome == OK and wall_ns < left_ns:
            self.left_ns[session, seq] = left_ns - wall_ns
            self.unfinished[session] = seq
            return LaunchStopped(self.now_ns, session, seq, core_ns, wall_ns)
        self.unfinished.pop(session, None)
        if outcome == FAULT:
            self.refusing[session] = None
        return LaunchFinished(self.now_ns, session, seq, core_ns, outcome, wall_ns)

    def _resend(self) -> Stimulus | None:
        """The head lacks a body; the session sends it again."""
        if not self._untouched_head():
            return None
        head = self._pop()
        self.refusing[head.session] = head.seq
        self.network.append((head.session, self.clients[head.session].epoch, head.seq))
        return LaunchReturned(self.now_ns, head.session, head.seq, True)

    def _await(self) -> Stimulus | None:
        """There is no memory for the head now."""
        if not self._untouched_head():
            return None
        head = self._pop()
        self.refusing[head.session] = head.seq
        self.awaiting.append(head.session)
        return LaunchReturned(self.now_ns, head.session, head.seq, False, True)

    def _untouched_head(self) -> bool:
        """Is there a head, and has nothing of it run?"""
        if not self.executor or self.executor[0].session in self.refusing or self.executor[0].session in self.unfinished:
            return False
        return (self.executor[0].session, self.executor[0].seq) not in self.left_ns

    def _memory(self) -> Stimulus | None:
        return self._memory_for(self.random.choice(self.awaiting)) if self.awaiting else None

    def _memory_for(self, session: str) -> Stimulus:
        self.awaiting.remove(session)
        return MemoryReady(self.now_ns, session)

    def _stray(self) -> Stimulus | None:
        """A spurious stop (its word is shared by a whole priority)."""
        if self.executor:
            self.random.choice(list(self.executor)).stop = True
        return None

    # -- operator ------------------------------------------------------------------------------------------------------------------

    def _configure(self) -> Stimulus | None:
        depth = self.random.randint(1, 4)
        return ConfigChanged(self.now_ns, self.config(depth, self.random.randint(1, depth)))

    def _tick(self) -> Stimulus | None:
        return Tick(self.now_ns, wake=self.random.random() < 0.5)

    def _some_client(self) -> Client | None:
        alive = [client for client in self.clients.values() if not client.over]
        return self.random.choice(alive) if alive else None


def run(seed: int, dispatch: Dispatch, actions: int) -> Iterator[Step]:
    """Run a world of ``actions`` drawn actions and its drain; yields each stimulus with the decisions it gave."""
    world = World(seed, dispatch)
    first = ConfigChanged(0, world.config())
    yield first, dispatch.on(first)
    for _ in range(actions):
        stimulus = world.stimulus()
        if stimulus is not None:
            decisions = dispatch.on(stimulus)
            world.hear(decisions)
            yield stimulus, decisions
    for step, stimulus in enumerate(world.drain()):
        if step == DRAIN_STEPS_MAX:
            raise Livelock(f"seed {seed}: the drain does not end")
        decisions = dispatch.on(stimulus)
        world.hear(decisions)
        yield stimulus, decisions
