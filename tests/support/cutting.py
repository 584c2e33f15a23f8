"""Engines whose every run is cut into pieces, for comparing with uncut ones.

Where the cuts fall is drawn from a seed and counted in claims or launches, never in time: the same seed cuts in the same places (with one
thread). Between two pieces, as a node might: other runs of the same plan, buffers parked and brought back.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from jit.engine import Engine, Launch, Number, Prepared, Run, Space

__all__ = ["CutEngine", "Pieces", "shuffle_blocks"]

_PIECES: Sequence[int] = (1, 1, 1, 2, 3, 7)


class Pieces:
    """A run that is executed piece by piece; ``launches`` so far."""

    def __init__(self, engine: Engine, run: Run, rng: random.Random) -> None:
        self._engine: Any = engine
        self._run, self._rng = run, rng
        self.launches: list[Launch] = []

    @property
    def over(self) -> bool:
        return self._run.over

    def drop(self) -> None:
        self._run.drop()

    def go(self) -> None:
        """The next piece; some are asked to stop by time as well, which must not keep them from making progress."""
        self._engine.cut_after = self._rng.choice(_PIECES)
        try:
            launch = self._run.go(limit_ns=self._rng.choice((0, 0, 1)))
        finally:
            self._engine.cut_after = 0
        assert launch.stopped == (not self._run.over)
        assert launch.start_ns <= launch.end_ns and launch.core_ns >= 0 and launch.cores >= 1
        if launch.stopped:
            assert (launch.instructions, launch.trap, launch.out_of_fuel) == (0, None, None), "only the last piece reports these"
        self.launches.append(launch)

    def account(self) -> Launch:
        """Of all pieces."""
        core_ns, cores = sum(x.core_ns for x in self.launches), max(x.cores for x in self.launches)
        return replace(self.launches[-1], start_ns=self.launches[0].start_ns, core_ns=core_ns, cores=cores)


class CutEngine:
    """An engine of which ``run`` is many pieces; everything else is the engine's own. ``cuts``: how often a run was stopped so far."""

    def __init__(self, engine: Any, seed: int = 0) -> None:
        self._engine = engine
        self.rng = random.Random(seed)
        self.cuts = 0

    def open_space(self) -> _CutSpace:
        return _CutSpace(self, self._engine, self._engine.open_space())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


class _CutSpace:
    def __init__(self, owner: CutEngine, engine: Engine, space: Space) -> None:
        self._owner, self._engine, self._space = owner, engine, space

    def run(self, prepared: Prepared, scalars: Sequence[Number], keys: Sequence[int]) -> Launch:
        pieces = Pieces(self._engine, self._space.begin(prepared, scalars, keys), self._owner.rng)
        while not pieces.over:
            if pieces.launches and self._owner.rng.random() < 0.3:
                shuffle_blocks(self._space, keys, self._owner.rng)
            pieces.go()
        self._owner.cuts += len(pieces.launches) - 1
        return pieces.account()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._space, name)


def shuffle_blocks(space: Space, keys: Sequence[int], rng: random.Random) -> None:
    """Park some buffers, let others take their places, and bring them back with their bytes."""
    chosen = [key for key in keys if rng.random() < 0.5 and space.size(key)]
    held = {key: np.frombuffer(bytes(space.read(key, 0, space.size(key))), np.uint8) for key in chosen}
    for key in chosen:
        space.park(key)
    fill = -1 - max([0, *map(abs, keys)])
    space.alloc(fill, max([1, *(len(x) for x in held.values())]))
    space.write(fill, 0, b"\xee" * space.size(fill))
    for key in rng.sample(chosen, len(chosen)):
        space.unpark(key)
        space.write(key, 0, held[key].tobytes())
    space.free(fill)
