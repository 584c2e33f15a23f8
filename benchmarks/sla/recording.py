"""Recordings of scripts: the flushes of the set-up and of every step, and the rule by which a recording continues."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from wooly.link import Flush

__all__ = ["Endless", "Recording", "Sent", "Writer", "load", "save"]


class Sent(msgspec.Struct, array_like=True):
    """One flush. ``bodies``: by digest, of the whole recording (see Recording.bodies). ``waited``: the script looked at an answer before it
    went on; ``answer``: blake3 of that."""

    program: bytes
    dims_digest: bytes
    scalars: tuple[int | float | tuple[float, float], ...]
    handles: tuple[int, ...]
    allocs: tuple[tuple[int, int], ...]
    uploads: tuple[tuple[int, bytes], ...]
    reads: tuple[tuple[int, int, int], ...]
    frees: tuple[int, ...]
    waited: bool = False
    answer: bytes = b""


class Recording(msgspec.Struct, array_like=True):
    """``bodies``: programs and dims by digest. ``setup``: flushes before the first step. ``steps``: flushes of each."""

    kind: str
    bodies: dict[bytes, bytes]
    setup: list[Sent]
    steps: list[list[Sent]]

    def flush(self, sent: Sent) -> Flush:
        """As the client's recorder handed it over."""
        return Flush(
            program=sent.program,
            program_body=self.bodies.get(sent.program, b""),
            dims_digest=sent.dims_digest,
            dims=self.bodies.get(sent.dims_digest, b""),
            scalars=[complex(*value) if isinstance(value, tuple) else value for value in sent.scalars],
            handles=sent.handles,
            allocs=sent.allocs,
            uploads=[(handle, memoryview(data)) for handle, data in sent.uploads],
            reads=sent.reads,
            frees=sent.frees,
        )


_encode: Final = msgspec.msgpack.Encoder().encode
_decoder: Final = msgspec.msgpack.Decoder(Recording)


def save(path: Path, recording: Recording) -> None:
    path.write_bytes(_encode(recording))


def load(path: Path) -> Recording:
    return _decoder.decode(path.read_bytes())


@dataclass(slots=True)
class Writer:
    """Collects a recording. ``begin_step`` after set-up and before each further step."""

    recording: Recording

    def begin_step(self) -> None:
        self.recording.steps.append([])

    def add(self, flush: Flush) -> Sent:
        bodies = self.recording.bodies
        if flush.program:
            bodies[flush.program] = flush.program_body
            bodies[flush.dims_digest] = flush.dims
        sent = Sent(
            flush.program,
            flush.dims_digest,
            tuple((value.real, value.imag) if isinstance(value, complex) else value for value in flush.scalars),
            tuple(flush.handles),
            tuple(flush.allocs),
            tuple((handle, bytes(data)) for handle, data in flush.uploads),
            tuple(flush.reads),
            tuple(flush.frees),
        )
        (self.recording.steps[-1] if self.recording.steps else self.recording.setup).append(sent)
        return sent


_Name = tuple[int, int]
"""A handle of a step, from the step's point of view: (-1, the handle) when older, else (how many steps ago it was made, as which one)."""

_REACH: Final = 2
"""A handle made more steps ago than this is one that lasts."""


class Endless:
    """A recording that goes on for ever: after its last step come steps like it, with handles of their own.

    What a steady script sends is the same step again and again, in which the handles made a step ago have taken the place of those made
    two steps ago. Raises ValueError when the last two recorded steps are not the same in this sense."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self._made: list[list[int]] = []
        known = {handle for sent in recording.setup for handle in _mentioned(sent)}
        forms = []
        for step in recording.steps:
            self._made.append([h for h in dict.fromkeys(h for sent in step for h in _mentioned(sent)) if h not in known])
            known.update(self._made[-1])
            forms.append([_renamed(sent, self._name) for sent in step])
        if len(forms) < 3 or [_shape(sent) for sent in forms[-1]] != [_shape(sent) for sent in forms[-2]]:
            raise ValueError(f"{recording.kind}: its last two recorded steps differ: it has not come into its stride")
        self._form = recording.steps[-1]
        self._names = {h: self._name(h) for sent in self._form for h in _mentioned(sent)}
        self._next = max(known) + 1

    def step(self, number: int) -> list[Sent]:
        """Step ``number``; steps are asked for in order, from 0."""
        if number < len(self.recording.steps):
            return self.recording.steps[number]
        self._made.append([*range(self._next, self._next + len(self._made[-1]))])
        self._next += len(self._made[-1])
        return [_renamed(sent, self._handle) for sent in self._form]

    def _name(self, handle: int) -> _Name:
        for ago in range(min(_REACH, len(self._made) - 1) + 1):
            if handle in self._made[-1 - ago]:
                return ago, self._made[-1 - ago].index(handle)
        return -1, handle

    def _handle(self, recorded: int) -> int:
        ago, which = self._names[recorded]
        return which if ago < 0 else self._made[-1 - ago][which]


def _mentioned(sent: Sent) -> list[int]:
    """Every handle of a flush, in the order of what a node does."""
    return [*(h for h, _ in sent.allocs), *(h for h, _ in sent.uploads), *sent.handles, *sent.frees]


def _renamed(sent: Sent, name: Callable[[int], Any]) -> Sent:
    return msgspec.structs.replace(
        sent,
        handles=tuple(name(h) for h in sent.handles),
        allocs=tuple((name(h), nbytes) for h, nbytes in sent.allocs),
        uploads=tuple((name(h), data) for h, data in sent.uploads),
        reads=tuple((name(h), offset, nbytes) for h, offset, nbytes in sent.reads),
        frees=tuple(name(h) for h in sent.frees),
    )


def _shape(sent: Sent) -> tuple[Any, ...]:
    """What two steps of one kind have in common: all but numbers and answers."""
    uploads = tuple((h, len(data)) for h, data in sent.uploads)
    return sent.program, sent.dims_digest, sent.handles, sent.allocs, uploads, sent.reads, sent.frees, sent.waited
