"""The memory core of one device: stimuli in, decisions out.

A batch asks once for all it needs of the device. It gets it (Allow), or is asked to try again later (Await, then MemoryReady), or is
refused. Memory is made free by swapping out idle sessions (``victims`` has the rules). Moves take time, and hold up only the batch that
waits for them: what is free or comes free for a waiting batch is set aside for it (``grant``), and a move begins only when all the moves
that begin together will give the batch all it lacks. So no two batches keep each other from being served by holding parts.

The *reserve* is what shall stay free for the next allocation: when an allowed batch leaves less, idle sessions are swapped out beside it
until the reserve is there again. It is a target, not a limit: a batch that fits the device is not refused to keep it.

**No starvation.** (1) A batch waits only while what it needs is *reachable* (``victims.reachable_bytes``): free, on its way, or
held by sessions that may be swapped out for it. (2) A waiting session does not use the device, so after ``idle_ns`` it is itself eligible;
a running one ends its batch; one with memory set aside runs next. So for every waiting batch there is a time after which each session it
counts on is either about to run, or eligible. (3) The one that asked first among the highest priority is served first, and is then served
whole. (4) Patience bounds it all: a batch whose time is over asks again and is refused.

A session of higher priority takes what is set aside for a lower one that has not begun; that one waits again, its patience running on.
"""

from __future__ import annotations

from typing import Final

from scheduler.errors import StimulusError
from scheduler.vram import victims
from scheduler.vram.decisions import Allow, Await, Decision, MemoryReady, Refuse, SwapIn, SwapOut
from scheduler.vram.quota import SESSION_UNKNOWN, Verdict, check_quota, device_full
from scheduler.vram.state import ASKED, COLLECTING, COMING, READY, WAITING, SessionMemory, VramState, Waiter
from scheduler.vram.stimuli import (
    AllocationRequested,
    DeviceConfigured,
    Expected,
    Freed,
    Holds,
    PriorityChanged,
    SessionClosed,
    SessionOpened,
    Stimulus,
    SwapFailed,
    SwapLost,
    SwappedIn,
    SwappedOut,
    Tick,
)

__all__ = ["Vram"]

PRIORITY_LOWEST: Final = 4

_OF_NOBODY: Final = (DeviceConfigured, Tick)

_STEP: Final = 8
"""The reserve is filled up by at least this part of it at once, so that who allocates little by little does not swap each time."""


class Vram:
    """One door: only ``on`` changes the state."""

    __slots__ = ("state",)

    def __init__(self, state: VramState | None = None) -> None:
        self.state = state if state is not None else VramState()

    @property
    def next_wakeup_ns(self) -> int | None:
        """When time alone changes something (a Tick is due); None: never."""
        state = self.state
        times: list[int] = []
        for name in state.waiting:
            session = state.sessions[name]
            if session.waiter is not None and session.waiter.state == WAITING and not _gives_to_others(session):
                times.append(session.waiter.until_ns)
                soonest = victims.next_eligible_ns(state, session, state.served_ns)
                if soonest is not None:
                    times.append(soonest)
        return min(times, default=None)

    def on(self, stimulus: Stimulus) -> list[Decision]:
        """Raises StimulusError, the state unchanged, when it cannot have happened."""
        self._check(stimulus)
        state = self.state
        state.now_ns = stimulus.at_ns
        match stimulus:
            case AllocationRequested():
                return self._request(stimulus)
            case Holds():
                self._holds(stimulus)
            case Freed(_, name, nbytes):
                self._change(state.sessions[name], held=-nbytes)
            case SwappedOut(_, name, nbytes, dropped) | SwapFailed(_, name, nbytes, dropped):
                return self._left(state.sessions[name], nbytes, dropped, failed=isinstance(stimulus, SwapFailed)) + self._serve()
            case SwappedIn(_, name, nbytes):
                return self._came(state.sessions[name], nbytes) + self._serve()
            case SwapLost(_, name, nbytes):
                return self._lost(state.sessions[name], nbytes) + self._serve()
            case Expected(_, name, nbytes):
                return self._expected(state.sessions[name], nbytes)
            case SessionOpened():
                session = SessionMemory(
                    stimulus.session, stimulus.priority, stimulus.quota_bytes, stimulus.swap, stimulus.wait_ns, stimulus.at_ns
                )
                state.sessions[stimulus.session] = session
                self._change(session, held=stimulus.use_bytes)
            case SessionClosed():
                self._closed(stimulus)
            case PriorityChanged(_, name, priority):
                state.sessions[name].priority = priority
                state.waiting.sort(key=self._rank)
            case DeviceConfigured():
                state.physical_bytes, state.reserve_bytes = stimulus.physical_bytes, stimulus.reserve_bytes
                state.swap_bytes, state.idle_ns, state.retry_ns = stimulus.swap_bytes, stimulus.idle_ns, stimulus.retry_ns
            case Tick():
                pass
        return self._serve()

    def _check(self, stimulus: Stimulus) -> None:
        state = self.state
        if stimulus.at_ns < state.now_ns:
            raise StimulusError(f"{stimulus!r}: time ran backwards, the last stimulus was at {state.now_ns} ns")
        if isinstance(stimulus, _OF_NOBODY):
            return
        session = state.sessions.get(stimulus.session)
        wrong = ""
        match stimulus:
            case SessionOpened():
                wrong = "it is open" if session is not None else ""
            case SessionClosed():
                pass
            case AllocationRequested():
                if min(stimulus.nbytes, stimulus.back_bytes, stimulus.pinned_bytes, stimulus.attached_bytes, stimulus.copied_bytes) < 0:
                    wrong = "bytes are not negative"
            case _ if session is None:
                wrong = "it is not open"
            case PriorityChanged(_, _, priority):
                wrong = "" if 0 <= priority <= PRIORITY_LOWEST else f"priorities are 0 to {PRIORITY_LOWEST}"
            case Freed(_, _, nbytes):
                if not 0 <= nbytes <= session.held:
                    wrong = f"the session holds {session.held} bytes"
            case Holds():
                if session.moving:
                    wrong = "its memory is moving"
            case SwappedOut() | SwapFailed():
                if not session.leaving or stimulus.nbytes + stimulus.dropped_bytes > session.held:
                    wrong = f"{session.leaving} bytes are leaving, it holds {session.held} bytes"
            case SwappedIn() | SwapLost():
                if stimulus.nbytes > session.coming:
                    wrong = f"{session.coming} bytes were coming"
        if wrong:
            raise StimulusError(f"{stimulus!r}: {wrong}")

    # -- a batch asks ----------------------------------------------------------------------------------------------------------------

    def _request(self, asked: AllocationRequested) -> list[Decision]:
        state = self.state
        session = state.sessions.get(asked.session)
        if session is None:
            text = f"session {asked.session} is not open on this device"
            return [Refuse(asked.session, Verdict(SESSION_UNKNOWN, 0, 0, asked.nbytes, state.free_bytes, text))]
        waiter = session.waiter
        if waiter is not None and waiter.state in (COLLECTING, COMING):
            return [Await(asked.session, waiter.until_ns)]  # it asks too early
        since_ns = state.now_ns if waiter is None else waiter.since_ns
        new_bytes = asked.nbytes + asked.copied_bytes
        waiter = Waiter(ASKED, new_bytes, asked.back_bytes, asked.pinned_bytes, since_ns, since_ns + session.wait_ns)
        self._forget_waiter(session)
        need_bytes = waiter.need_bytes
        by_quota = check_quota(session.quota, session.logical, asked.nbytes + asked.attached_bytes, asked.nbytes + asked.attached_bytes)
        if by_quota.reason:
            return [Refuse(asked.session, by_quota)]
        if session.moving:
            return self._wait(session, waiter, COMING)
        self._revoke(session, need_bytes)
        if need_bytes == 0 or need_bytes <= state.free_bytes:
            return self._granted(session, waiter)
        self._keep_waiter(session, waiter)
        moves = self._collect(session, waiter)
        if moves is not None:
            return [*moves, Await(asked.session, waiter.until_ns)]
        if state.now_ns < waiter.until_ns and need_bytes <= victims.reachable_bytes(state, session, session.held - waiter.pinned_bytes):
            waiter.state = WAITING
            return [Await(asked.session, waiter.until_ns)]
        self._forget_waiter(session)
        return [Refuse(asked.session, device_full(session.quota, session.logical, need_bytes, state.free_bytes, state.now_ns - since_ns))]

    def _granted(self, session: SessionMemory, waiter: Waiter) -> list[Decision]:
        """There is room for all that a batch asked for."""
        if waiter.back_bytes:
            self._change(session, grant=waiter.new_bytes, coming=waiter.back_bytes)
            return [SwapIn(session.session, waiter.back_bytes), *self._wait(session, waiter, COMING)]
        session.under_way = True
        session.used_ns = self.state.now_ns
        self._change(session, held=waiter.new_bytes)
        return [Allow(session.session, waiter.new_bytes), *(self._fill_reserve(session) if waiter.new_bytes else [])]

    def _fill_reserve(self, requester: SessionMemory) -> list[Decision]:
        """Bring back the reserve that an allocation used, as far as eligible sessions can give it."""
        state = self.state
        lacking = state.reserve_bytes - state.free_bytes - sum(nbytes for _, nbytes in self._unclaimed(PRIORITY_LOWEST))
        if lacking <= 0:
            return []
        chosen, _ = victims.plan(state, requester, max(lacking, state.reserve_bytes // _STEP), 0)
        return [self._swap_out(victim, nbytes, "") for victim, nbytes in chosen]

    def _wait(self, session: SessionMemory, waiter: Waiter, how: int) -> list[Decision]:
        waiter.state = how
        self._keep_waiter(session, waiter)
        return [Await(session.session, waiter.until_ns)]

    def _keep_waiter(self, session: SessionMemory, waiter: Waiter) -> None:
        session.waiter = waiter
        self.state.waiting.append(session.session)
        self.state.waiting.sort(key=self._rank)

    def _rank(self, name: str) -> tuple[int, int, str]:
        session = self.state.sessions[name]
        assert session.waiter is not None
        return session.priority, session.waiter.since_ns, name

    def _forget_waiter(self, session: SessionMemory) -> None:
        """What is set aside for it is free again."""
        if session.waiter is not None:
            session.waiter = None
            self.state.waiting.remove(session.session)
        self._change(session, grant=-session.grant)

    def _revoke(self, session: SessionMemory, need_bytes: int) -> None:
        """Take what is set aside for batches of lower priority that have not begun, if that is enough."""
        state = self.state
        lower = self._below(session)
        if state.free_bytes < need_bytes <= state.free_bytes + sum(other.grant for other in lower):
            for other in lower:
                if state.free_bytes < need_bytes:
                    self._take_back(other)

    def _below(self, session: SessionMemory) -> list[SessionMemory]:
        """Sessions of lower priority for whose batches something is set aside; the one to be served last comes first."""
        waiting = [self.state.sessions[name] for name in reversed(self.state.waiting)]
        return [s for s in waiting if s.priority > session.priority and s.grant and s.waiter is not None and s.waiter.state != COMING]

    def _take_back(self, session: SessionMemory) -> None:
        assert session.waiter is not None
        session.waiter.state = WAITING
        self._change(session, grant=-session.grant)

    # -- making room -----------------------------------------------------------------------------------------------------------------

    def _collect(self, session: SessionMemory, waiter: Waiter) -> list[Decision] | None:
        """Set aside what is free and begin the moves that give the rest; None, and nothing is changed, when they would not be enough.

        In this order: what is leaving and is not set aside for a batch, what is set aside for or leaves for lower priorities, victims.
        """
        state = self.state
        pending = sum(other.leaving for other in state.sessions.values() if other.leaving_for == session.session)
        short = waiter.need_bytes - session.grant - max(0, state.free_bytes) - pending
        claims, short = _enough([(other, n) for other, n in self._unclaimed(session.priority) if other is not session], short)
        revoked, short = _enough([(other, other.grant) for other in self._below(session)], short)
        chosen: list[tuple[SessionMemory, int]] = []
        if short > 0:
            chosen, missing = victims.plan(state, session, short, session.held - waiter.pinned_bytes, revoked)
            if missing:
                return None
        for other in claims:
            other.leaving_for = session.session
        for other in revoked:
            self._take_back(other)
        waiter.state = COLLECTING
        self._change(session, grant=min(max(0, state.free_bytes), waiter.need_bytes - session.grant))
        return [self._swap_out(victim, nbytes, session.session) for victim, nbytes in chosen]

    def _unclaimed(self, priority: int) -> list[tuple[SessionMemory, int]]:
        """Sessions of which something leaves that no batch waits for, then those for whose memory only batches below ``priority`` wait."""
        free, claimed = [], []
        for session in self.state.sessions.values():
            if session.leaving:
                to = self.state.sessions.get(session.leaving_for)
                if to is None or to.waiter is None or to.waiter.state != COLLECTING:
                    free.append((session, session.leaving))
                elif to.priority > priority:
                    claimed.append((session, session.leaving))
        return free + claimed

    def _swap_out(self, victim: SessionMemory, nbytes: int, for_session: str) -> Decision:
        self.state.turns += 1
        self.state.leaving_bytes += nbytes
        victim.turn = self.state.turns
        victim.leaving, victim.leaving_for = nbytes, for_session
        return SwapOut(victim.session, nbytes, for_session)

    def _serve(self) -> list[Decision]:
        """Serve waiting sessions in order, after memory may have come free or time has passed; again from the first one when a later one
        gave up what was set aside for it."""
        state = self.state
        state.served_ns = state.now_ns
        decisions: list[Decision] = []
        if not state.waiting:
            return decisions
        again = True
        while again:
            again = False
            for name in list(state.waiting):
                session = state.sessions[name]
                waiter = session.waiter
                if waiter is not None and waiter.state in (WAITING, COLLECTING):
                    set_aside = session.grant
                    decisions += self._serve_one(session, waiter)
                    again |= waiter.state == WAITING and session.grant < set_aside
        return decisions

    def _serve_one(self, session: SessionMemory, waiter: Waiter) -> list[Decision]:
        state = self.state
        if _gives_to_others(session):
            return []  # what it needs changes with that: it asks again then
        if waiter.need_bytes - session.grant <= max(0, state.free_bytes):
            if session.leaving:  # its own, for itself: one move of a session at a time
                self._change(session, grant=waiter.need_bytes - session.grant)
                waiter.state = COLLECTING
                return []
            return self._complete(session, waiter)
        moves = self._collect(session, waiter)
        if moves is not None:
            return moves
        self._take_back(session)
        cold_bytes = session.held - waiter.pinned_bytes
        if state.now_ns < waiter.until_ns and waiter.need_bytes <= victims.reachable_bytes(state, session, cold_bytes):
            return []
        waiter.state = ASKED
        return [MemoryReady(session.session)]

    def _complete(self, session: SessionMemory, waiter: Waiter) -> list[Decision]:
        """All that a waiting batch lacks is free now."""
        self._change(session, grant=waiter.need_bytes - session.grant)
        if waiter.back_bytes:
            self._change(session, grant=-waiter.back_bytes, coming=waiter.back_bytes)
            waiter.state = COMING
            return [SwapIn(session.session, waiter.back_bytes)]
        waiter.state = READY
        return [MemoryReady(session.session)]

    # -- what the shell reports --------------------------------------------------------------------------------------------------------

    def _holds(self, now: Holds) -> None:
        state = self.state
        session = state.sessions[now.session]
        if now.over:
            session.under_way = False
            session.used_ns = state.now_ns
            self._forget_waiter(session)
        if now.swapped_bytes < session.swapped:
            self._unbar()
        state.swapped_bytes += now.swapped_bytes - session.swapped
        session.swapped, session.shared = now.swapped_bytes, now.shared_bytes
        self._change(session, held=now.held_bytes - session.held)
        self._share(now.device_shared_bytes)

    def _left(self, victim: SessionMemory, nbytes: int, dropped: int, *, failed: bool) -> list[Decision]:
        state = self.state
        for_itself = victim.leaving_for == victim.session
        state.leaving_bytes -= victim.leaving
        state.swapped_bytes += nbytes
        victim.leaving, victim.leaving_for = 0, ""
        victim.swapped += nbytes
        self._change(victim, held=-nbytes - dropped)
        if failed or nbytes + dropped == 0:
            victim.barred_until_ns = state.now_ns + state.retry_ns
        if for_itself and victim.waiter is not None and victim.waiter.state in (COLLECTING, WAITING):
            return []  # what its batch names stayed: it needs what it asked for
        return self._ask_again(victim)

    def _came(self, session: SessionMemory, nbytes: int) -> list[Decision]:
        state = self.state
        session.used_ns = state.now_ns
        session.swapped -= nbytes
        state.swapped_bytes -= nbytes
        self._change(session, held=nbytes, coming=-session.coming)
        self._unbar()
        waiter = session.waiter
        if waiter is not None and waiter.state == COMING:
            waiter.state = READY
            waiter.back_bytes = max(0, waiter.back_bytes - nbytes)
            waiter.pinned_bytes += nbytes
            return [MemoryReady(session.session)]
        return []

    def _lost(self, session: SessionMemory, nbytes: int) -> list[Decision]:
        """Swapped memory was lost. The session's batch asks again; the shell that executes the decisions ends the session."""
        session.swapped -= nbytes
        self.state.swapped_bytes -= nbytes
        self._change(session, held=nbytes, coming=-session.coming)
        return self._ask_again(session)

    def _ask_again(self, session: SessionMemory) -> list[Decision]:
        """What its waiting batch needs is not what it asked for any longer."""
        waiter = session.waiter
        if waiter is None or waiter.state == ASKED:
            return []
        self._change(session, grant=-session.grant)
        waiter.state = ASKED
        return [MemoryReady(session.session)]

    def _expected(self, session: SessionMemory, nbytes: int) -> list[Decision]:
        """Bring back ahead of its batch what fits beside the reserve, if no batch waits for memory."""
        state = self.state
        nbytes = min(nbytes, session.swapped, state.free_bytes - state.reserve_bytes)
        if nbytes <= 0 or state.waiting or session.under_way or session.moving:
            return []
        self._change(session, coming=nbytes)
        return [SwapIn(session.session, nbytes)]

    def _closed(self, closed: SessionClosed) -> None:
        state = self.state
        session = state.sessions.get(closed.session)
        if session is None:
            return
        self._forget_waiter(session)
        self._change(session, held=-session.held, coming=-session.coming)
        state.swapped_bytes -= session.swapped
        state.leaving_bytes -= session.leaving
        del state.sessions[closed.session]
        self._share(closed.device_shared_bytes)
        self._unbar()

    def _unbar(self) -> None:
        """There is room again where memory is swapped to."""
        for session in self.state.sessions.values():
            session.barred_until_ns = min(session.barred_until_ns, self.state.now_ns)

    def _change(self, session: SessionMemory, *, held: int = 0, coming: int = 0, grant: int = 0) -> None:
        """The only place where a session's part of the device changes."""
        session.held += held
        session.coming += coming
        session.grant += grant
        self.state.used_bytes += held + coming + grant

    def _share(self, device_shared_bytes: int) -> None:
        self.state.used_bytes += device_shared_bytes - self.state.shared_bytes
        self.state.shared_bytes = device_shared_bytes


def _gives_to_others(session: SessionMemory) -> bool:
    """Something of it is leaving for another's sake."""
    return session.leaving > 0 and session.leaving_for != session.session


def _enough(having: list[tuple[SessionMemory, int]], short_bytes: int) -> tuple[list[SessionMemory], int]:
    """The first of these that together have ``short_bytes``, and what is still short then."""
    taken = []
    for session, nbytes in having:
        if short_bytes <= 0:
            break
        taken.append(session)
        short_bytes -= nbytes
    return taken, short_bytes
