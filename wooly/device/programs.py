"""Builds programs from recorded operations: renames handles to buffers, and caches what it built.

A record is (stencil, handles, arguments). The records of one flush, with their handles renamed in order of first appearance, are the
key under which the finished program and dims are kept: a training step seen before costs a few dictionary operations, and only
digests, scalars and handles travel.
"""

from __future__ import annotations

import copy
import re
import struct
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, compress, count
from typing import Final

from wis.dtypes import DType
from wis.encoding import digest, encode_program
from wis.errors import VerifyError
from wis.kernel.limits import KERNEL_LIMITS
from wis.limits import LIMITS
from wis.ops import BY_NAME
from wis.program import KERNELS_VERSION, VERSION, BufferKind, Imm, Instr, Program, Ref
from wis.verify import verify
from wooly.device.lowering import Unsupported
from wooly.device.lowering.template import Counter, Seed, Template
from wooly.device.lowering.values import Derived, Number, ScalarArg
from wooly.shared.lru import LruDict

__all__ = ["Stencil", "Record", "Built", "Wired", "ProgramCache", "TooLarge", "wire", "verify_stencil"]

_LAUNCH: Final = BY_NAME["launch"].code
EXTERNAL, CREATED, TEMP = int(BufferKind.EXTERNAL), int(BufferKind.CREATED), int(BufferKind.TEMP)

Evaluate = Callable[[Sequence[Number]], Sequence[Number]]


class TooLarge(Exception):
    """The records do not fit one program; send them in two."""


class Stencil:
    """A template ready for recording. Two stencils are the same only if they are one object.

    A record's handles are its ``n_ins`` inputs, then its outputs; ``code`` refers to them by position, and to temporaries by
    ``n_handles + i``. ``evaluate`` maps a record's arguments to the values of its ``n_dynamic`` first scalar slots, which come from
    ``sources`` (None: it has none); the slots after those are ``constants``. A stencil that draws random numbers finds (seed, offset)
    behind its other arguments. ``name`` is the operation's; ``checks`` and ``along`` say what it means when an instruction of its code
    traps (see Template).
    """

    __slots__ = (
        "along", "checks", "code", "constants", "dims", "evaluate", "kernels", "n_dynamic", "n_handles", "n_ins", "name", "needs",
        "rng_counters", "sources", "structure", "temps",
    )  # fmt: skip

    def __init__(self, template: Template, name: str = "") -> None:
        """``name``: of the operation, for messages."""
        self.name = name
        self.checks, self.along = dict(template.checks), dict(template.along)
        self.n_ins = template.n_ins
        positions = _positions(template)
        self.n_handles = template.n_ins + sum(out is not None for out in template.outs)
        self.kernels = template.kernels
        self.rng_counters = template.rng_counters
        dynamic = [i for i, source in enumerate(template.sources) if not isinstance(source, _NUMBERS)]
        constant = [i for i, source in enumerate(template.sources) if isinstance(source, _NUMBERS)]
        self.constants: tuple[Number, ...] = tuple(template.sources[i] for i in constant)  # type: ignore[misc]  # just selected
        self.n_dynamic = len(dynamic)
        self.sources = tuple([template.sources[i] for i in dynamic])
        self.evaluate = _evaluator(template, dynamic)
        slots = {old: new for new, old in enumerate((*dynamic, *constant))}
        self.code = tuple(_renamed(instr, positions, slots) for instr in template.code)
        structure = (self.code, self.constants, self.n_dynamic, len(template.temps), tuple([name for name, _ in self.kernels]))
        self.structure = _STRUCTURES.setdefault(structure, len(_STRUCTURES))
        self._measure(template.dims, template.temps, [out.nbytes for out in template.outs if out is not None])

    def _measure(self, dims: Sequence[int], temps: tuple[int, ...], outs: Sequence[int]) -> None:
        """Take the sizes: ``dims`` as in Template, bytes of the temporaries, and bytes that each output is allocated with."""
        self.dims = struct.pack(f"<{len(dims)}q", *dims)
        self.temps = temps
        self.needs = (*_touched(self.code, dims, self.n_ins), *outs)

    def resized(self, dims: Sequence[int], temps: tuple[int, ...], outs: Sequence[int]) -> Stencil:
        """The same instructions for other sizes, as ``_measure`` takes them."""
        other = copy.copy(self)
        other._measure(dims, temps, outs)
        return other

    def explain(self, instruction: int, text: str) -> str:
        """``text``, which a node says of one of its instructions, as the user knows it: by operation."""
        text = _DIMENSION.sub(partial(_renamed_dimension, self.along.get(instruction)), self.checks.get(instruction, text))
        return f"{text} ({self.name})" if self.name else text


_NUMBERS: Final = (bool, int, float, complex)
_STRUCTURES: Final[dict[object, int]] = {}

Record = tuple[Stencil, list[int], Sequence[Number]]


def _positions(template: Template) -> list[int]:
    """For every slot of the template its place among the record's handles, and temporaries behind them."""
    positions = list(range(template.n_ins))
    at = template.n_ins
    for out in template.outs:
        positions.append(at)
        at += out is not None
    return positions + list(range(at, at + len(template.temps)))


def _renamed(instr: Instr, buffers: Sequence[int], scalars: dict[int, int]) -> Instr:
    return Instr(
        instr.op,
        tuple(Ref(buffers[r.buffer], r.dtype, r.rank) for r in instr.outs),
        tuple(Ref(buffers[x.buffer], x.dtype, x.rank) if isinstance(x, Ref) else Imm(scalars[x.scalar], x.dtype) for x in instr.ins),
        instr.attrs,
    )


def _evaluator(template: Template, dynamic: list[int]) -> Evaluate | None:
    """A function from a record's arguments to the values of the template's ``dynamic`` slots."""
    sources = [template.sources[i] for i in dynamic]
    if not sources:
        return None
    if not any(isinstance(source, Seed | Counter | Derived) for source in sources):
        indices = [source.index for source in sources if isinstance(source, ScalarArg)]
        if indices == list(range(len(indices))):
            return lambda args: args[: len(indices)]
        return lambda args: [args[i] for i in indices]
    if template.rng_counters:
        return lambda args: _select(template.scalars(args[:-2], int(args[-2].real), int(args[-1].real)), dynamic)
    return lambda args: _select(template.scalars(args), dynamic)


def _select(values: Sequence[Number], indices: Sequence[int]) -> list[Number]:
    return [values[i] for i in indices]


def _touched(code: Sequence[Instr], dims: Sequence[int], n_ins: int) -> list[int]:
    """Bytes that ``code`` touches of each of the ``n_ins`` first buffers, which are a record's inputs."""
    touched = [0] * n_ins
    at = 0
    for instr in code:
        for ref in (*instr.outs, *(x for x in instr.ins if isinstance(x, Ref))):
            shape, strides = dims[at : at + ref.rank], dims[at + ref.rank : at + 2 * ref.rank]
            at += 2 * ref.rank + 1
            if ref.buffer >= n_ins or 0 in shape:
                continue
            last = dims[at - 1] + sum((n - 1) * s for n, s in zip(shape, strides, strict=True) if s > 0)
            touched[ref.buffer] = max(touched[ref.buffer], (last + 1) * _ITEMSIZES[ref.dtype])
    return touched


_ITEMSIZES: Final = {int(d): d.itemsize for d in DType}


@dataclass(slots=True)
class Wired:
    """Records with their handles renamed: ``order`` lists the distinct handles in order of first appearance."""

    stencils: tuple[Stencil, ...]
    wiring: bytes
    kinds: bytes
    order: list[int]

    @property
    def key(self) -> tuple[object, ...]:
        return (self.stencils, self.wiring, self.kinds)

    def temps(self) -> list[int]:
        """Handles of buffers that do not outlive the program."""
        return [h for h, kind in zip(self.order, self.kinds, strict=True) if kind == TEMP]


def wire(records: Sequence[Record], freed: set[int]) -> Wired:
    """Rename the handles of ``records``. Buffers that the records make and that are in ``freed`` need not outlive the program."""
    lists = [record[1] for record in records]
    order = list(dict.fromkeys(chain.from_iterable(lists)))
    index = dict(zip(order, count(), strict=False))
    wiring = array("i", map(index.__getitem__, chain.from_iterable(lists))).tobytes()
    stencils = tuple([record[0] for record in records])
    made = set(chain.from_iterable([handles[stencil.n_ins :] for stencil, handles, _ in records]))
    kinds = bytes([EXTERNAL if h not in made else TEMP if h in freed else CREATED for h in order])
    return Wired(stencils, wiring, kinds, order)


_DIMENSION: Final = re.compile(r"dimension (\d+)")


def _renamed_dimension(along: Sequence[int] | None, found: re.Match[str]) -> str:
    return f"dimension {along[int(found[1])]}" if along is not None else found[0]


@dataclass(slots=True)
class Built:
    """A program, its dims and its kernels as they travel, and how to fill in one use of them."""

    program: bytes
    program_body: bytes
    dims_digest: bytes
    dims: bytes
    keep: bytes
    dynamic: tuple[int, ...]
    constants: tuple[Number, ...]
    kernels: tuple[tuple[bytes, bytes], ...]

    def handles(self, order: Sequence[int]) -> list[int]:
        """The handles of EXTERNAL and CREATED buffers, in buffer order."""
        return list(compress(order, self.keep))

    def scalars(self, records: Sequence[Record]) -> list[Number]:
        values: list[Number] = []
        for i in self.dynamic:
            stencil, _, args = records[i]
            values += stencil.evaluate(args)  # type: ignore[misc]  # only records with dynamic scalars are listed
        values += self.constants
        return values


@dataclass(slots=True)
class _Structure:
    """What all dims of one program share."""

    program: bytes
    body: bytes
    keep: bytes
    dynamic: tuple[int, ...]
    constants: tuple[Number, ...]
    kernels: tuple[tuple[bytes, bytes], ...]


class ProgramCache:
    """Programs by the wiring of their records, least recently used first to go."""

    def __init__(self, n_built: int = 512, n_structures: int = 2048) -> None:
        self._built: LruDict[tuple[object, ...], Built] = LruDict(n_built)
        self._structures: LruDict[tuple[object, ...], _Structure] = LruDict(n_structures)

    def get(self, wired: Wired) -> Built:
        """The program of ``wired``; raises TooLarge when it would pass what a node accepts."""
        key = wired.key
        built = self._built.get(key)
        if built is not None:
            self._built.move_to_end(key)
            return built
        structure = self._structure(wired)
        dims = _dims(wired)
        s = structure
        built = Built(s.program, s.body, digest(dims), dims, s.keep, s.dynamic, s.constants, s.kernels)
        self._built[key] = built
        return built

    def _structure(self, wired: Wired) -> _Structure:
        key = (tuple([s.structure for s in wired.stencils]), wired.wiring, wired.kinds)
        structure = self._structures.get(key)
        if structure is not None:
            self._structures.move_to_end(key)
            return structure
        structure = self._structures[key] = _build(wired)
        return structure


def _build(wired: Wired) -> _Structure:
    """Join the code of all records into one program."""
    n_temps = sum(len(s.temps) for s in wired.stencils)
    n_scalars = sum(s.n_dynamic for s in wired.stencils)
    if sum(len(s.code) for s in wired.stencils) > LIMITS.instructions_max or len(wired.kinds) + n_temps > LIMITS.buffers_max:
        raise TooLarge
    constants: dict[tuple[type, str], int] = {}
    values: list[Number] = []
    for stencil in wired.stencils:
        for value in stencil.constants:
            if constants.setdefault((type(value), repr(value)), n_scalars + len(values)) == n_scalars + len(values):
                values.append(value)
    if n_scalars + len(values) > LIMITS.scalars_max:
        raise TooLarge
    wiring = array("i")
    wiring.frombytes(wired.wiring)
    kernels: dict[tuple[bytes, bytes], int] = {}
    code: list[Instr] = []
    at, temp, scalar = 0, len(wired.kinds), 0
    for stencil in wired.stencils:
        buffers = [*wiring[at : at + stencil.n_handles], *range(temp, temp + len(stencil.temps))]
        slots = {i: scalar + i for i in range(stencil.n_dynamic)}
        slots.update({stencil.n_dynamic + i: constants[type(v), repr(v)] for i, v in enumerate(stencil.constants)})
        renamed = [_renamed(instr, buffers, slots) for instr in stencil.code]
        code += [_rename_kernel(instr, stencil, kernels) for instr in renamed] if stencil.kernels else renamed
        at, temp, scalar = at + stencil.n_handles, temp + len(stencil.temps), scalar + stencil.n_dynamic
    kernel_bytes = sum(len(body) for _, body in kernels)
    if len(kernels) > LIMITS.kernels_max or (kernel_bytes > KERNEL_LIMITS.bytes_max and len(wired.stencils) > 1):
        raise TooLarge
    version = KERNELS_VERSION if kernels else VERSION
    program = Program(
        version, (*wired.kinds, *[TEMP] * n_temps), n_scalars + len(values), tuple(code), tuple([name for name, _ in kernels])
    )
    body = encode_program(program)
    if len(body) > LIMITS.program_bytes_max and len(wired.stencils) > 1:
        raise TooLarge
    keep = bytes([kind != TEMP for kind in wired.kinds])
    dynamic = tuple([i for i, s in enumerate(wired.stencils) if s.evaluate is not None])
    return _Structure(digest(body), body, keep, dynamic, tuple(values), tuple(kernels))


def _rename_kernel(instr: Instr, stencil: Stencil, kernels: dict[tuple[bytes, bytes], int]) -> Instr:
    """A launch names its kernel by the place among the program's."""
    if instr.op != _LAUNCH:
        return instr
    number = kernels.setdefault(stencil.kernels[instr.attrs[0]], len(kernels))
    return Instr(instr.op, instr.outs, instr.ins, (number, *instr.attrs[1:]))


def _dims(wired: Wired) -> bytes:
    """Buffer sizes, then the dims of every record in order."""
    nbytes = array("q", bytes(8 * len(wired.kinds)))
    wiring = array("i")
    wiring.frombytes(wired.wiring)
    for buffer, need in zip(wiring, chain.from_iterable([s.needs for s in wired.stencils]), strict=True):
        if need > nbytes[buffer]:
            nbytes[buffer] = need
    nbytes.extend(chain.from_iterable([s.temps for s in wired.stencils]))
    return b"".join([_little(nbytes), *[s.dims for s in wired.stencils]])


def _little(values: array[int]) -> bytes:
    return struct.pack(f"<{len(values)}q", *values)


_SOUND: Final[set[int]] = set()
"""Structures that passed. Types are part of one; sizes are not, but they come from torch's own inference: only empty ones surprise."""


def verify_stencil(stencil: Stencil, *, scattered: bool) -> None:
    """Raises Unsupported when the verifier has findings. Costs some 100 microseconds, once a structure.

    Always when something is empty, and when a written tensor is ``scattered``: its elements do not fill one run of memory, and may overlap.
    """
    if not scattered and stencil.structure in _SOUND and all(stencil.needs) and all(stencil.temps):
        return
    kinds = (BufferKind.EXTERNAL,) * stencil.n_handles + (BufferKind.TEMP,) * len(stencil.temps)
    program = Program(VERSION, kinds, stencil.n_dynamic + len(stencil.constants), stencil.code)
    nbytes = (*stencil.needs, *stencil.temps)
    try:
        verify(program, struct.pack(f"<{len(nbytes)}q", *nbytes) + stencil.dims)
    except VerifyError as error:
        raise Unsupported(str(error)) from error
    _SOUND.add(stencil.structure)
