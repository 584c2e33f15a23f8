"""``WOOLY_RECORD``: what a script sends to a device, in a folder, from which `wooly debug` builds the state after any batch again.

A recording is one or several *segments*, files of checked frames (``bus_schemas.frames``), each an ``Entry`` in msgpack, named after
the number of its first batch. A segment needs no other: it has every program that it names, and later ones begin with an image of the
session's buffers. Larger uploads are files of their own in ``data``, named by their digests, so that what is sent again is kept once.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
from blake3 import blake3
from msgspec import structs

from bus_schemas.batch import Batch, Upload
from bus_schemas.frames import FrameDamage, checked_frame, checked_frames
from wooly import progress
from wooly.errors import ConfigError, WoolyError
from wooly.link import Flush, Link, LinkWrapper, Ticket
from wooly.shared.lru import LruDict
from wooly.transport.batches import BatchEncoder, unpack_handles
from wooly.transport.replay import Made, follow, groups

_SUFFIX: Final = ".batches"
_SEGMENT: Final = re.compile(r"\d{12,}" + re.escape(_SUFFIX))
_UPLOAD: Final = re.compile(r"[0-9a-f]{64}(\.part)?")
_INLINE_MAX: Final = 4096
"""A frame has at most some thousand uploads of so many bytes."""
_IMAGE_SHARE: Final = 4
_PROGRAMS_MAX: Final = 4096
"""Programs and dims whose buffers are remembered."""


class RecordingError(WoolyError):
    """A recording is missing, incomplete or damaged."""


class Entry(msgspec.Struct, array_like=True, frozen=True, tag="recording.v1"):
    """One batch. ``batch.seq`` counts the batches of the recording, from 1; an image has the number of the batch that it was taken after.

    ``operations``: name in torch and instructions, in the order of the program.
    """

    batch: Batch
    operations: tuple[tuple[str, int], ...] = ()


@dataclass(slots=True)
class _Segment:
    """``nbytes``: of its file and of the uploads that no segment before it has."""

    path: Path
    nbytes: int = 0
    uploads: set[str] = field(default_factory=set)
    programs: set[bytes] = field(default_factory=set)


class RecordingLink(LinkWrapper):
    """A link that writes what passes through it to a recording, before it is sent."""

    def __init__(self, link: Link, folder: Path, bytes_max: int) -> None:
        """``folder``: a recording that is there is replaced. ``bytes_max``: on disk; when it is reached, the oldest batches are removed."""
        super().__init__(link)
        self._folder, self._bytes_max = folder, bytes_max
        self._encoder = BatchEncoder("", 0, 0)
        self._held: dict[int, int] = {}
        self._made: Made = LruDict(_PROGRAMS_MAX)
        self._segments: list[_Segment] = []
        self._number = 0
        self._noted: Flush | None = None
        self._open = True
        try:
            self._clear()
            self._begin()
        except OSError as error:
            self._give_up(f"{error.strerror} ({folder})")

    def submit(self, flush: Flush) -> Ticket:
        """Raises what an image that was read on the way heard of earlier flushes; ``flush`` is sent all the same."""
        refused: WoolyError | None = None
        try:
            if flush is not self._noted:  # else the call before was interrupted
                self._note(flush)
            self._noted = flush
        except WoolyError as error:
            refused = error
            self._give_up("the memory could not be read for an image")
        ticket = super().submit(flush)
        if refused is not None:
            raise refused
        return ticket

    def _note(self, flush: Flush) -> None:
        try:
            if self._open and self._segments[-1].nbytes > self._bytes_max // 2:
                self._begin_with_image()
            if not self._open:
                return
            self._number += 1
            self._write(flush)
            follow(self._held, flush, self._made)
        except OSError as error:
            self._give_up(f"{error.strerror} ({self._folder})")

    def _give_up(self, why: str) -> None:
        self._open = False
        progress.say(f"wooly: the recording ends with batch {self._number}: {why}")

    def _clear(self) -> None:
        """Remove the recording that is there. Raises ConfigError when the folder holds other files only."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        there = [path for path in self._folder.iterdir() if path.name != "data"]
        segments = [path for path in there if _SEGMENT.fullmatch(path.name)]
        if there and not segments:
            raise ConfigError(f"WOOLY_RECORD: {self._folder} holds files, and no recording; name a folder that is empty or new")
        data = self._folder / "data"
        data.mkdir(mode=0o700, exist_ok=True)
        for path in (*segments, *(path for path in data.iterdir() if _UPLOAD.fullmatch(path.name))):
            path.unlink()

    def _begin(self) -> None:
        self._segments.append(_Segment(self._folder / f"{self._number + 1:012}{_SUFFIX}"))
        self._segments[-1].path.touch(mode=0o600)

    def _begin_with_image(self) -> None:
        """Begin another segment with what the session's buffers hold, and remove the oldest ones."""
        if _IMAGE_SHARE * sum(self._held.values()) > self._bytes_max:
            self._give_up(f"the session's memory takes more than a quarter of WOOLY_RECORD_MB ({self._bytes_max >> 20})")
            return
        self._begin()
        for group in groups(self._held):
            found = self._link.wait(self._link.submit(Flush(reads=[(handle, 0, nbytes) for handle, nbytes in group])))
            self._write(Flush(uploads=[(handle, memoryview(data)) for (handle, _), data in zip(group, found, strict=True)]))
        while len(self._segments) > 1 and sum(segment.nbytes for segment in self._segments) > self._bytes_max:
            self._remove(self._segments.pop(0))

    def _remove(self, segment: _Segment) -> None:
        segment.path.unlink()
        for name in segment.uploads.difference(*(other.uploads for other in self._segments)):
            (self._folder / "data" / name).unlink()

    def _write(self, flush: Flush) -> None:
        segment, origin = self._segments[-1], flush.origin
        uploads = tuple(self._upload(segment, handle, data) for handle, data in flush.uploads)
        known = flush.program in segment.programs
        segment.programs.add(flush.program)
        batch = self._encoder.batch(self._number, flush, uploads, "", b"" if known else flush.program_body)
        entry = Entry(
            structs.replace(batch, origin=origin.lines() if origin is not None else "", kernels=() if known else batch.kernels),
            tuple((operation.name, len(operation.code)) for operation in origin.operations) if origin is not None else (),
        )
        frame = checked_frame(msgspec.msgpack.encode(entry))
        with segment.path.open("ab", buffering=0) as file:
            file.write(frame)
        segment.nbytes += len(frame)

    def _upload(self, segment: _Segment, handle: int, data: memoryview) -> Upload:
        if data.nbytes <= _INLINE_MAX:
            return Upload(handle, data.nbytes, bytes(data))
        digest = blake3(data).digest()
        name = digest.hex()
        path = self._folder / "data" / name
        if not path.exists():
            whole = path.with_suffix(".part")
            with open(os.open(whole, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(data)
            whole.rename(path)
            segment.nbytes += data.nbytes
        segment.uploads.add(name)
        return Upload(handle, data.nbytes, chunks=(digest,))


@dataclass(slots=True)
class Recorded:
    """A batch of a recording, or what builds an ``image``. ``lines``: of the script."""

    number: int
    flush: Flush
    lines: str
    operations: Sequence[tuple[str, int]]
    image: bool = False

    def operation(self, instruction: int) -> str:
        """The name in torch of what instruction ``instruction`` of the program belongs to; empty: not known."""
        for name, length in self.operations:
            if instruction < length:
                return name
            instruction -= length
        return ""


class Recording:
    """Reads a recording, also one that is being written."""

    def __init__(self, folder: Path) -> None:
        """Raises RecordingError when there is none."""
        self._folder = folder
        self._segments = sorted(folder.glob(f"*{_SUFFIX}"))
        if not self._segments:
            raise RecordingError(f"{folder} holds no recording; record one with WOOLY_RECORD={folder}")

    @property
    def first(self) -> int:
        """The first batch that is left."""
        return int(self._segments[0].stem)

    def batches(self, at: int | None = None) -> Iterator[Recorded]:
        """What builds the state after batch ``at`` (None: the last), from the nearest image on. Raises RecordingError when the recording
        does not hold that batch, or is damaged."""
        if at is None:
            yield from self._read(self._segments[-1], None)
            return
        if at < self.first:
            raise RecordingError(f"the recording begins with batch {self.first}: earlier ones were removed (WOOLY_RECORD_MB)")
        yield from self._read(next(path for path in reversed(self._segments) if int(path.stem) <= at), at)

    def all(self) -> Iterator[Recorded]:
        """Every batch that is left, in order, after the image that the first of them may need."""
        for path in self._segments:
            for found in self._read(path, None):
                if not found.image or path == self._segments[0]:
                    yield found

    def _read(self, path: Path, at: int | None) -> Iterator[Recorded]:
        programs: dict[bytes, tuple[bytes, tuple[tuple[bytes, bytes], ...]]] = {b"": (b"", ())}
        first, last = int(path.stem), int(path.stem) - 1
        try:
            for _, body in checked_frames(path.read_bytes()):
                entry = msgspec.msgpack.decode(body, type=Entry)
                batch, last = entry.batch, entry.batch.seq
                if at is not None and last > at:
                    return
                if batch.program_body:
                    programs[batch.program] = batch.program_body, tuple((blake3(one).digest(), one) for one in batch.kernels)
                flush = self._flush(batch, *programs[batch.program])
                yield Recorded(last, flush, batch.origin, entry.operations, image=last < first)
        except (FrameDamage, OSError, ValueError, KeyError, zlib.error, msgspec.MsgspecError) as error:
            raise RecordingError(f"{path}: {error}") from error
        if at is not None and last < at:
            raise RecordingError(f"the recording ends with batch {last}")

    def _flush(self, batch: Batch, program_body: bytes, kernels: tuple[tuple[bytes, bytes], ...]) -> Flush:
        return Flush(
            program=batch.program,
            program_body=program_body,
            dims_digest=batch.dims,
            dims=batch.dims_body,
            scalars=[complex(*value) if isinstance(value, tuple) else value for value in batch.scalars],
            handles=unpack_handles(batch.handles) if batch.program else (),
            allocs=batch.allocs,
            uploads=[(upload.handle, self._data(upload)) for upload in batch.uploads],
            reads=[(read.handle, read.offset, read.nbytes) for read in batch.reads],
            frees=batch.frees,
            kernels=kernels,
        )

    def _data(self, upload: Upload) -> memoryview:
        if not upload.chunks:
            return memoryview(upload.inline)
        data = (self._folder / "data" / upload.chunks[0].hex()).read_bytes()
        if blake3(data).digest() != upload.chunks[0]:
            raise ValueError(f"upload {upload.chunks[0].hex()} in data is damaged")
        return memoryview(data)
