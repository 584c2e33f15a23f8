"""Bugs, each planted in a decision of the product, of the kind that is really made. The simulation must find every one within a bounded
number of seeds, or it is not testing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from unittest.mock import patch

import msgspec

from billing import evidence
from billing.evidence import Evidence
from bus_schemas.batch import Done
from services.controller.writer import Writer
from services.server import device, facts, meter, sessions
from services.server.device import Device
from services.server.facts import FactLog, Noted, Progress
from services.server.meter import Meter
from tests.simulation.system.run import Failure, simulate
from wooly import session
from wooly.link import Flush
from wooly.session import Session
from wooly.transport.recovery import Watch
from wooly.transport.replay import ReplayLog
from wooly.transport.session_state import SessionState

__all__ = ["CANARIES", "SEEDS_MAX", "Canary", "caught_by"]

SEEDS_MAX: Final = 1000

Canary = Callable[[Any], Any]
"""Takes what is replaced and gives the replacement; the first line of its documentation says what is wrong with it."""


def drops_uploads(keep: Any) -> Any:
    """a batch is kept for recovery without the bytes of its uploads, although no image holds them"""

    def kept(self: ReplayLog, seq: int, flush: Flush, done: Done) -> None:
        flush.uploads = [(handle, memoryview(bytes(data.nbytes))) for handle, data in flush.uploads]
        keep(self, seq, flush, done)

    return kept


def keeps_what_the_image_has(take: Any) -> Any:
    """batches that an image covers are repeated on top of it"""

    def taken(self: ReplayLog, seq: int, image: Any) -> None:
        before = dict(self._kept)
        take(self, seq, image)
        self._kept = {**before, **self._kept}

    return taken


def restores_zeros(restore: Any) -> Any:
    """a session is built from an image whose bytes are lost"""

    def restored(self: ReplayLog) -> list[Flush]:
        return [Flush(uploads=[(handle, memoryview(bytes(data.nbytes))) for handle, data in flush.uploads]) for flush in restore(self)]

    return restored


def knows_what_was_written(live: Any) -> Any:
    """an image has what was uploaded into a buffer, although programs wrote it since"""

    def known(self: ReplayLog) -> tuple[dict[int, int], dict[int, Any]]:
        held, _ = live(self)
        uploaded = dict(self._image) | {handle: data for _, kept in self for handle, data in kept.flush.uploads}
        return held, {handle: data for handle, data in uploaded.items() if held.get(handle) == len(data)}

    return known


def counts_instead_of_reaching(_: Any) -> Any:
    """batches are repeated beyond the answers that the node keeps"""
    return lambda self, seq: len(self.sent) < self.remote.info.limits.outstanding_batches_max


def builds_again_what_is_closed(_: Any) -> Any:
    """a session that is closed is built again when the node says that it does not know it"""
    return property(lambda self: False, lambda self, value: None)


def hears_lost_sessions(on_done: Any) -> Any:
    """answers of a session that was lost count for the one in its place"""

    def heard(self: Session, data: bytes) -> None:
        done = session.decode_done(data)
        on_done(self, msgspec.msgpack.encode(msgspec.structs.replace(done, session=self.info.session)))

    return heard


def never_sends_again(_: Any) -> Any:
    """batches that the bus lost are not sent again"""
    return lambda self, pong, remote: self._state.hear()


def forgets_what_it_replaces(replayed: Any) -> Any:
    """repeated batches are charged like new ones"""
    return lambda lost, request: 0


def takes_all_for_repeated(replayed: Any) -> Any:
    """new batches of a session that was built again are taken for repeated ones"""
    return lambda lost, request: replayed(lost, request) + (5 if lost is not None else 0)


def charges_repeated_time(_: Any) -> Any:
    """core time of repeated batches is charged"""
    return lambda account, use: (0, 0, 0, 0)


def gives_a_batch_away(_: Any) -> Any:
    """the first new batch of a session that was built again is free"""
    return staticmethod(lambda account, core_ns: core_ns if account.resume_ns_max or account.recover_ns_max else 0)


def renames_facts(_: Any) -> Any:
    """facts that are published again have another message id"""
    return lambda node, record: node + facts.secrets.token_hex(8)


def forgets_progress(load: Any) -> Any:
    """a server that starts again does not know how far its device is accounted for"""

    def loaded(self: FactLog, record: Any) -> None:
        if isinstance(record, Noted):
            for each in record.records:
                load(self, each)
        elif not isinstance(record, Progress):
            load(self, record)

    return loaded


def confirms_early(note: Any) -> Any:
    """the executor forgets reports before the accounts that cover them are on disk"""

    def noted(self: FactLog, progress: Progress, then: Callable[[], None]) -> None:
        note(self, progress, lambda: None)
        then()

    return noted


def reuses_epochs(start: Any) -> Any:
    """a server that starts again has the epoch of the one before"""

    def started(self: FactLog, *arguments: Any) -> None:
        start(self, *arguments)
        self.epoch = 1

    return started


def never_recalls(_: Any) -> Any:
    """answers that were lost on their way are not sent again"""
    return lambda self, session, after_seq: None


def ends_lost_sessions_twice(end_lost: Any) -> Any:
    """a lost session stays in the books after it was ended"""

    def ended(self: Device, lost: Any) -> None:
        end_lost(self, lost)
        self.lost[lost.record.session] = lost

    return ended


def never_reaps(_: Any) -> Any:
    """sessions of clients that were killed are kept for ever"""
    return 0


def charges_given_up_work(_: Any) -> Any:
    """the bill does not hear that a task was displaced"""
    return lambda self, event: None


def places_without_a_fence(_: Any) -> Any:
    """a placement is appended whatever was placed since it was decided"""

    async def appended(self: Writer, task: str, events: Any) -> int:
        turns = self._projection.turns
        return await self.write(turns.subject(task), events)

    return appended


def loses_launches(charge: Any) -> Any:
    """what is left of a launch at the end of an interval is in no account"""

    def charged(self: Meter, uses: Any, to_ns: int) -> Any:
        found = charge(self, uses, to_ns)
        self._launches.clear()
        return found

    return charged


def uses_images_too_early(_: Any) -> Any:
    """a client uses an image although the log has not what it used by then"""

    async def booked(self: Device, session: Session, image: int) -> bool:
        return True

    return booked


def repeats_what_an_image_holds(_: Any) -> Any:
    """what an image holds is taken for work that may be repeated without a charge"""
    return lambda self: None


CANARIES: Final[dict[Canary, tuple[Any, str]]] = {
    drops_uploads: (ReplayLog, "keep"),
    keeps_what_the_image_has: (ReplayLog, "take"),
    restores_zeros: (ReplayLog, "restore"),
    knows_what_was_written: (ReplayLog, "live"),
    counts_instead_of_reaching: (SessionState, "in_reach"),
    builds_again_what_is_closed: (SessionState, "left"),
    hears_lost_sessions: (Session, "_on_done"),
    never_sends_again: (Watch, "_on_pong"),
    forgets_what_it_replaces: (sessions, "_replayed"),
    takes_all_for_repeated: (sessions, "_replayed"),
    charges_repeated_time: (meter, "_repeated"),
    gives_a_batch_away: (Meter, "_resumed"),
    renames_facts: (facts, "_name"),
    forgets_progress: (FactLog, "_load"),
    confirms_early: (FactLog, "note"),
    reuses_epochs: (FactLog, "__init__"),
    never_recalls: (Device, "recall"),
    ends_lost_sessions_twice: (Device, "end_lost"),
    never_reaps: (device, "_LISTENED_NS_MAX"),
    charges_given_up_work: (Evidence, "_displaced"),
    places_without_a_fence: (Writer, "append_placement"),
    loses_launches: (Meter, "_charge"),
    uses_images_too_early: (Device, "book"),
    repeats_what_an_image_holds: (evidence._Chain, "restore"),
}
"""Each bug, and where it is planted."""


_NEAR: Final[dict[Canary, int]] = {
    builds_again_what_is_closed: 480,
    counts_instead_of_reaching: 60,
    hears_lost_sessions: 225,
    gives_a_batch_away: 218,
    charges_given_up_work: 130,
    keeps_what_the_image_has: 40,
    restores_zeros: 40,
    knows_what_was_written: 40,
    uses_images_too_early: 40,
    repeats_what_an_image_holds: 440,
}
"""A seed a little before one that finds it, of those that are found late."""


def caught_by(canary: Canary, seeds_max: int = SEEDS_MAX, *, near: bool = False) -> tuple[int, str]:
    """The first seed that finds it, and how. ``near``: of those from ``_NEAR`` on. Raises AssertionError when none does."""
    owner, name = CANARIES[canary]
    first = _NEAR.get(canary, 0) if near else 0
    with patch.object(owner, name, canary(getattr(owner, name, None)), create=True):
        for seed in range(first, first + seeds_max):
            try:
                simulate(seed)
            except Failure as failure:
                return seed, str(failure)
    raise AssertionError(f"{canary.__name__} passed {seeds_max} seeds: {canary.__doc__}")
