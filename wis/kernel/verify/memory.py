"""Rule 4: which ops may access which memory as which element type."""

from __future__ import annotations

from typing import Final

from wis.dtypes import DType
from wis.kernel.model import Access, Atomic, BufferParam, Kernel, Op, RegType, Space
from wis.kernel.ops import Sig

Types = list[RegType]
BYTES_MAX: Final = 16
"""Most bytes of one load or store."""

_ALL_INTS: Final = frozenset({RegType.I16, RegType.I32, RegType.I64})

MEMORY_TYPES: Final[dict[DType, frozenset[RegType]]] = {
    DType.BOOL: frozenset({RegType.PRED}),
    DType.U8: _ALL_INTS,
    DType.I8: _ALL_INTS,
    DType.U16: _ALL_INTS,
    DType.I16: _ALL_INTS,
    DType.U32: frozenset({RegType.I32, RegType.I64}),
    DType.I32: frozenset({RegType.I32, RegType.I64}),
    DType.U64: frozenset({RegType.I64}),
    DType.I64: frozenset({RegType.I64}),
    DType.F16: frozenset({RegType.F16}),
    DType.BF16: frozenset({RegType.BF16}),
    DType.F32: frozenset({RegType.F32}),
    DType.F64: frozenset({RegType.F64}),
}
"""Registers that an element loads into (integers extend by their own signedness) and is stored from (low bits)."""

_I64_MIN: Final = -(1 << 63)
_ATOMIC_REGISTERS: Final = {
    DType.I32: RegType.I32,
    DType.U32: RegType.I32,
    DType.I64: RegType.I64,
    DType.U64: RegType.I64,
    DType.F32: RegType.F32,
    DType.F64: RegType.F64,
}


def _dtype(code: int) -> str:
    return DType(code).text if code in DType._value2member_map_ else str(code)


def _elements(kernel: Kernel, op: Op, outs: Types, ins: Types, loads: bool) -> str:
    """``ld`` and ``st``: element-indexed, in buffers and in shared arrays as their own element type."""
    space, which, dtype = op.attrs
    if ins[0] is not RegType.I64:
        return f"the index is {ins[0].text}, expected i64"
    value = outs[0] if loads else ins[1]
    if dtype not in MEMORY_TYPES or value not in MEMORY_TYPES[DType(dtype)]:
        return f"{value.text} does not hold elements of type {_dtype(dtype)}"
    if space == Space.SHARED:
        if not 0 <= which < len(kernel.shared):
            return f"there is no shared array {which}"
        return "" if kernel.shared[which].dtype == dtype else "a shared array is accessed as its own element type"
    if space != Space.GLOBAL:
        return f"there is no memory {which} in space {_space(space)}"
    return _place(kernel, space, which, Access.READ if loads else Access.WRITE)


def _place(kernel: Kernel, space: int, which: int, need: int) -> str:
    """Whether memory ``which`` of ``space`` exists and may be accessed so (bits of Access)."""
    if space == Space.GLOBAL and 0 <= which < len(kernel.params):
        param = kernel.params[which]
        if isinstance(param, BufferParam):
            return "" if param.access & need == need else f"buffer parameter {which} is not declared for this"
    elif space == Space.SHARED:
        return "" if 0 <= which < len(kernel.shared) else f"there is no shared array {which}"
    elif which == 0 and space in (Space.LOCAL, Space.ARENA):
        return ""
    elif which == 0 and space == Space.CONST:
        return "buffer of constants: it is only read" if need & Access.WRITE else ""
    return f"there is no memory {which} in space {_space(space)}"


def _space(space: int) -> str:
    return Space(space).name.lower() if space in Space._value2member_map_ else str(space)


def _offset(offset: RegType, displacement: int) -> str:
    if offset not in (RegType.I32, RegType.I64):
        return f"the offset is {offset.text}, expected i32 or i64"
    return "" if _I64_MIN <= displacement < -_I64_MIN else f"displacement {displacement} does not fit 64 bits"


def _bytes(kernel: Kernel, op: Op, outs: Types, ins: Types, loads: bool) -> str:
    """``load`` and ``store``: byte-addressed, 1 to 8 elements."""
    space, which, dtype, count, displacement, flags = op.attrs
    values = outs if loads else ins[1:]
    if dtype not in MEMORY_TYPES or not MEMORY_TYPES[DType(dtype)].issuperset(values):
        return f"registers {', '.join(v.text for v in values)} do not hold elements of type {_dtype(dtype)}"
    if count not in (1, 2, 4, 8) or count * DType(dtype).itemsize > BYTES_MAX:
        return f"{count} elements of type {_dtype(dtype)}; accepted are 1, 2, 4 or 8, of at most {BYTES_MAX} bytes together"
    if loads and len(set(op.outs)) < len(op.outs):
        return "two elements go into one register"
    if flags not in (0, 1):
        return f"there are no flags {flags}"
    return _offset(ins[0], displacement) or _place(kernel, space, which, Access.READ if loads else Access.WRITE)


def atomic_type(function: int, dtype: int) -> RegType | None:
    """The register type that an atomic operation takes and gives; None when there is no such operation."""
    if function not in Atomic._value2member_map_ or dtype not in _ATOMIC_REGISTERS:
        return None
    if function in (Atomic.INC, Atomic.DEC) and dtype != DType.U32:
        return None
    if dtype in (DType.F32, DType.F64) and function != Atomic.ADD:
        return None
    return _ATOMIC_REGISTERS[DType(dtype)]


def _atomic(kernel: Kernel, op: Op, outs: Types, ins: Types) -> str:
    space, which, dtype, function, displacement = op.attrs
    register = atomic_type(function, dtype)
    if register is None:
        name = Atomic(function).name.lower() if function in Atomic._value2member_map_ else str(function)
        return f"there is no atomic {name} of {_dtype(dtype)}"
    if any(t is not register for t in (*outs, *ins[1:])):
        return f"operands and result are {register.text}"
    if space not in (Space.GLOBAL, Space.SHARED, Space.ARENA):
        return f"there are no atomics in space {_space(space)}"
    return _offset(ins[0], displacement) or _place(kernel, space, which, Access.READ_WRITE)


def _address(kernel: Kernel, op: Op, outs: Types, ins: Types) -> str:
    space, which = op.attrs
    if outs[0] is not RegType.I64:
        return f"an address is i64, not {outs[0].text}"
    if space not in (Space.GLOBAL, Space.SHARED, Space.LOCAL):
        return f"memory {which} of space {_space(space)} has no address"
    return _place(kernel, space, which, 0)


RULES: Final = {
    Sig.LOAD: lambda kernel, op, outs, ins: _elements(kernel, op, outs, ins, True),
    Sig.STORE: lambda kernel, op, outs, ins: _elements(kernel, op, outs, ins, False),
    Sig.BYTES_LOAD: lambda kernel, op, outs, ins: _bytes(kernel, op, outs, ins, True),
    Sig.BYTES_STORE: lambda kernel, op, outs, ins: _bytes(kernel, op, outs, ins, False),
    Sig.ATOM: _atomic,
    Sig.RED: _atomic,
    Sig.ADDRESS: _address,
}
"""For each memory rule: what is wrong with an op, "" for nothing. Complaints that start with "buffer" are about access rights."""
