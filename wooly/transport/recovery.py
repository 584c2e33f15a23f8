"""Keeping a session alive: a watch of its node, and building it again after the node lost its memory, or has ended it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

import msgspec

from bus_schemas import faults
from bus_schemas.session import CloseSession, Pong, SessionClosed
from wooly import progress
from wooly.errors import NodeLostError, ProtocolError, WoolyError, from_fault
from wooly.transport.bus import NoAnswer
from wooly.transport.data_port import DataPort
from wooly.transport.opening import Lost, Opening
from wooly.transport.replay import Kept
from wooly.transport.session_state import PING_S, RemoteSession, Sent, SessionState

SUBSCRIBE_S: Final = 20.0
CLOSE_S: Final = 8.0
_REBUILDS_MAX: Final = 3
"""A session that is lost so often without a new answer is over: the cause may be one of its batches."""
_WATCH_S: Final = 0.5
_DOUBT_S: Final = 0.1
_SILENCE_S: Final = 7.0
"""A node is not lost before it has answered no ping for this long."""
_REFUSED_S: Final = 20.0
"""How long the bus may refuse our key: it refuses all keys while no controller runs."""
_LEASE_S: Final = 5.0
"""Between two pings for the lease, at most."""
_LOOK_S: Final = 1.0
"""Between two questions whether the task is placed elsewhere."""
_FROZEN_S: Final = 2 * (PING_S + _WATCH_S)
"""When the watch sleeps longer, this process was suspended: that is no silence of the node."""
_STALLED_S: Final = 2.0
_UNKNOWN: Final = "the node no longer knows this session: its lease ran out, or the node started anew"


class Rebuild:
    """Opens sessions in the place of one that is lost, and repeats its batches there."""

    def __init__(self, state: SessionState, opening: Opening | None, on_done: Callable[[bytes], None]) -> None:
        """``on_done``: called with the answers of sessions that were opened."""
        self._state, self.opening, self._on_done = state, opening, on_done
        #: the task is to leave the node
        self._displaced = False
        #: the last session that was ended, because another one takes its place
        self._left = ""
        #: totals of the sessions that were left
        self._before: list[SessionClosed] = []

    def lose(self, session: str, fault: WoolyError, *, displaced: bool = False) -> None:
        """(any thread) The node no longer holds the memory of this session, or does not answer and its task is placed elsewhere, or has
        ended it because the task is to run elsewhere (``displaced``): it is built again, or over."""
        state = self._state
        with state.changed:
            if state.left or state.fault is not None or state.lost == session or state.remote.session != session:
                return  # over, or known
            state.lost, self._displaced = session, displaced
            state.changed.notify_all()
            if state.rebuilding:
                return
            state.rebuilding = can = state.log.whole and state.wait_s > 0
        if can:
            threading.Thread(target=self._build_again, args=(fault,), name="wooly rebuild", daemon=True).start()
        else:
            state.settle(self._final(fault))

    def _final(self, fault: WoolyError) -> WoolyError:
        """``fault``, with the reason why the session is over."""
        if self._state.log.lack:
            fault.add_note(f"wooly: the session could not be built again: {self._state.log.lack}")
        return fault

    def _build_again(self, fault: WoolyError) -> None:
        """Open sessions in the place of the lost one until one has repeated all batches, or ``fault`` is final."""
        state, name = self._state, self._state.remote.node.name
        began_s = time.monotonic()
        what = f"the session leaves node {name}" if self._displaced else f"node {name} lost the session's memory"
        progress.say(f"wooly: {what}; repeating {len(state.log)} batches")
        try:
            while True:
                state.attempts += not self._displaced
                if state.attempts > _REBUILDS_MAX or not state.log.whole:  # new answers may have been too much for the log
                    raise self._final(fault)
                if self._repeat_all():
                    break
        except Exception as error:  # whatever it is, nothing may wait for this session any more
            self.withdraw(CLOSE_S)
            with state.changed:
                state.rebuilding = False
            state.settle(error if isinstance(error, WoolyError) else fault)
            if not isinstance(error, WoolyError | NoAnswer | TimeoutError) and not state.left:
                raise  # the loop of a bus that was left is closed, all else is a defect
            return
        progress.say(f"wooly: continuing on node {state.remote.node.name} after {time.monotonic() - began_s:.0f} s")

    def _repeat_all(self) -> bool:
        """Send every batch so far to a new session, and those that were not answered; False: that is lost as well."""
        assert self.opening is not None
        state, log = self._state, self._state.log
        restored = log.restore()
        skipped = log.base - len(restored)
        lost, remote = state.lost, state.remote
        shared = max(0, state.shared - skipped)
        ended = Lost(lost, skipped - remote.skipped, self._last_executed() - skipped, self._displaced, shared, log.base)

        def check() -> None:
            state.check_left()
            if ended.displaced and self._left != lost:
                self.leave_books(remote)  # else its task would not be placed elsewhere

        check()
        info = self.opening.open_again(ended, check)
        state.bus.call(state.bus.subscribe(RemoteSession.answers_of(info, state.bus), self._on_done), SUBSCRIBE_S)
        if not ended.displaced:
            self.leave_books(remote)  # not before: the node counts what is repeated by what it knows of this one
        with state.swap, state.changed:
            unanswered = {seq: sent for seq, sent in (state.todo | state.sent).items() if seq not in log}
            state.repeated = {seq: (kept, seq in state.answers) for seq, kept in log}
            state.repeated |= {seq: (Kept(flush, ()), False) for seq, flush in enumerate(restored, skipped + 1)}
            todo = {seq: Sent(seq, kept.again(whole=whole)) for seq, (kept, whole) in state.repeated.items()} | unanswered
            state.todo = OrderedDict(sorted(todo.items()))  # taken from its front, which takes a plain one ever longer
            state.sent.clear()
            for seq in state.answers.keys() & state.repeated.keys():
                state.answers[seq].done = None
                state.answers[seq].event.clear()
            state.envelope_bytes += remote.port.sent_bytes
            state.use(info, skipped)
        state.hear()
        threading.Thread(target=self._relink, args=(remote.port,), name="wooly link", daemon=True).start()
        while True:
            with state.swap, state.changed:
                group = self._next_group()
                if not group:
                    state.rebuilding = state.lost == info.session
                    state.changed.notify_all()
                    return not state.rebuilding
            if not self._repeated(group):
                return False

    def _next_group(self) -> list[Sent]:
        """Batches that are sent together: half of what may be under way, or up to one with uploads. Empty: all were sent."""
        state, group = self._state, list[Sent]()
        for sent in state.todo.values():
            group.append(sent)
            if sent.flush.uploads or 2 * len(group) >= state.remote.info.limits.outstanding_batches_max:
                break
        return group

    def _last_executed(self) -> int:
        """The last batch that may have been executed."""
        state = self._state
        with state.changed:
            return max(state.log.last, *state.sent, *(seq for seq, sent in state.todo.items() if sent.data), 0)

    def leave_books(self, remote: RemoteSession) -> None:
        """End a session that is lost, or was left; its totals are for people."""
        with contextlib.suppress(NoAnswer, TimeoutError, msgspec.DecodeError):
            self._before.append(self._state.bus.call(remote.close(CloseSession(remote.session, "displaced"), PING_S), 2 * PING_S))
            self._left = remote.session

    def _relink(self, before: DataPort) -> None:
        self._state.remote.port.open()
        before.close()

    def _repeated(self, group: list[Sent]) -> bool:
        """Send batches to the new session, once there is room for all; False: that is lost as well."""
        state, remote = self._state, self._state.remote
        with state.changed:
            while not state.in_reach(group[-1].seq) and state.lost != remote.session:
                state.changed.wait(1.0)
                state.raise_fault()
        try:
            for sent in group:
                sent.uploads = state.upload(sent.flush.uploads)
        except WoolyError:
            if state.moved(remote.session):
                return False
            raise
        with state.swap, state.changed:
            state.raise_fault()
            if state.lost == remote.session:
                return False
            for sent in group:
                sent.data = remote.encoder.encode(sent.seq - remote.skipped, sent.flush, sent.uploads)
                sent.attempt, sent.sent_s = 0, time.monotonic()
                state.todo.pop(sent.seq)
                state.sent[sent.seq] = sent
                state.envelope_bytes += len(sent.data)
            if not state.halt:
                state.bus.post(state.send_in_order, group)
        return True

    def withdraw(self, timeout_s: float) -> None:
        """The session is over. If it was lost, and nothing took its place, its task may wait for one, in vain."""
        if self.opening is not None and self._state.lost == self._state.remote.session:
            self.opening.withdraw(timeout_s)

    def totals(self, last: SessionClosed) -> SessionClosed:
        """Of all sessions one after the other, with the digest of the last."""
        names = [name for name, field in SessionClosed.__annotations__.items() if field in (int, "int")]
        return msgspec.structs.replace(last, **{name: sum(getattr(one, name) for one in (*self._before, last)) for name in names})


class Watch:
    """Watches the node of a session, wherever that is. Runs on the bus thread."""

    def __init__(self, state: SessionState, rebuild: Rebuild) -> None:
        self._state, self._rebuild = state, rebuild
        self._looking = False
        self._looked_s = 0.0
        #: quotas whose delays were announced
        self._delays: set[str] = set()

    async def run(self) -> None:
        """Keep the lease, notice silence and loss."""
        state = self._state
        pinged_s, doubtful, now_s = 0.0, False, time.monotonic()
        while state.fault is None and not state.left:  # also while a script that has ended waits for its last answers
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_DOUBT_S if doubtful else _WATCH_S):  # (wait_for may forget a cancellation)
                    await state.shaken.wait()
            doubtful |= state.shaken.is_set()
            state.shaken.clear()
            before_s, now_s = now_s, time.monotonic()
            if now_s - before_s > _FROZEN_S:
                state.heard_s += now_s - before_s
            with state.changed:
                oldest = min(state.sent.values(), key=lambda sent: sent.seq, default=None)
            asking = oldest is not None and (doubtful or now_s - oldest.sent_s > 2 * _WATCH_S)
            if asking or doubtful or now_s - pinged_s > min(state.remote.info.lease_ms / 6000, _LEASE_S):
                pinged_s = now_s
                doubtful = not await self._ping(oldest.seq - 1 if asking and oldest is not None else -1)

    async def _ping(self, seq_seen: int) -> bool:
        """Ping, and with ``seq_seen`` ask for answers that were lost on the way; did the node answer?"""
        state, remote = self._state, self._state.remote
        try:
            self._on_pong(await remote.ping(seq_seen), remote)
        except NoAnswer:
            silent_s = time.monotonic() - state.heard_s
            if state.lost == remote.session:
                return False  # another one takes its place, for which there is a time of its own
            if silent_s > max(_SILENCE_S, min(state.wait_s, _REFUSED_S) if state.bus.refused else state.wait_s):
                state.settle(self._silence(silent_s))
            else:
                state.outage.lasts(
                    f"node {remote.node.name} does not answer" if state.bus.connected else "the connection to the bus is lost"
                )
                if silent_s > _SILENCE_S and state.log.whole:
                    self._look_elsewhere(remote.session)
            return False
        except msgspec.DecodeError as error:
            state.settle(ProtocolError(f"the node's pong is unreadable ({error}); client and node are of different versions"))
        return True

    def _look_elsewhere(self, session: str) -> None:
        """Ask, beside all else, whether the task of a node that does not answer is placed elsewhere."""
        now_s = time.monotonic()
        if self._rebuild.opening is None or self._looking or now_s - self._looked_s < _LOOK_S:
            return
        self._looked_s, self._looking = now_s, True
        threading.Thread(target=self._look, args=(self._rebuild.opening, session), name="wooly look", daemon=True).start()

    def _look(self, opening: Opening, session: str) -> None:
        try:
            if opening.displaced():
                self._rebuild.lose(session, self._silence(time.monotonic() - self._state.heard_s))
        finally:
            self._looking = False

    def _on_pong(self, pong: Pong, remote: RemoteSession) -> None:
        state = self._state
        state.hear()
        if not pong.session_known:
            self._rebuild.lose(remote.session, from_fault(faults.SESSION_UNKNOWN, _UNKNOWN))
        if not pong.session_known or remote is not state.remote:
            return
        if pong.excess is not None and state.sent and pong.excess.quota not in self._delays:
            self._delays.add(pong.excess.quota)
            progress.delayed(pong.excess, remote.info.tenant)
        overdue_s = state.heard_s - _STALLED_S
        with state.changed:
            seq_next = pong.seq_next + remote.skipped
            lost = [sent for seq, sent in sorted(state.sent.items()) if seq >= seq_next and pong.seq_next and sent.sent_s < overdue_s]
        if lost and lost[0].seq == seq_next and not state.halt:  # the bus lost them, and would take the same names for repeats
            for sent in lost:
                sent.attempt += 1
                sent.sent_s = state.heard_s
                state.send(sent)

    def _silence(self, silent_s: float) -> NodeLostError:
        if self._state.bus.refused:
            return NodeLostError("the bus does not accept our key any more: it was revoked, or has expired; run `wooly login`")
        if not self._state.bus.connected:
            return NodeLostError(
                f"the connection to the bus was lost {silent_s:.0f} s ago and does not come back; is the NATS server alive?"
            )
        name = self._state.remote.node.name
        return NodeLostError(
            f"node {name} has not answered for {silent_s:.0f} s: it was stopped, or cannot be reached; start the script again"
        )
