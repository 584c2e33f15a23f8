"""From records to programs: what is renamed, what is kept, what travels. No torch, no link."""

from __future__ import annotations

import struct

import pytest

from wis.dtypes import DType
from wis.encoding import decode_program, digest
from wis.limits import LIMITS
from wis.program import BufferKind, Imm, bind
from wis.verify import verify
from wooly.device.lowering.template import Template
from wooly.device.lowering.trace import Trace
from wooly.device.lowering.values import Expected, Meta, ScalarArg
from wooly.device.programs import ProgramCache, Record, Stencil, TooLarge, wire

F32 = DType.F32


def add_scalar(n: int = 4, constant: float | None = None) -> Stencil:
    """out = in + number; the number is a constant of the template or an argument of the call."""
    trace = Trace(1, [Expected(F32, (n,), (1,))])
    x = Meta(0, F32, (n,), (1,))
    return Stencil(trace.finish(trace.map("add", x, ScalarArg(0, float) if constant is None else constant)))


def chain(stencil: Stencil, start: int, count: int) -> list[Record]:
    """Each record adds to the output of the one before; handles ``start`` ... ``start + count``."""
    return [(stencil, [start + i, start + i + 1], [float(i)]) for i in range(count)]


def test_handles_become_buffers_by_first_appearance() -> None:
    wired = wire([(add_scalar(), [70, 5], [1.0]), (add_scalar(), [5, 9], [2.0]), (add_scalar(), [70, 8], [3.0])], freed={5, 70})
    assert wired.order == [70, 5, 9, 8]
    assert list(wired.kinds) == [BufferKind.EXTERNAL, BufferKind.TEMP, BufferKind.CREATED, BufferKind.CREATED]
    assert wired.temps() == [5], "a buffer that was there before is freed by name"


def test_a_program_verifies_and_carries_its_scalars_in_order() -> None:
    cache = ProgramCache()
    dynamic, fixed = add_scalar(), add_scalar(constant=0.5)
    records: list[Record] = [(dynamic, [1, 2], [7.0]), (fixed, [2, 3], []), (dynamic, [3, 4], [8.0]), (fixed, [4, 5], [])]
    wired = wire(records, freed={2, 3, 4})
    built = cache.get(wired)
    program = decode_program(built.program_body)
    assert digest(built.program_body) == built.program and digest(built.dims) == built.dims_digest
    verify(program, built.dims, LIMITS)
    assert built.handles(wired.order) == [1, 5]
    assert built.scalars(records) == [7.0, 8.0, 0.5], "a constant travels once"
    assert [x.scalar for instr in program.code for x in instr.ins if isinstance(x, Imm)] == [0, 2, 1, 2]
    assert bind(program, built.dims).nbytes == (16,) * 5


def test_the_next_step_is_the_same_program_with_other_handles_and_numbers() -> None:
    cache, stencil = ProgramCache(), add_scalar()
    first = cache.get(wire(chain(stencil, 1, 5), freed={2, 3}))
    again = cache.get(wire(chain(stencil, 100, 5), freed={101, 102}))
    assert again is first
    other = cache.get(wire(chain(stencil, 1, 5), freed={2}))
    assert other.program != first.program, "what outlives the program is part of it"


def test_other_sizes_are_other_dims_of_the_same_program() -> None:
    cache = ProgramCache()
    small, large = (cache.get(wire(chain(add_scalar(n), 1, 3), freed=set())) for n in (4, 9))
    assert small.program == large.program and small.dims_digest != large.dims_digest
    assert struct.unpack_from("<4q", large.dims) == (36,) * 4


def test_a_buffer_is_as_large_as_its_greatest_use() -> None:
    """An input is read through a view here and a longer view there: the program asks for what both need."""
    records: list[Record] = [(add_scalar(2), [1, 2], [0.0]), (add_scalar(6), [1, 3], [0.0])]
    assert struct.unpack_from("<3q", ProgramCache().get(wire(records, freed=set())).dims) == (24, 8, 24)


def test_too_many_instructions_are_refused_before_anything_is_built() -> None:
    with pytest.raises(TooLarge):
        ProgramCache().get(wire(chain(add_scalar(), 1, LIMITS.instructions_max + 1), freed=set()))


def test_old_programs_are_forgotten() -> None:
    cache, stencil = ProgramCache(n_built=2, n_structures=2), add_scalar()
    first = cache.get(wire(chain(stencil, 1, 1), freed=set()))
    for n in (2, 3):
        cache.get(wire(chain(stencil, 1, n), freed=set()))
    assert cache.get(wire(chain(stencil, 1, 1), freed=set())) is not first


def test_the_random_stream_is_filled_in_at_each_use() -> None:
    from wis.ops import Dist

    trace = Trace(0, [Expected(F32, (8,), (1,))])
    template: Template = trace.finish(trace.random((8,), F32, Dist.UNIFORM))
    stencil = Stencil(template)
    assert stencil.rng_counters == 2 and stencil.evaluate is not None
    assert list(stencil.evaluate([11, 40])) == [11, 40]
