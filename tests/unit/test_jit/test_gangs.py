"""Fused groups as kernels for gangs of 32 lanes: they verify, and mean what the reference says, bit by bit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pytest

from jit.backends import FUEL
from jit.engine import EngineConfig
from jit.errors import Inexpressible
from jit.host.emit.ops import supported
from jit.host.engine import HostEngine
from jit.host.gangs import variant
from jit.kernels.gangs import GangKernel, lower_gangs
from jit.plan.form import form
from jit.plan.fuse import fuse
from tests.unit.test_jit.conftest import ulps
from tests.unit.test_jit.lowered import Buffers, formed_loops, parameters, run_by_reference, written_type
from tests.unit.test_jit.lowered_programs import FOLDER, PROGRAMS, pinned, program
from tests.unit.test_jit.programs import random_program
from wis import reference
from wis.builder import Builder
from wis.decompose import decompose
from wis.dtypes import DType
from wis.kernel.interpret import Launch, launch
from wis.kernel.limits import KERNEL_LIMITS
from wis.kernel.text import print_kernel
from wis.kernel.verify import verify_kernel
from wis.program import BufferKind
from wis.verify import verify

LIMITS: Final = replace(KERNEL_LIMITS, shared_bytes_max=1 << 20)


def run_by_gangs(b: Builder, inputs: Buffers) -> tuple[dict[int, bytes], int]:
    """The bytes of all lasting buffers, and the number of kernels run, each in the definition of the kernel tier."""
    program, _, scalars = b.finish()
    bound, constants = decompose(b.bound())
    scalars = [*scalars, *constants]
    memory = {n: np.zeros(nbytes, np.uint8) for n, nbytes in enumerate(bound.nbytes)}
    for n, values in inputs.items():
        raw = np.frombuffer(np.ascontiguousarray(values).tobytes(), np.uint8)[: len(memory[n])]
        memory[n][: len(raw)] = raw
    kernels = 0
    for step in fuse(bound.code, bound.program.buffers, supported):
        formed = form(step.group) if step.group is not None else None
        made: GangKernel | None = None
        if formed is not None:
            try:
                room, short = variant(formed)
                made = lower_gangs(formed.kernel, "fused", room=room, short=short)
            except Inexpressible:
                made = None
        if formed is None or made is None:
            for place in sorted(step.members):
                reference.step(bound.code[place], scalars, [memory[n] for n in range(len(memory))])
            continue
        params: list[Any] = parameters(made, formed, scalars, memory)
        outcome = launch(verify_kernel(made.kernel, LIMITS), Launch(made.grid(formed.args), (32, 1, 1)), params)
        assert not outcome.trapped
        kernels += 1
    return {n: memory[n].tobytes() for n, kind in enumerate(program.buffers) if kind != BufferKind.TEMP}, kernels


def agree(b: Builder, inputs: Buffers) -> int:
    want = run_by_reference(b, inputs)
    got, kernels = run_by_gangs(b, inputs)
    for n, wanted in want.items():
        dtype = written_type(b, n)
        if got[n] == wanted:
            continue
        assert dtype is not None and dtype.is_float, f"buffer {n}"
        a, w = (np.frombuffer(raw[: len(raw) // dtype.itemsize * dtype.itemsize], dtype.numpy) for raw in (got[n], wanted))
        assert ulps(a, w).max() <= 0, f"buffer {n} ({dtype.text})"
    return kernels


@pytest.mark.parametrize("seed", range(40))
def test_random_programs_agree_bit_by_bit(seed: int) -> None:
    b, inputs = random_program(seed, 12)
    agree(b, inputs)


@pytest.mark.parametrize("name", PROGRAMS)
def test_named_functions_and_half_sums_agree(name: str) -> None:
    b, inputs = program(name)
    assert agree(b, inputs) == 1


@pytest.mark.parametrize("name", PROGRAMS)
def test_golden_kernel(name: str) -> None:
    """To accept a change on purpose: delete the file, run the test once (it fails and writes the new one), read the difference."""
    (loop,) = formed_loops(PROGRAMS[name]())
    pinned(FOLDER / f"{name}.gang.kernel", print_kernel(lower_gangs(loop.kernel, name).kernel))


@pytest.fixture(scope="module")
def engines() -> Iterator[tuple[HostEngine, HostEngine]]:
    config = EngineConfig(cache_dir=None, threads=1, vram_bytes=1 << 26, fuel=FUEL["host"])
    made = HostEngine(config), HostEngine(config, gangs=True)
    yield made
    for engine in made:
        engine.close()


@pytest.mark.parametrize("seed", range(8))
def test_both_lowerings_of_the_host_leave_the_same_bytes(seed: int, engines: tuple[HostEngine, HostEngine]) -> None:
    b, inputs = random_program(1000 + seed, 12)
    emitted, ganged = (run_on(engine, b, inputs) for engine in engines)
    for n, want in emitted.items():
        dtype = written_type(b, n)
        if ganged[n] != want:
            assert dtype is not None and dtype.is_float, f"buffer {n}"
            a, w = (np.frombuffer(raw[: len(raw) // dtype.itemsize * dtype.itemsize], dtype.numpy) for raw in (ganged[n], want))
            assert ulps(a, w, signed_zeros=True).max() <= 0, f"buffer {n} ({dtype.text})"


@pytest.mark.parametrize("name", PROGRAMS)
def test_named_functions_have_the_same_bits_in_both(name: str, engines: tuple[HostEngine, HostEngine]) -> None:
    b, inputs = program(name)
    emitted, ganged = (run_on(engine, b, inputs) for engine in engines)
    assert emitted == ganged
    assert engines[1].kernels == 0, "nothing went through the emitter"


def run_on(engine: HostEngine, b: Builder, inputs: Buffers) -> dict[int, bytes]:
    """The bytes of all lasting buffers."""
    program, dims, scalars = b.finish()
    space, nbytes = engine.open_space(), b.bound().nbytes
    keys = [n for n, kind in enumerate(program.buffers) if kind != BufferKind.TEMP]
    for n in keys:
        if program.buffers[n] == BufferKind.EXTERNAL:
            space.alloc(n, nbytes[n])
            space.write(n, 0, np.ascontiguousarray(inputs.get(n, np.zeros(0))).tobytes()[: nbytes[n]])
    space.run(engine.prepare(verify(program, dims)), scalars, keys)
    found = {n: bytes(space.read(n, 0, space.size(n))) for n in keys}
    space.close()
    return found


@pytest.mark.parametrize("name", ["fmod", "mod", "floor_div"])
def test_float_remainders_have_the_same_bits_in_both(name: str, engines: tuple[HostEngine, HostEngine]) -> None:
    b = Builder()
    x, y = b.external(DType.F32, (40,)), b.created(DType.F32, (40,))
    b.emit(name, y, [x, b.const(0.3, DType.F32)])
    inputs: Buffers = {x.buffer: np.linspace(-9, 9, 40, dtype=np.float32)}
    emitted, ganged = (run_on(engine, b, inputs) for engine in engines)
    assert emitted == ganged and engines[1].kernels == 0
