"""Moving a session to another node while its script runs (live migration by replay).

A session ahead is opened on the other node, gets an image of the buffers, and runs every batch since in order, while the script uses the
session that it has. Once the one ahead has caught up, the script is held for the last batches, and continues there. Until then nothing of
the session that it has is touched: a move that fails leaves it as it is.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from dataclasses import replace
from typing import Final

import msgspec
from blake3 import blake3

from bus_schemas.batch import Done
from bus_schemas.session import CloseSession, SessionOpened
from wooly import progress
from wooly.errors import WoolyError
from wooly.link import Flush
from wooly.transport.bus import NoAnswer
from wooly.transport.opening import Lost, Opening, Place
from wooly.transport.patience import repeat
from wooly.transport.session_state import PING_S, RemoteSession, Sent, SessionState

__all__ = ["Move", "Stays", "is_near", "mirrored", "pause_s"]

_OPEN_S: Final = 10.0
"""How long the other node may refuse the session for the moment."""
_SUBSCRIBE_S: Final = 20.0
_PUBLISH_S: Final = 4.0
_SILENCE_S: Final = 10.0
"""How long the other node may fail to answer."""
_MOVE_S: Final = 900.0
"""How long a session ahead may take to catch up."""
_STALLED_S: Final = 2.0
_NEAR: Final = 2
_NEAR_S: Final = 0.1
"""How many batches, or how much work of them, the session ahead may still have to run when the script is held."""
_PACE_S_MIN: Final = 0.001
_PACE_S_MAX: Final = 0.25
"""How long one batch of the script is held up at most so that the session ahead gains on it."""
_HOLD_S: Final = 0.5
_HOLD_S_MAX: Final = 8.0
"""How long the script is held for the last batches, at first and at most; it doubles with each try that does not succeed."""
_CLOSES_MAX: Final = 3
UNUSED: Final = "unused"
"""Why a session ahead is closed whose move was given up."""


class Stays(Exception):
    """The session stays where it is, for this reason. Empty: the move is over for a reason of its own, of which nothing is to be said."""


def mirrored(flush: Flush, inline_bytes_max: int) -> Flush:
    """What the session ahead runs of a batch: without the reads whose answers would wait to be fetched."""
    return replace(flush, reads=[read for read in flush.reads if read[2] <= inline_bytes_max], origin=None)


def digests_of(flush: Flush, digests: Sequence[bytes | None], inline_bytes_max: int) -> tuple[bytes | None, ...]:
    """Of the answers of a batch, those that the session ahead gives too."""
    return tuple(digest for read, digest in zip(flush.reads, digests, strict=True) if read[2] <= inline_bytes_max)


def is_near(behind: int, batch_s: float) -> bool:
    """Whether the script may be held: the session ahead is ``behind`` batches back, each of about ``batch_s`` seconds."""
    return behind <= _NEAR or behind * batch_s <= _NEAR_S


def pause_s(since_s: float) -> float:
    """How long the script may be held up for one batch, ``since_s`` after the one before: it keeps half of its speed."""
    return min(_PACE_S_MAX, max(0.0, since_s))


class Move:
    """One try to move a session. ``run`` is called on a thread of its own; ``heard`` and ``answered`` on the bus thread; ``record`` and
    ``pace`` on those of the script."""

    def __init__(
        self,
        state: SessionState,
        opening: Opening,
        *,
        submitting: threading.Lock,
        image: Callable[[bool], None],
        ready: Callable[[], bool],
        on_done: Callable[[bytes], None],
        on_left: Callable[[RemoteSession], None],
    ) -> None:
        """``submitting``: held while batches are submitted. ``image``: takes an image, which holds the script, if that is small or the
        argument is true (``submitting`` is held). ``ready``: whether no answer is left on the node, and the task's other sessions could go
        as well. ``on_done``: takes the answers of the session ahead. ``on_left``: ends the session that was left."""
        self._state, self._opening = state, opening
        self._submitting, self._image, self._ready, self._on_done, self._on_left = submitting, image, ready, on_done, on_left
        self.home = state.remote
        #: the session ahead, once it is open
        self.remote: RemoteSession | None = None
        #: batches that it has not been sent, in order
        self._queue: deque[tuple[int, Flush]] = deque()
        #: those that it has not answered
        self._sent: dict[int, Sent] = {}
        #: digests of answers of each of the two, until the other one has answered as well
        self._home_digests: dict[int, tuple[bytes | None, ...]] = {}
        self._ahead_digests: dict[int, tuple[bytes | None, ...]] = {}
        #: answers that ask for a batch again, with all that it needs
        self._needs: deque[Done] = deque()
        #: the last batch that is in the image to begin with
        self._base = 0
        self._pinged_s = 0.0
        #: of the decision that it moves by
        self.position = -1
        self._batch_s, self._answered_s, self._heard_s = 0.0, time.monotonic(), time.monotonic()
        self._failure = ""
        self._following = False
        self._goal, self._paced_s = 0, time.monotonic()
        #: it has caught up, or has left already
        self.caught_up = False
        #: how it ended: moved, or not
        self.moved = self.over = False

    # -- threads of the script -----------------------------------------------------------------------------------------------------

    def record(self, seq: int, flush: Flush) -> None:
        """The script's session is sent this batch (``swap`` is held)."""
        with self._state.changed:
            self._queue.append((seq, flush))
            self._state.changed.notify_all()

    def pace(self) -> None:
        """Hold up the script a little, so that the session ahead catches up."""
        state = self._state
        with state.changed:
            until_s = time.monotonic() + pause_s(time.monotonic() - self._paced_s)
            while self._following and state.fault is None and self._behind() > max(_NEAR, self._goal):
                left_s = until_s - time.monotonic()
                if left_s < _PACE_S_MIN or time.monotonic() - self._heard_s > _STALLED_S:
                    break
                state.changed.wait(left_s)
            self._goal = max(0, self._behind() - 1)
            self._paced_s = time.monotonic()

    def stop(self, timeout_s: float) -> None:
        """Wait until a move of a session that is closed is over."""
        until_s = time.monotonic() + timeout_s
        with self._state.changed:
            self._state.changed.notify_all()
            while not self.over and time.monotonic() < until_s:
                self._state.changed.wait(0.2)

    # -- (bus thread) --------------------------------------------------------------------------------------------------------------

    def answered(self, seq: int, flush: Flush, done: Done) -> None:
        """The script's session has answered batch ``seq``."""
        digests = tuple(None if read.blob else blake3(read.inline).digest() for read in done.reads)
        with self._state.changed:
            if seq <= self._base:
                return
            if done.fault is not None:
                self._fail(f"batch {seq} was refused")
                return
            self._home_digests[seq] = digests_of(flush, digests, self.home.info.limits.inline_bytes_max)
            self._compare(seq)

    def heard(self, done: Done) -> None:
        """The session ahead has answered."""
        state, remote = self._state, self.remote
        with state.changed:
            if remote is None or done.session != remote.session:
                return
            self._heard_s = time.monotonic()
            if done.needs:
                self._needs.append(done)
            elif done.fault is not None:
                self._fail(f"node {remote.node.name} refused it: {done.fault.message}")
            else:
                seq = done.seq + remote.skipped
                if self._sent.pop(seq, None) is not None:
                    self._batch_s = (3 * self._batch_s + self._heard_s - self._answered_s) / 4
                    self._answered_s = self._heard_s
                    self._ahead_digests[seq] = tuple(None if read.blob else blake3(read.inline).digest() for read in done.reads)
                    self._compare(seq)
            state.changed.notify_all()

    def _compare(self, seq: int) -> None:
        ahead, home = self._ahead_digests.get(seq), self._home_digests.get(seq)
        if ahead is not None and home is not None:
            del self._ahead_digests[seq], self._home_digests[seq]
            if ahead != home:
                self._fail(f"batch {seq} did not give there what it gave here")

    def _fail(self, failure: str) -> None:
        self._failure = self._failure or failure
        self._state.changed.notify_all()

    # -- its own thread ------------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Move the session, or say why it stays."""
        state, home = self._state, self.home.node.name
        began_s = time.monotonic()
        try:
            place, urgent = self._opening.move()
            if place is None:
                raise Stays("")
            self.position = place.position
            if state.log.lack or state.wait_s <= 0:
                raise Stays(f"it cannot be built again: {state.log.lack or 'WOOLY_RECOVERY_WAIT_S is 0'}")
            held_s = self._move(place, urgent=urgent)
            assert self.remote is not None
            progress.say(
                f"wooly: moved from node {home} to node {self.remote.node.name} in {time.monotonic() - began_s:.1f} s; "
                f"the script was held for {held_s:.2f} s"
            )
        except Stays as stays:
            self._give_up(str(stays))
        except (WoolyError, NoAnswer, TimeoutError, msgspec.DecodeError) as error:
            self._give_up(str(error) or type(error).__name__)
        except BaseException:
            self._end()
            raise
        self._end()

    def _end(self) -> None:
        state = self._state
        with state.changed:
            if state.mirror is self:
                state.mirror = None
            self.over = True
            state.changed.notify_all()

    def _give_up(self, reason: str) -> None:
        """The session stays where it is."""
        state, remote = self._state, self.remote
        reason = "" if self._abandoned() else reason
        with state.changed:
            self._following = False
            if state.mirror is self:
                state.mirror = None
            state.changed.notify_all()
        if remote is not None:
            self._close(remote, UNUSED)
            remote.port.close()
        if reason:
            progress.say(f"wooly: the session stays on node {self.home.node.name}: {reason}")
            self._opening.stay(reason)

    def _close(self, remote: RemoteSession, reason: str) -> None:
        for _ in range(_CLOSES_MAX):
            try:
                self._state.bus.call(remote.close(CloseSession(remote.session, reason, -1), PING_S), 2 * PING_S)
                return
            except (NoAnswer, TimeoutError, msgspec.DecodeError):
                continue
            except (RuntimeError, CancelledError):  # the bus was left
                return

    def _abandoned(self) -> bool:
        """Whether the script's session is over, or is another one by now."""
        state = self._state
        return state.left or state.fault is not None or state.rebuilding or state.lost == self.home.session or state.remote is not self.home

    def _check(self) -> None:
        """Raises Stays when the move is to be given up."""
        state, remote = self._state, self.remote
        if self._abandoned():
            raise Stays("")
        if self._failure:
            raise Stays(self._failure)
        if state.halt:
            raise Stays("the tenant's budget is used up")
        if not state.log.whole:
            raise Stays(f"it cannot be built again: {state.log.lack}")
        if remote is not None and time.monotonic() - self._heard_s > _SILENCE_S:
            raise Stays(f"node {remote.node.name} does not answer")

    def _move(self, place: Place, *, urgent: bool) -> float:
        """Move to ``place``, with a new image if that is ``urgent``; for how many seconds the script was held. Raises Stays, and what
        connections raise."""
        state = self._state
        self._check()
        lost, name = Lost(self.home.session, 0, 0), self._opening.new_name()
        info: SessionOpened = repeat(lambda: self._opening.open_ahead(place, name, lost), _OPEN_S, self._check)
        remote = RemoteSession(state.bus, info, 0, wait_s=0.0, check=self._check)
        remote.encoder.repeats = True
        with state.changed:
            self.remote, self._heard_s = remote, time.monotonic()
        progress.say(f"wooly: the session moves to node {remote.node.name}; the script continues on node {self.home.node.name} meanwhile")
        state.bus.call(state.bus.subscribe(RemoteSession.answers_of(info, state.bus), self._on_done), _SUBSCRIBE_S)
        remote.port.open()
        for seq, flush in self._begin(remote, urgent=urgent):
            self._send_in_turn(seq, flush)
        with state.changed:
            self._following, self._goal = True, self._behind()
        return self._follow(place)

    def _begin(self, remote: RemoteSession, *, urgent: bool) -> list[tuple[int, Flush]]:
        """The batches that build the last image; from now on those behind it are recorded."""
        state, log = self._state, self._state.log
        with self._submitting:
            self._check()
            self._image(urgent)
            with state.swap, state.changed:
                if self._abandoned():
                    raise Stays("")
                restored, self._base = log.restore(), log.base
                remote.skipped = log.base - len(restored)
                for seq in range(remote.skipped + 1, log.base + 1):
                    self._home_digests[seq] = ()
                for seq, kept in log:
                    self._home_digests[seq] = digests_of(kept.flush, kept.digests, self.home.info.limits.inline_bytes_max)
                    self._queue.append((seq, kept.flush))
                self._queue.extend((seq, sent.flush) for seq, sent in sorted(state.sent.items()))
                state.mirror = self
        return list(enumerate(restored, remote.skipped + 1))

    def _behind(self) -> int:
        """How many batches the session ahead has to run of those that the script's session has been sent."""
        return len(self._queue) + len(self._sent)

    def _send_in_turn(self, seq: int, flush: Flush, *, pings: bool = True) -> None:
        """Send a batch to the session ahead once there is room for it."""
        state, remote = self._state, self.remote
        assert remote is not None
        most = remote.info.limits.outstanding_batches_max
        while True:
            self._serve(pings=pings)
            with state.changed:
                if not self._sent or seq - min(self._sent) < most:
                    break
                state.changed.wait(0.2)
        flush = mirrored(flush, remote.info.limits.inline_bytes_max)
        sent = Sent(seq, flush, remote.upload(flush.uploads))
        self._heard_s = time.monotonic()
        sent.data = remote.encoder.encode(seq - remote.skipped, flush, sent.uploads)
        sent.sent_s = time.monotonic()
        with state.changed:
            self._sent[seq] = sent
            state.envelope_bytes += len(sent.data)
        self._publish(sent)

    def _publish(self, sent: Sent) -> None:
        assert self.remote is not None
        self._state.bus.call(self.remote.publish(sent), _PUBLISH_S)

    def _serve(self, *, pings: bool = True) -> None:
        """Send the session ahead what it asks for, and (``pings``) a ping. Raises Stays."""
        if pings:
            self._ping_when_due()
        self._check()
        remote = self.remote
        assert remote is not None
        while self._needs:
            done = self._needs.popleft()
            sent = self._sent.get(done.seq + remote.skipped)
            if sent is not None:
                sent.attempt += 1
                bodies = {sent.flush.program, sent.flush.dims_digest, *(digest for digest, _ in sent.flush.kernels)}
                remote.upload_again(sent, set(done.needs) - bodies)
                sent.data = remote.encoder.encode_whole(sent.seq - remote.skipped, sent.flush, sent.uploads)
                self._publish(sent)

    def _ping_when_due(self) -> None:
        """Keep the lease of the session ahead, and ask for answers that were lost."""
        now_s, remote, state = time.monotonic(), self.remote, self._state
        if remote is None or now_s - self._pinged_s < 1.0:
            return
        self._pinged_s = now_s
        with state.changed:
            oldest = min(self._sent, default=0)
            overdue = bool(oldest) and self._sent[oldest].sent_s < now_s - 1.0
        try:
            pong = state.bus.call(remote.ping(oldest - 1 if overdue else -1), 2 * PING_S)
        except (NoAnswer, TimeoutError):
            return
        if not pong.session_known:
            raise Stays(f"node {remote.node.name} lost the session")
        self._heard_s = time.monotonic()
        with state.changed:
            seq_next = pong.seq_next + remote.skipped
            lost = [sent for seq, sent in sorted(self._sent.items()) if seq >= seq_next and sent.sent_s < now_s - _STALLED_S]
        if lost and lost[0].seq == seq_next:
            for sent in lost:
                sent.attempt, sent.sent_s = sent.attempt + 1, now_s
                self._publish(sent)

    def _follow(self, place: Place) -> float:
        """Run what the script's session runs, until the script can be held for the rest; for how long it was. Raises Stays."""
        state = self._state
        until_s, hold_s, again_s, known = time.monotonic() + _MOVE_S, _HOLD_S, 0.0, False
        while True:
            self._send_queued()
            self._serve()
            if time.monotonic() > until_s:
                raise Stays(f"the session there did not catch up within {_MOVE_S:.0f} s")
            with state.changed:
                unanswered = len(state.sent)
                self.caught_up = is_near(self._behind() - min(unanswered, self._behind()), self._batch_s) and not self._queue
                if not self.caught_up or time.monotonic() < again_s or not self._ready():
                    state.changed.wait(0.1)
                    continue
            known = known or self._opening.is_known_at(place)
            if not known:
                again_s = time.monotonic() + 0.1
                continue
            held_s = self._switch(place, hold_s)
            if held_s is not None:
                return held_s
            hold_s, again_s = min(2 * hold_s, _HOLD_S_MAX), time.monotonic() + hold_s

    def _send_queued(self, *, pings: bool = True) -> None:
        while True:
            with self._state.changed:
                if not self._queue:
                    return
                seq, flush = self._queue[0]
            self._send_in_turn(seq, flush, pings=pings)
            with self._state.changed:
                self._queue.popleft()

    def _switch(self, place: Place, hold_s: float) -> float | None:
        """Hold the script for ``hold_s`` at most, until both sessions have answered everything, and let it continue with the one ahead. For
        how many seconds it was held; None: it continues as before. Raises Stays."""
        state, remote = self._state, self.remote
        assert remote is not None
        with self._submitting:
            began_s = time.monotonic()
            while True:
                if any(flush.uploads for _, flush in tuple(self._queue)):
                    return None  # the script does not wait for them
                self._send_queued(pings=False)
                self._serve(pings=False)
                with state.swap, state.changed:
                    if not (self._queue or self._sent or state.sent or self._home_digests) and not self._failure:
                        if self._abandoned() or state.halt or not self._ready():
                            return None
                        remote.encoder.repeats, state.shared = False, state.seq
                        remote.port.wait(state.wait_s, lambda: state.check_port(remote.session))
                        state.envelope_bytes += self.home.port.sent_bytes
                        state.remote, state.mirror = remote, None
                        self.moved, self._following = True, False
                        self._opening.arrived(place)
                        state.changed.notify_all()
                        break
                with state.changed:
                    if time.monotonic() - began_s > hold_s:
                        return None
                    state.changed.wait(0.05)
            held_s = time.monotonic() - began_s
        state.hear()
        self._on_left(self.home)
        return held_s
