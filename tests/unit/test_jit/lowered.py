"""Running a planned program by its lowered kernels, in the interpreter of the kernel tier; what is not fused, by the reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from jit.errors import Inexpressible
from jit.host.calls import supported
from jit.kernels.lower import Lowered, What, lower
from jit.plan.access import Access
from jit.plan.form import FormedLoop, form
from jit.plan.fuse import fuse
from jit.plan.group import Supported
from tests.support.builder import Builder
from tests.support.wis_run import decompose
from tests.unit.test_jit.conftest import ulps
from wis import reference
from wis.dtypes import DType
from wis.kernel.interpret import Launch, launch
from wis.kernel.verify import VerifiedKernel, verify_kernel
from wis.program import BoundProgram, BufferKind, Scalar
from wis.reference.access import immediate
from wis.verify import verify

__all__ = [
    "Buffers",
    "Runner",
    "formed_loops",
    "parameters",
    "interpreted",
    "run_by_kernels",
    "run_by_reference",
    "same_buffers",
    "written_type",
]

Buffers = dict[int, npt.NDArray[Any]]
Runner = Callable[[Lowered, tuple[int, int], list[Any]], None]


def formed_loops(b: Builder, fusible: Supported = supported) -> list[FormedLoop]:
    """What the planner makes of a program that it fuses completely; ``fusible``: what the back end says it has."""
    bound, _ = decompose(b.bound())
    steps = fuse(bound.code, bound.program.buffers, fusible)
    groups = [step.group for step in steps if step.group is not None]
    assert len(groups) == len(steps)
    return [form(group) for group in groups]


def parameters(lowered: Lowered, formed: FormedLoop, scalars: list[Any], buffers: Buffers) -> list[Any]:
    """What a launch is given: a u8 array a buffer, a number a scalar."""
    found: list[Any] = []
    for what, slot in lowered.arguments:
        given = formed.args[slot]
        if isinstance(given, Access):
            found.append(buffers[given.buffer] if what is What.BUFFER else given.offset)
        elif isinstance(given, Scalar):
            value = immediate(scalars[given.slot], given.dtype)
            found.append(float(value) if given.dtype.is_float else int(value))
        else:
            found.append(given)
    return found


def interpreted(lowered: Lowered, grid: tuple[int, int], params: list[Any]) -> None:
    """Verify and run in the definition of the kernel tier."""
    verified: VerifiedKernel = verify_kernel(lowered.kernel)
    outcome = launch(verified, Launch((grid[0], 1, 1), (grid[1], 1, 1)), params)
    assert not outcome.trapped


def _memory(bound: BoundProgram, inputs: Buffers) -> Buffers:
    memory = {n: np.zeros(nbytes, np.uint8) for n, nbytes in enumerate(bound.nbytes)}
    for n, values in inputs.items():
        raw = np.frombuffer(np.ascontiguousarray(values).tobytes(), np.uint8)[: len(memory[n])]
        memory[n][: len(raw)] = raw
    return memory


def run_by_kernels(b: Builder, inputs: Buffers, run: Runner) -> tuple[dict[int, bytes], int, list[str]]:
    """The bytes of all lasting buffers, the number of kernels run, and why others were not lowered."""
    program, _, scalars = b.finish()
    bound, constants = decompose(b.bound())
    scalars = [*scalars, *constants]
    memory = _memory(bound, inputs)
    kernels, refused = 0, []
    flat = [memory[n] for n in range(len(memory))]
    for step in fuse(bound.code, bound.program.buffers, supported):
        formed = form(step.group) if step.group is not None else None
        try:
            lowered = lower(formed.kernel, "fused") if formed is not None else None
        except Inexpressible as error:
            refused.append(str(error))
            lowered = None
        if formed is not None and lowered is not None:
            sizes = [formed.args[slot] for slot in lowered.kept]
            assert all(isinstance(size, int) for size in sizes)
            run(lowered, lowered.grid([size for size in sizes if isinstance(size, int)]), parameters(lowered, formed, scalars, memory))
            kernels += 1
        else:
            for place in sorted(step.members):
                reference.step(bound.code[place], scalars, flat)
    return {n: memory[n].tobytes() for n, kind in enumerate(program.buffers) if kind != BufferKind.TEMP}, kernels, refused


def run_by_reference(b: Builder, inputs: Buffers) -> dict[int, bytes]:
    program, dims, scalars = b.finish()
    memory = _memory(b.bound(), inputs)
    reference.run(verify(program, dims), scalars, [memory[n] for n in range(len(memory))])
    return {n: memory[n].tobytes() for n, kind in enumerate(program.buffers) if kind != BufferKind.TEMP}


def written_type(b: Builder, buffer: int) -> DType | None:
    """The element type under which a buffer is written."""
    return next((out.dtype for instr in b.bound().code for out in instr.outs if out.buffer == buffer), None)


def same_buffers(b: Builder, got: dict[int, bytes], want: dict[int, bytes], most: float = 0.0) -> None:
    """Every lasting buffer agrees, floats within ``most`` ulp. 0 and -0 agree, and so do NaNs of any payload."""
    for n, wanted in want.items():
        dtype = written_type(b, n)
        if got[n] == wanted:
            continue
        assert dtype is not None and dtype.is_float, f"buffer {n}"
        a, w = (np.frombuffer(raw[: len(raw) // dtype.itemsize * dtype.itemsize], dtype.numpy) for raw in (got[n], wanted))
        assert ulps(a, w).max() <= most, f"buffer {n} ({dtype.text})"
