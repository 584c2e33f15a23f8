"""CUDA graphs: records that are kept instead of being sent, and sent as often as the graph is replayed.

A capture becomes a program whose buffers stay the same: tensors made in it that are still alive when it ends, and tensors from before it,
are its external buffers; tensors that died in it are temporaries. They are pinned as long as the graph lives, as the memory pool of a
CUDA graph is. A replay is one small batch: digests, handles, scalars.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import torch

from wooly.device.programs import CREATED, EXTERNAL, Built, Record, TooLarge, Wired, wire
from wooly.device.random import Philox, default
from wooly.device.recorder import RECORDER
from wooly.device.tensors import HEAP

_ALWAYS_THERE: Final = bytes.maketrans(bytes([CREATED]), bytes([EXTERNAL]))


@dataclass(frozen=True, slots=True)
class Drawn:
    """What a capture drew of the default generator: with ``seed``, ``counters`` from the offset ``begun`` on."""

    seed: int = 0
    begun: int = 0
    counters: int = 0


class Part:
    """Records that fit one program."""

    def __init__(self, records: Sequence[Record], wired: Wired, built: Built) -> None:
        self._records = records
        self._wired = wired
        self._built = built
        self._handles = built.handles(wired.order)
        self._scalars = built.scalars(records)
        self._drawing = [i for i, (stencil, _, _) in enumerate(records) if stencil.rng_counters]

    def draws_elsewhere(self, drawn: Drawn) -> bool:
        """Does a record draw of another generator than the default one?"""
        return any(self._place(i, drawn) is None for i in self._drawing)

    def _place(self, i: int, drawn: Drawn) -> int | None:
        *_, seed, offset = self._records[i][2]
        place = int(offset.real) - drawn.begun
        return place if seed == drawn.seed and 0 <= place < drawn.counters else None

    def send(self, seed: int, begun: int, drawn: Drawn, others: Mapping[int, int] | None = None) -> None:
        """Do what was recorded. Random numbers are those of ``seed`` from the offset ``begun`` on; what another generator drew is drawn
        again. ``others``: handles to take in place of those recorded."""
        scalars = self._scalars
        if self._drawing:
            records = list(self._records)
            for i in self._drawing:
                stencil, recorded, (*args, _, _) = records[i]
                place = self._place(i, drawn)
                if place is not None:
                    records[i] = (stencil, recorded, (*args, seed, begun + place))
            scalars = self._built.scalars(records)
        handles = self._handles if others is None else [others.get(handle, handle) for handle in self._handles]
        RECORDER.repeat(self._built, self._wired.stencils, handles, scalars)


@dataclass(frozen=True, slots=True)
class Captured:
    """What a capture has kept: records; the buffers that must exist for them, with their bytes (``allocs``), and those that the records
    make (``sizes``); the handles that died in it. Not ``valid``: something could not be captured."""

    valid: bool
    drawn: Drawn
    records: list[Record]
    allocs: dict[int, int]
    sizes: dict[int, int]
    died: set[int]

    def settle(self, temporary: Set[int]) -> None:
        """Make what was recorded of one piece with the node: buffers come into being but for ``temporary`` ones, and what died is freed."""
        for handle, nbytes in (*self.allocs.items(), *((h, n) for h, n in self.sizes.items() if h not in temporary)):
            RECORDER.alloc(handle, nbytes)
        HEAP.freed.extend(self.died - temporary)
        RECORDER.flush()

    def discard(self) -> None:
        """Nothing of it will be done: what is alive will be freed as any other buffer, and what has died never was."""
        self.settle(self.died & self.sizes.keys())


def end_capture(stream: Philox, drawn: Drawn) -> Captured:
    """End the capture that began when ``stream`` stood at ``drawn``; it stands there again, for nothing was drawn yet."""
    if stream.seed == drawn.seed and stream.offset >= drawn.begun:  # else the captured code has seeded it, as each replay does not
        drawn, stream.offset = replace(drawn, counters=stream.offset - drawn.begun), drawn.begun
    records, allocs, died, valid = RECORDER.end_capture()
    return Captured(valid, drawn, records, dict(allocs), _sizes(records), died)


class Graph:
    """One captured graph: ``begin``, what is to be captured, ``end``, then ``replay`` any number of times, then ``reset``.

    Raises AcceleratorError (``begin``, ``end``, and calls that would wait or send values during the capture), RuntimeError for a replay
    without a capture.
    """

    def __init__(self) -> None:
        self._parts: list[Part] | None = None
        self._pinned: set[int] = set()
        self._drawn = Drawn()

    def begin(self) -> None:
        """Capture what is recorded from now on."""
        self.reset()
        RECORDER.begin_capture()
        stream = default()
        self._drawn = Drawn(stream.seed, stream.offset)

    def end(self) -> None:
        """The graph is complete."""
        if not RECORDER.capturing:
            raise RuntimeError("CUDAGraph::capture_end called without capture_begin")
        captured = end_capture(default(), self._drawn)
        if not captured.valid:
            captured.discard()
            raise torch.AcceleratorError("CUDA error: operation failed due to a previous error during capture")
        self._drawn, records = captured.drawn, captured.records
        temporary = captured.died & captured.sizes.keys()
        places = [0, len(records)]
        while not self._build(records, places, temporary):
            pass
        temporary -= _crossing(records, places, temporary)
        self._pinned = {h for _, handles, _ in records for h in handles} - temporary | captured.allocs.keys()
        RECORDER.pin(self._pinned)
        captured.settle(temporary)

    def _build(self, records: list[Record], places: list[int], temporary: set[int]) -> bool:
        """Build the programs between ``places``; False: one was too large, and ``places`` has one more."""
        self._parts = []
        crossing = _crossing(records, places, temporary)
        for start, end in pairwise(places):
            wired = wire(records[start:end], temporary - crossing)
            wired.kinds = wired.kinds.translate(_ALWAYS_THERE)
            try:
                built = RECORDER.programs.get(wired)
            except TooLarge:
                places.insert(places.index(end), (start + end) // 2)
                return False
            self._parts.append(Part(records[start:end], wired, built))
        return True

    def replay(self) -> None:
        """Do the captured work once more, on what the buffers hold now."""
        if self._parts is None:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
        seed, begun = default().take(self._drawn.counters)
        for part in self._parts:
            part.send(seed, begun, self._drawn)

    def reset(self) -> None:
        """Forget the capture and let its buffers go."""
        self._parts = None
        pinned, self._pinned = self._pinned, set()
        RECORDER.unpin(pinned)

    def __del__(self) -> None:
        with suppress(Exception):  # at the end of the process
            self.reset()


def _sizes(records: Sequence[Record]) -> dict[int, int]:
    """The buffers that records make, with their bytes."""
    made: dict[int, int] = {}
    for stencil, handles, _ in records:
        for position in range(stencil.n_ins, stencil.n_handles):
            made[handles[position]] = stencil.needs[position]
    return made


def _crossing(records: Sequence[Record], places: Sequence[int], temporary: set[int]) -> set[int]:
    """Temporaries that are used in more than one part."""
    parts = [{handle for _, handles, _ in records[start:end] for handle in handles} for start, end in pairwise(places)]
    counts = Counter(handle for part in parts for handle in part & temporary) if len(parts) > 1 else Counter[int]()
    return {handle for handle, n in counts.items() if n > 1}
