"""A recorded run as the input of a simulation: its sessions, when batches came and why, what each cost, and the device's overheads.

Costs come from the journal alone. The executor works on one launch after another, so a launch that was handed over at h, after whose
predecessor the dispatcher heard at p, and of whose end it heard at f, took f - max(p, h + way) beside its ``wall_ns`` for itself; *way* is
what it takes to go to the executor and back, hidden behind another launch. It is estimated, session by session, as the difference between
launches that found the device idle and launches that queued. A session whose priority was changed has the last one all along.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from scheduler.dispatch import (
    BatchArrived,
    Decision,
    DispatchState,
    Drop,
    Launch,
    LaunchFinished,
    LaunchReturned,
    LaunchStopped,
    Preempt,
    PriorityChanged,
    Refuse,
    SessionClosed,
    SessionOpened,
    Stimulus,
)
from scheduler.model.clients import Seen, Why, explain_arrivals
from scheduler.model.runs import STAYS, Arrival, BatchOutcome, DeviceCosts, Outcome, Reactions, SessionOutcome, Tenant

_UNCUT_NS: Final = 1_000_000
_UNUSUAL: Final = 3
"""A launch that ran on so many times as long as stopping usually takes, and so much more, could not be stopped."""
_STOP_NS: Final = 100_000
_SLICE_NS: Final = 50_000
_OVER_NS: Final = 250_000
"""Where nothing of the kind is on record."""
_WAYS_MIN: Final = 16
"""Launches of each kind that a session must have before its own overhead is estimated from them."""
_OVERS_MIN: Final = 8
"""Fewer slices that were cut by their limit say nothing about the cutting: they are short batches that the machine held up."""


@dataclass(slots=True)
class _Piece:
    """A launch that ran: handed over, heard of the one before, heard of its own end."""

    session: str
    handed_ns: int
    before_ns: int
    heard_ns: int
    wall_ns: int
    limit_ns: int
    finished: bool
    preempted_ns: int = -1
    beside_ns: int = 0
    """What it took beside its run: see Recording._settle."""

    def apparent_ns(self, way_ns: int) -> int:
        """What it seems to have taken beside its run."""
        return self.heard_ns - max(self.before_ns, self.handed_ns + way_ns) - self.wall_ns


@dataclass(frozen=True, slots=True)
class _Ways:
    """To the executor and back: of sessions that show it, and of all others."""

    usual_ns: int
    own_ns: dict[str, int]

    def of(self, session: str) -> int:
        return self.own_ns.get(session, self.usual_ns)


@dataclass(slots=True)
class _Batch:
    outcome: BatchOutcome
    nbytes: int
    pieces: list[_Piece] = field(default_factory=list)
    result: int = 0
    awaited: bool = False


@dataclass(slots=True)
class _Session:
    opened: SessionOpened
    batches: dict[int, _Batch] = field(default_factory=dict)
    done: list[_Batch] = field(default_factory=list)
    closed_ns: int = -1


@dataclass(slots=True)
class Recording:
    """Feed it the records of one run of a core in order. ``awaited``: batches that waited for memory (their waits are in the record, and
    not in what is made of it)."""

    _sessions: dict[str, _Session] = field(default_factory=dict)
    _flight: dict[tuple[str, int], Launch] = field(default_factory=dict)
    _handed_ns: dict[tuple[str, int], int] = field(default_factory=dict)
    _stopped_ns: dict[tuple[str, int], int] = field(default_factory=dict)
    _order: list[_Piece] = field(default_factory=list)
    _heard_ns: int = 0
    _begin_ns: int = -1
    _end_ns: int = 0
    awaited: int = 0

    def resume(self, state: DispatchState) -> None:
        """Begin with a core that has sessions already (a segment that begins with a snapshot)."""
        for session in state.sessions.values():
            if session.session not in self._sessions and session.live:
                self._sessions[session.session] = _Session(
                    SessionOpened(
                        at_ns=state.now_ns,
                        session=session.session,
                        epoch=session.epoch,
                        priority=session.priority,
                        next_seq=session.next_seq,
                        chain=b"",
                        weight=session.weight,
                        sla_ns=session.sla_ns,
                        pace_permille=session.pace_permille,
                    )
                )

    def take(self, stimulus: Stimulus, decisions: Sequence[Decision]) -> None:
        """One record."""
        self._end_ns = stimulus.at_ns
        if self._begin_ns < 0:
            self._begin_ns = stimulus.at_ns
        refused = {(d.session, d.seq) for d in decisions if isinstance(d, Drop | Refuse)}
        match stimulus:
            case SessionOpened() if (stimulus.session, -1) not in refused:
                self._sessions[stimulus.session] = _Session(stimulus)
            case SessionClosed() if stimulus.session in self._sessions:
                self._sessions[stimulus.session].closed_ns = stimulus.at_ns
            case PriorityChanged() if stimulus.session in self._sessions:
                session = self._sessions[stimulus.session]
                target_ns = 0 if stimulus.priority else session.opened.sla_ns
                session.opened = msgspec.structs.replace(session.opened, priority=stimulus.priority, sla_ns=target_ns)
            case BatchArrived() if stimulus.session in self._sessions and (stimulus.session, stimulus.seq) not in refused:
                batches = self._sessions[stimulus.session].batches
                batches[stimulus.seq] = _Batch(BatchOutcome(stimulus.seq, stimulus.at_ns), stimulus.nbytes)
            case LaunchFinished() | LaunchStopped() | LaunchReturned():
                self._heard(stimulus)
        for decision in decisions:
            if isinstance(decision, Launch):
                self._handed(decision, stimulus.at_ns)
            elif isinstance(decision, Preempt):
                self._stopped_ns[(decision.session, decision.seq)] = stimulus.at_ns

    def _handed(self, launch: Launch, at_ns: int) -> None:
        key = (launch.session, launch.seq)
        self._flight[key], self._handed_ns[key] = launch, at_ns
        session = self._sessions.get(launch.session)
        batch = None if session is None else session.batches.get(launch.seq)
        if batch is not None and batch.outcome.launched_ns < 0:
            batch.outcome.launched_ns = at_ns

    def _heard(self, report: LaunchFinished | LaunchStopped | LaunchReturned) -> None:
        key = (report.session, report.seq)
        launch, handed_ns, stopped_ns = self._flight.pop(key, None), self._handed_ns.pop(key, 0), self._stopped_ns.pop(key, -1)
        before_ns, self._heard_ns = self._heard_ns, report.at_ns
        session = self._sessions.get(report.session)
        batch = None if session is None else session.batches.get(report.seq)
        if session is None or batch is None or launch is None:
            return
        if isinstance(report, LaunchReturned):
            self.awaited += report.memory and not batch.awaited
            batch.awaited |= report.memory
            return
        finished = isinstance(report, LaunchFinished)
        if report.wall_ns or finished:
            batch.pieces.append(
                _Piece(
                    session=report.session,
                    handed_ns=handed_ns,
                    before_ns=before_ns,
                    heard_ns=report.at_ns,
                    wall_ns=report.wall_ns,
                    limit_ns=launch.limit_ns,
                    finished=finished,
                    preempted_ns=stopped_ns,
                )
            )
            self._order.append(batch.pieces[-1])
            batch.outcome.slices += 1
        batch.outcome.core_ns += report.core_ns
        batch.outcome.wall_ns += report.wall_ns
        batch.outcome.preempted += stopped_ns >= 0
        if isinstance(report, LaunchFinished):
            batch.outcome.finished_ns = report.at_ns
            batch.result = report.outcome
            session.done.append(session.batches.pop(report.seq))

    # -- what it comes to ----------------------------------------------------------------------------------------------------------

    def outcome(self, busy_ns: int, fed_ns: int) -> Outcome:
        """The recorded run itself; the totals are the core's."""
        out = Outcome(begin_ns=max(0, self._begin_ns), end_ns=self._end_ns, busy_ns=busy_ns, fed_ns=fed_ns)
        for name, session in self._sessions.items():
            out.sessions[name] = SessionOutcome(name, session.opened.priority, [batch.outcome for batch in session.done])
            out.unfinished += len(session.batches)
        return out

    def inputs(self) -> tuple[list[Tenant], list[Arrival], DeviceCosts]:
        """The same work for a virtual run: batches that finished, by session renumbered from 0."""
        costs, ways = self.costs(), self._ways()
        tenants, arrivals = [], []
        for name, session in self._sessions.items():
            opened = session.opened
            last_ns = session.done[-1].outcome.finished_ns if session.done else opened.at_ns
            closes = STAYS if session.closed_ns < 0 else max(0, session.closed_ns - last_ns)
            seen = [Seen(batch.outcome.arrived_ns, batch.outcome.finished_ns) for batch in session.done]
            whys = explain_arrivals(seen)
            tenants.append(
                Tenant(
                    session=name,
                    priority=opened.priority,
                    weight=opened.weight,
                    sla_ns=opened.sla_ns,
                    pace_permille=opened.pace_permille,
                    open_ns=opened.at_ns,
                    close_after_ns=closes,
                    reactions=_reactions(seen, whys),
                )
            )
            for seq, (batch, why) in enumerate(zip(session.done, whys, strict=True)):
                beside_ns = sum(piece.beside_ns for piece in batch.pieces) - (len(batch.pieces) - 1) * costs.slice_ns
                arrivals.append(
                    Arrival(
                        session=name,
                        seq=seq,
                        wall_ns=batch.outcome.wall_ns,
                        core_ns=batch.outcome.core_ns,
                        at_ns=why.at_ns,
                        after_seq=why.after_seq,
                        think_ns=why.think_ns,
                        gap_ns=why.gap_ns,
                        overhead_ns=max(0, beside_ns),
                        way_ns=ways.of(name),
                        nbytes=batch.nbytes,
                        grain_ns=_grain(batch, costs),
                        outcome=batch.result,
                        reacts=why.reacts,
                    )
                )
        return tenants, arrivals, costs

    def costs(self) -> DeviceCosts:
        """What the device takes beside running, measured on this record."""
        ways = self._ways()
        self._settle(ways)
        later, stops, overs = [], [], []
        for piece, index in self._pieces():
            if index:
                later.append(piece.beside_ns)
            if piece.finished:
                continue
            if piece.preempted_ns >= 0:
                stops.append(max(0, piece.heard_ns - piece.preempted_ns - ways.of(piece.session) // 2))
            elif piece.limit_ns:
                overs.append(piece.wall_ns - piece.limit_ns)
        half_ns = ways.usual_ns // 2
        return DeviceCosts(
            ways.usual_ns - half_ns,
            half_ns,
            _mean(later, _SLICE_NS),
            _mean(stops, _STOP_NS),
            _median(overs, 0) if len(overs) >= _OVERS_MIN else _OVER_NS,
        )

    def _settle(self, ways: _Ways) -> None:
        """What each launch took beside its run. Where a launch seems to have taken less than nothing, the report of the
        one before it reached the dispatcher late (both together): then that one took so much less."""
        late_ns = 0
        for piece in reversed(self._order):
            way_ns = ways.of(piece.session)
            own_ns = piece.apparent_ns(way_ns) - late_ns
            piece.beside_ns = max(0, own_ns)
            late_ns = max(0, -own_ns) if piece.before_ns > piece.handed_ns + way_ns else 0

    def _pieces(self) -> list[tuple[_Piece, int]]:
        """Every launch that ran, with its number within its batch."""
        return [(piece, index) for session in self._sessions.values() for batch in session.done for index, piece in enumerate(batch.pieces)]

    def _ways(self) -> _Ways:
        """To the executor and back, by session: the median of launches into an idle device less that of launches that had queued, where it
        has enough of both. For the others that of the session with the most behind it; without any, half of the least that an idle launch
        took beside its run."""
        own, usual_ns, weight, least_ns = {}, 0, 0, -1
        for name, session in self._sessions.items():
            idle, queued = [], []
            for piece in (batch.pieces[0] for batch in session.done if batch.pieces):
                beside_ns = piece.apparent_ns(0)
                if piece.handed_ns >= piece.before_ns:
                    idle.append(beside_ns)
                    least_ns = beside_ns if least_ns < 0 else min(least_ns, beside_ns)
                elif piece.before_ns - piece.handed_ns > beside_ns:
                    queued.append(beside_ns)
            behind = min(len(idle), len(queued))
            way_ns = max(0, _median(idle, 0) - _median(queued, 0))
            if behind >= _WAYS_MIN:
                own[name] = way_ns
            if behind > weight:
                usual_ns, weight = way_ns, behind
        return _Ways(usual_ns if weight else max(0, least_ns) // 2, own)


def _reactions(seen: Sequence[Seen], whys: Sequence[Why]) -> Reactions | None:
    took = [(seen[why.after_seq].finished_ns, why.think_ns) for why in whys if why.reacts]
    return Reactions(tuple(heard_ns for heard_ns, _ in took), tuple(took_ns for _, took_ns in took)) if took else None


def _grain(batch: _Batch, costs: DeviceCosts) -> int:
    """0, or how long the batch ran on to its end at most when it was to stop, if that is far more than usual: it has stretches that cannot
    be stopped."""
    longest_ns = 0
    for piece in batch.pieces:
        after_ns = piece.heard_ns - piece.preempted_ns - costs.report_ns
        if piece.finished and piece.preempted_ns >= 0 and after_ns > _UNUSUAL * costs.stop_ns + _UNCUT_NS:
            longest_ns = max(longest_ns, min(after_ns, piece.wall_ns))
    return longest_ns


def _mean(values: list[int], otherwise: int) -> int:
    return sum(values) // len(values) if values else otherwise


def _median(values: list[int], otherwise: int) -> int:
    return sorted(values)[len(values) // 2] if values else otherwise
