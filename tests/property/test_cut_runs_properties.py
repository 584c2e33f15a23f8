"""Runs that are stopped in arbitrary places give what uncut runs give: bytes, traps, counts, on every back end that can run here."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from jit.backends import create_engine
from jit.engine import Engine, Launch
from jit.errors import ToolchainError
from tests.support.builder import Builder
from tests.support.cutting import CutEngine, Pieces, shuffle_blocks
from tests.support.wis_kernels import seeded_case
from tests.support.wis_programs import LIMITS, buffers_for, random_program
from tests.unit.test_jit import programs
from wis.dtypes import DType
from wis.kernel.model import Access, BufferParam, RegType
from wis.kernel.verify import verify_kernel
from wis.program import BufferKind, Operand, Scalar
from wis.verify import Verified, verify
from wis.verify.launches import SCALAR_TYPES

VRAM = 1 << 28
ENGINES = [("reference", 1), pytest.param(("host", 1), marks=pytest.mark.variant), ("host", 2), ("opencl", 2)]
Bytes = dict[int, bytes]


@pytest.fixture(scope="module", params=ENGINES, ids=lambda p: f"{p[0]}-{p[1]}")
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    backend, threads = request.param
    try:
        made = create_engine(backend, cache_dir=tmp_path_factory.mktemp(backend), threads=threads, vram_bytes=VRAM)
    except ToolchainError as error:
        pytest.skip(f"no {backend} device here: {error}")
    yield made
    made.close()


@dataclass
class Work:
    """A program with what its buffers hold at first."""

    verified: Verified
    scalars: list[Any]
    start: dict[int, Any]

    @property
    def keys(self) -> list[int]:
        return [number for number, kind in enumerate(self.verified.bound.program.buffers) if kind != BufferKind.TEMP]

    def fill(self, space: Any) -> None:
        """Make the EXTERNAL buffers."""
        bound = self.verified.bound
        for number in self.keys:
            if bound.program.buffers[number] == BufferKind.EXTERNAL:
                space.alloc(number, bound.nbytes[number])
                if number in self.start:
                    space.write(number, 0, np.ascontiguousarray(self.start[number]).tobytes()[: bound.nbytes[number]])

    def found(self, space: Any) -> Bytes:
        return {number: bytes(space.read(number, 0, self.verified.bound.nbytes[number])) for number in self.keys}


def run(engine: Any, work: Work) -> tuple[Bytes, Launch]:
    space = engine.open_space()
    work.fill(space)
    launch = space.run(engine.prepare(work.verified), work.scalars, work.keys)
    found = work.found(space)
    space.close()
    return found, launch


def told(launch: Launch) -> tuple[int, str | None, str | None]:
    """What of an account does not depend on time."""
    return launch.instructions, launch.trap, launch.out_of_fuel


def seeds(engine: Engine, n: int) -> range:
    """A compiler process for every program is slow."""
    return range(n // 4 if engine.info.backend == "opencl" else n)


def of_any_ops(seed: int) -> Work:
    """Instructions of any op in a row, over views of any kind."""
    rng = random.Random(seed)
    picks = iter([8])  # the generator's first question: how many

    def pick(low: int, high: int) -> int:
        return next(picks, None) or rng.randint(low, high)

    program, dims, scalars = random_program(pick)
    verified = verify(program, dims, LIMITS)
    held = {number: buffer for number, buffer in enumerate(buffers_for(verified, seed)) if buffer is not None}
    return Work(verified, list(scalars), held)


def of_fused_ops(seed: int) -> Work:
    """Larger tensors, most of them fused: several claims in a phase."""
    b, inputs = programs.random_program(seed, 14, grow=40)
    program, dims, scalars = b.finish()
    return Work(verify(program, dims), list(scalars), dict(inputs))


def of_kernels(seed: int) -> Work:
    """A random kernel launched twice between tensor instructions, on a grid of several blocks."""
    case = seeded_case(seed, 12)
    kernel = verify_kernel(case.kernel)
    b = Builder()
    outs: list[Operand] = []
    ins: list[Operand | Scalar] = []
    start: dict[int, Any] = {}
    first: Operand | None = None
    for param, value in zip(kernel.kernel.params, case.params, strict=True):
        if isinstance(param, BufferParam):
            assert isinstance(value, np.ndarray)
            x = b.external(DType.U8, (value.nbytes,))
            start[x.buffer] = value
            first = x if first is None and param.access & Access.WRITE else first
            if param.access & Access.WRITE:
                outs.append(x)
            else:
                ins.append(x)
        else:
            assert isinstance(value, int | float)
            ins.append(b.const(value, SCALAR_TYPES[RegType(param.reg_type)]))
    assert first is not None, "random kernels write"
    copy = b.created(DType.U8, first.shape)
    for _ in range(2):
        b.launch(kernel.digest, case.grid, case.block, outs, ins, case.dynamic_bytes)
        b.emit("add", copy, [first, b.const(1, DType.U8)])
    program, dims, scalars = b.finish()
    return Work(verify(program, dims, kernels={kernel.digest: kernel}), list(scalars), start)


MAKERS = [of_any_ops, of_fused_ops, of_kernels]


@pytest.mark.parametrize("make", MAKERS)
def test_a_run_in_pieces_is_the_run(engine: Engine, make: Any) -> None:
    cutting = CutEngine(engine, 1)
    for seed in seeds(engine, 12):
        work = make(1000 + seed)
        want, expected = run(engine, work)
        got, launch = run(cutting, work)
        assert got == want, f"seed {1000 + seed}"
        assert told(launch) == told(expected)
    assert cutting.cuts > 3, "the pieces were pieces"


@pytest.mark.parametrize("make", MAKERS)
def test_runs_of_one_plan_take_turns(engine: Engine, make: Any) -> None:
    """Three sessions run the same plan on contents of their own, a piece of one after a piece of another; some give up on the way and
    begin again elsewhere."""
    cuts = 0
    for seed in seeds(engine, 5):
        rng, base = random.Random(seed), make(2000 + seed)
        works = [Work(base.verified, base.scalars, {n: _turned(x, shift) for n, x in base.start.items()}) for shift in range(3)]
        wants = [run(engine, work) for work in works]
        prepared = engine.prepare(base.verified)
        under_way: dict[int, tuple[Any, Pieces]] = {}
        left = [0, 1, 2]
        while left:
            at = rng.choice(left)
            if at not in under_way:
                space = engine.open_space()
                works[at].fill(space)
                under_way[at] = space, Pieces(engine, space.begin(prepared, works[at].scalars, works[at].keys), rng)
            space, pieces = under_way[at]
            if rng.random() < 0.1:
                pieces.drop()
                space.close()
                del under_way[at]
                continue
            if pieces.launches and rng.random() < 0.3:
                shuffle_blocks(space, works[at].keys, rng)
            pieces.go()
            if pieces.over:
                want, expected = wants[at]
                launch = pieces.account()
                assert works[at].found(space) == want, f"seed {2000 + seed}"
                assert (launch.instructions, launch.trap, launch.out_of_fuel) == (
                    expected.instructions,
                    expected.trap,
                    expected.out_of_fuel,
                )
                cuts += len(pieces.launches) - 1
                space.close()
                left.remove(at)
    assert cuts > 3


def _turned(x: Any, shift: int) -> Any:
    """Other contents made of the same elements, so that they are as harmless."""
    return np.roll(np.asarray(x), shift * 8)
