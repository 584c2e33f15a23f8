"""Facts on their way to the event log: first into the node's journal (a write-ahead log: an append-only file of checked frames that
survives the server's death, power included), then published, in order, until acknowledged.

What is in the journal and not acknowledged when the server dies is published by the next one, under the same message ids. Beside the
facts the journal keeps how far each device is accounted for, so that its timeline goes on without a hole. Facts of use and the progress
that covers them are one frame, and nothing leaves before it is on disk: a server that dies never leaves use in the log or in the journal
that the next one would measure again.

A torn last frame is cut off when the file is opened; damage before it sets the whole file aside under another name, for a person to look
at.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from bus_schemas.events import Event, NodeRegistered, decode_events, encode_events, split_events
from bus_schemas.frames import FrameDamage, checked_frame, checked_frames
from bus_schemas.subjects import EVENTS_STREAM, event_subject
from services.kit.bus import Bus
from services.kit.errors import BusRefused, BusUnavailable
from services.kit.log import get_logger
from services.server.meter import Account
from wooly.shared.files import write_atomically

__all__ = ["FactLog", "JournalFile", "Progress", "last_epoch"]


class JournalFile:
    """One file. ``bodies``: what it held when it was opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        data = path.read_bytes() if path.exists() else b""
        self.bodies, good = _read(data)
        if good is None:
            path.rename(path.with_name(f"{path.name}.damaged-{os.getpid()}"))
            good = 0
        self._file = path.open("ab")
        self._file.truncate(good)
        self.nbytes = good

    def append(self, body: bytes) -> None:
        """Add a frame; it is durable after the next ``sync``."""
        data = checked_frame(body)
        self._file.write(data)
        self.nbytes += len(data)

    def flush(self) -> None:
        """Hand what was appended to the kernel: it survives our death, not the machine's."""
        self._file.flush()

    def sync(self) -> None:
        """Wait until the disk has everything."""
        self._file.flush()
        os.fdatasync(self._file.fileno())

    def rewrite(self, bodies: Iterable[bytes]) -> None:
        """Replace the content, in one step."""
        data = b"".join(map(checked_frame, bodies))
        write_atomically(self.path, data, durable=True)
        self._file.close()
        self._file = self.path.open("ab")
        self.nbytes = len(data)

    def close(self) -> None:
        self._file.close()


def _read(data: bytes) -> tuple[list[bytes], int | None]:
    """The whole frames, and how many bytes they take; None when a frame before the last is damaged."""
    bodies: list[bytes] = []
    used = 0
    try:
        for end, body in checked_frames(data):
            bodies.append(bytes(body))
            used = end
    except FrameDamage:
        return bodies, None
    return bodies, used


_REWRITE_BYTES: Final = 32 << 20
_USAGE: Final = "usage"


class Started(msgspec.Struct, array_like=True, frozen=True, tag="started.v1"):
    """A server started with this epoch."""

    epoch: int


class Recorded(msgspec.Struct, array_like=True, frozen=True, tag="recorded.v1"):
    """Facts to be published on (area, entity); ``index`` counts these from the journal's start, ``epoch`` is the start that recorded them
    (0 in v1 journals). ``nonce`` is random, so that the id of their message is unpredictable (empty in v1 journals)."""

    index: int
    area: str
    entity: str
    events: bytes
    epoch: int = 0
    nonce: str = ""


class Published(msgspec.Struct, array_like=True, frozen=True, tag="published.v1"):
    """Everything up to ``index`` is acknowledged."""

    index: int


class Progress(msgspec.Struct, array_like=True, frozen=True, tag="progress.v1"):
    """How far device ``gpu`` is accounted for in the facts recorded before this: up to monotonic time ``accounted_ns`` of boot ``boot``,
    including report ``report`` of executor ``executor`` (its pid). ``position``: all batches of the
    stream made at ``stream`` up to there are over."""

    gpu: int
    boot: str
    accounted_ns: int
    executor: int
    report: int
    accounts: tuple[Account, ...]
    stream: str = ""
    position: int = 0


class Noted(msgspec.Struct, array_like=True, frozen=True, tag="noted.v1"):
    """Facts of use (and what was recorded since), and the progress that covers them: both are in the journal, or neither is."""

    records: tuple[Recorded, ...]
    progress: Progress


_Record = Started | Recorded | Published | Progress | Noted
_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final[msgspec.msgpack.Decoder[Any]] = msgspec.msgpack.Decoder(_Record)


class FactLog:
    """The node's journal of facts. ``epoch`` is this start's; ``progress`` the last of each device before it. ``known_epoch``: the last one
    that the log has of the node, for a journal may be lost or set aside: facts of an epoch that was before would be taken for repeats."""

    def __init__(self, path: Path, node: str, known_epoch: int = 0) -> None:
        self._file = JournalFile(path)
        self._node = node
        self._log = get_logger()
        self.progress: dict[int, Progress] = {}
        self._waiting: deque[Recorded] = deque()
        self._index = 0
        self._published = 0
        self.epoch = 1
        for body in self._file.bodies:
            self._load(_decoder.decode(body))
        self.epoch = max(self.epoch, known_epoch + 1)
        while self._waiting and self._waiting[0].index <= self._published:
            self._waiting.popleft()
        self._held: list[Recorded] = []
        #: size of the journal after it was rewritten last
        self._rewritten_bytes = 0
        self._synced = self._index
        self._wake = asyncio.Event()
        self._durable = asyncio.Event()
        self._settled = asyncio.Event()
        self._after_sync: list[Callable[[], None]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self.failed = asyncio.Event()
        """Set when the journal cannot be written: what happens from then on would not be billed, so the node must stop."""
        self._rewrite()
        self._file.sync()

    def _load(self, record: _Record) -> None:
        match record:
            case Started(epoch):
                self.epoch = epoch + 1
            case Recorded():
                self._waiting.append(record)
                self._index = record.index
            case Published(index):
                self._published = index
                self._index = max(self._index, index)
            case Progress():
                self.progress[record.gpu] = record
            case Noted(records, progress):
                for each in records:
                    self._load(each)
                self._load(progress)

    def start(self, bus: Bus) -> None:
        """Begin publishing."""
        self._durable.set()  # what an earlier server left
        self._tasks = [
            asyncio.create_task(self._sync_forever(), name="facts to disk"),
            asyncio.create_task(self._publish_forever(bus), name="facts"),
        ]

    def record(self, area: str, entity: str, events: Sequence[Event]) -> None:
        """Journal these facts and publish them soon, after everything recorded before. Facts of use wait for the ``note`` that covers them,
        and so does what is recorded meanwhile."""
        if not events:
            return
        self._index += 1
        record = Recorded(self._index, area, entity, encode_events(events), self.epoch, secrets.token_hex(8))
        if self._held or area == _USAGE:
            self._held.append(record)
        else:
            self._append(record)
        self._waiting.append(record)
        self._settled.clear()
        self._wake.set()

    def note(self, progress: Progress, then: Callable[[], None]) -> None:
        """Journal how far a device is accounted for; ``then()`` runs once that is on disk."""
        self.progress[progress.gpu] = progress
        held, self._held = self._held, []
        self._append(Noted(tuple(held), progress) if held else progress)
        self._after_sync.append(then)
        self._wake.set()

    async def durable(self) -> bool:
        """Wait until everything noted so far is on disk; False when the journal has failed."""
        synced = asyncio.Event()
        self._after_sync.append(synced.set)
        self._wake.set()
        waiting = [asyncio.ensure_future(event.wait()) for event in (synced, self.failed)]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waiting:
                one.cancel()
        return not self.failed.is_set()

    @property
    def waiting(self) -> int:
        """Messages that the log has not acknowledged."""
        return len(self._waiting)

    async def settled(self, deadline_s: float) -> bool:
        """Wait until every recorded fact is acknowledged; False when that took longer, or the journal has failed."""
        with contextlib.suppress(TimeoutError):
            if self._waiting and not self.failed.is_set():
                await asyncio.wait_for(self._settled.wait(), deadline_s)
        return not self._waiting

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        if self.failed.is_set():
            with contextlib.suppress(OSError):  # said already
                self._file.close()
            return
        self._file.sync()
        self._file.close()

    def _append(self, record: _Record) -> None:
        """Journal a record, unless the journal has failed: then nothing of ours is published any more, so nothing is said twice."""
        if self.failed.is_set():
            return
        try:
            self._file.append(_encoder.encode(record))
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        self._log.error("the journal cannot be written: free disk space and start again", file=str(self._file.path), problem=str(error))
        self.failed.set()
        self._settled.set()

    async def _sync_forever(self) -> None:
        try:
            await self._sync_on()
        except OSError as error:
            self._fail(error)

    async def _sync_on(self) -> None:
        """Bring to disk what was journalled, whether the bus is there or not."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            confirmed, self._after_sync = self._after_sync, []
            journalled = self._held[0].index - 1 if self._held else self._index
            await asyncio.to_thread(self._file.sync)
            if self.failed.is_set():
                return
            self._synced = journalled
            for then in confirmed:
                then()
            self._durable.set()
            if self._file.nbytes > max(_REWRITE_BYTES, 2 * self._rewritten_bytes) and not self._held:
                self._rewrite()

    async def _publish_forever(self, bus: Bus) -> None:
        """Publish what is on disk."""
        while True:
            await self._durable.wait()
            self._durable.clear()
            while self._waiting and self._waiting[0].index <= self._synced and not self.failed.is_set():
                await self._publish(bus, self._waiting[0])
                self._published = self._waiting.popleft().index
                self._append(Published(self._published))
            if not self._waiting:
                self._settled.set()

    async def _publish(self, bus: Bus, record: Recorded) -> None:
        while True:
            try:
                node = self._node if record.area == "session" else ""
                events, name = split_events(record.events), _name(self._node, record)
                await bus.publish_events(record.area, record.entity, events, message_id=name, node=node)
                return
            except (BusUnavailable, BusRefused) as error:
                self._log.warning("facts wait for the bus", problem=str(error), waiting=len(self._waiting))
                await asyncio.sleep(1.0)

    def _rewrite(self) -> None:
        """Keep only what the next start needs."""
        records: list[_Record] = [Started(self.epoch), Published(self._published), *self.progress.values(), *self._waiting]
        self._file.rewrite(_encoder.encode(record) for record in records)
        self._rewritten_bytes = self._file.nbytes


def _name(node: str, record: Recorded) -> str:
    """What the log knows the message by: the same whenever it is published, and no other's. Who knew it before could publish something
    else under it, and the log would take these facts for a repeat of that."""
    return ".".join(str(part) for part in (node, record.epoch, record.nonce, record.index) if part)


_HISTORY_S: Final = 30.0


async def last_epoch(bus: Bus, node: str) -> int:
    """The last epoch in which ``node`` registered; 0 when it never did, or the bus does not say (there is no log yet, or the node may not
    read it: what it does next says so better)."""
    last = 0

    def on_fact(position: int, subject: str, data: bytes) -> None:
        nonlocal last
        with contextlib.suppress(msgspec.DecodeError):  # of a newer version
            last = max([last, *(event.epoch for event in decode_events(data) if isinstance(event, NodeRegistered))])

    follower = bus.follow(EVENTS_STREAM, 1, on_fact, subject=event_subject("node", node))
    try:
        await follower.start()
        async with asyncio.timeout(_HISTORY_S):
            await follower.current.wait()
    except BusRefused:
        pass  # there is no log yet
    except (BusUnavailable, TimeoutError) as problem:
        get_logger().warning("the log does not say which starts of this node it knows", problem=str(problem))
    finally:
        await follower.stop()
    return last
