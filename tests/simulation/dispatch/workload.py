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
    SessionClosed,
    SessionOpened,
    Stimulus,
    Tick,
)
from scheduler.dispatch.decisions import Drop, Launch, Refuse, Release

__all__ = ["Livelock", "Step", "World", "run"]

SESSIONS_MAX: Final = 12
ALWAYS: Final = ("open", "send", "deliver", "finish")
SOMETIMES: Final = ("reorder", "repeat", "lose", "replay", "bogus", "resend", "fault", "close", "configure", "tick", "restart")

DRAIN_STEPS_MAX: Final = 20_000

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


@dataclass
class World:
    """One run. ``enabled`` is the swarm: each seed switches some troubles off entirely. ``refusing``: sessions of which the executor runs
    nothing but the named seq (it lacked a body), or nothing at all (None: it faulted)."""

    seed: int
    dispatch: Dispatch
    now_ns: int = 0
    clients: dict[str, Client] = field(default_factory=dict)
    network: list[tuple[str, int, int]] = field(default_factory=list)
    executor: deque[tuple[str, int]] = field(default_factory=deque)
    refusing: dict[str, int | None] = field(default_factory=dict)
    opened: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        # In the order of the table, never of a set: that differs from process to process, and with it every draw after it.
        self.enabled = [name for name in SOMETIMES if self.random.random() < 0.6]
        self.weights = {name: self.random.randint(1, 10) for name in (*ALWAYS, *self.enabled)}
        self.weights["finish"] += 5

    def stimulus(self) -> Stimulus | None:
        """The next thing that happens, or None when the drawn action is impossible now."""
        self.now_ns += self.random.choice((0, 1, 10, 1000))
        action = self.random.choices(list(self.weights), list(self.weights.values()))[0]
        made: Stimulus | None = getattr(self, "_" + action)()
        return made

    def drain(self) -> Iterator[Stimulus]:
        """The end: trouble stops, clients send what has not run until it has, the executor finishes everything."""
        progress = True
        while progress or self.executor:
            progress = False
            while self.executor:
                yield self._finish_head(OK)
            for client in list(self.clients.values()):
                state = self.dispatch.state.sessions.get(client.session)
                if state is None or client.over:
                    continue
                for seq in range(state.next_seq, client.first + client.sent):
                    if seq not in state.waiting and seq not in state.launched and (state.last_seq is None or seq <= state.last_seq):
                        progress = True
                        yield self._arrival(client.session, client.epoch, seq)

    def hear(self, decisions: list[Decision]) -> None:
        """Carry the decisions out."""
        for decision in decisions:
            if isinstance(decision, Launch):
                self.executor.append((decision.session, decision.seq))
            elif isinstance(decision, Refuse | Release | Drop) and decision.session in self.clients:
                client = self.clients[decision.session]
                if isinstance(decision, Release):
                    client.over = "released"
                elif isinstance(decision, Refuse) and decision.reason in ("session_faulted", "session_closing"):
                    client.over = client.over or decision.reason

    # -- clients -------------------------------------------------------------------------------------------------------------------

    def _open(self) -> Stimulus | None:
        alive = [client for client in self.clients.values() if client.over != "released"]
        if len(alive) >= SESSIONS_MAX:
            return None
        self.opened += 1
        first = self.random.choice((0, 1, 7))
        client = Client(f"s{self.opened}", self.random.choice((1, 1, 5)), first)
        self.clients[client.session] = client
        return SessionOpened(self.now_ns, client.session, client.epoch, self.random.randrange(5), first)

    def _restart(self) -> Stimulus | None:
        """A released session comes back in a new epoch, from where it was."""
        gone = [client for client in self.clients.values() if client.over == "released"]
        if not gone:
            return None
        client = self.random.choice(gone)
        client.first += client.sent
        client.sent, client.over, client.closing = 0, "", False
        client.epoch += 1
        self.refusing.pop(client.session, None)
        return SessionOpened(self.now_ns, client.session, client.epoch, self.random.randrange(5), client.first)

    def _send(self) -> Stimulus | None:
        client = self._some_client()
        if client is not None and not client.closing:
            self.network.append((client.session, client.epoch, client.first + client.sent))
            client.sent += 1
        return None

    def _lose(self) -> Stimulus | None:
        """A reconnect: what was under way is gone, and everything not known to have run is sent again, from an arbitrary place on."""
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
        """An old batch turns up again, perhaps of an earlier life."""
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
                SessionClosed(self.now_ns, "nobody", 3),
            )
        )

    def _arrival(self, session: str, epoch: int, seq: int) -> Stimulus:
        return BatchArrived(self.now_ns, session, epoch, seq, 1 + seq % 7, f"{session}.{seq}".encode())

    # -- executor ------------------------------------------------------------------------------------------------------------------

    def _finish(self) -> Stimulus | None:
        return self._finish_head(OK) if self.executor else None

    def _fault(self) -> Stimulus | None:
        return self._finish_head(FAULT) if self.executor and self.random.random() < 0.1 else None

    def _finish_head(self, outcome: int) -> Stimulus:
        """The executor works strictly in order. What came behind a launch it could not run, or one that faulted, it gives back."""
        session, seq = self.executor.popleft()
        if session in self.refusing and self.refusing[session] != seq:
            return LaunchReturned(self.now_ns, session, seq, False)
        self.refusing.pop(session, None)
        if outcome == FAULT:
            self.refusing[session] = None
        return LaunchFinished(self.now_ns, session, seq, self.random.randrange(1000), outcome)

    def _resend(self) -> Stimulus | None:
        """The head lacks a body; the session sends it again."""
        if not self.executor or self.executor[0][0] in self.refusing:
            return None
        session, seq = self.executor.popleft()
        self.refusing[session] = seq
        self.network.append((session, self.clients[session].epoch, seq))
        return LaunchReturned(self.now_ns, session, seq, True)

    # -- operator ------------------------------------------------------------------------------------------------------------------

    def _configure(self) -> Stimulus | None:
        depth = self.random.randint(1, 4)
        return ConfigChanged(
            self.now_ns,
            DispatchConfig(depth, self.random.randint(1, depth), self.random.choice((1, 4, 64)), self.random.choice((10, 1000))),
        )

    def _tick(self) -> Stimulus | None:
        return Tick(self.now_ns)

    def _some_client(self) -> Client | None:
        alive = [client for client in self.clients.values() if not client.over]
        return self.random.choice(alive) if alive else None


def run(seed: int, dispatch: Dispatch, actions: int) -> Iterator[Step]:
    """Run a world of ``actions`` drawn actions and its drain; yields each stimulus with the decisions it gave."""
    world = World(seed, dispatch)
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
