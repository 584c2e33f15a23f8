"""Statements that touch memory: element-indexed and byte-addressed accesses, atomics, addresses.

Every access is judged before it is made: beyond its memory as a whole (outside), then at an offset that is no multiple of its size
(misaligned). What fails gives zeros or does nothing and traps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from jit.kernels.cfamily.helpers import atomic_helper
from jit.kernels.cfamily.language import ELEMENT, REGISTER, Language
from wis.dtypes import DType
from wis.kernel.model import (
    LOCAL_BASE,
    SHARED_BASE,
    Access,
    Atomic,
    BufferParam,
    Kernel,
    Op,
    RegType,
    Space,
    TrapKind,
    shared_bytes,
    shared_offsets,
)
from wis.kernel.ops import BY_CODE, Sig

_KIND_BITS: Final = 2
_NEED: Final = {
    Sig.BYTES_LOAD: Access.READ, Sig.BYTES_STORE: Access.WRITE, Sig.ATOM: Access.READ_WRITE, Sig.RED: Access.READ_WRITE,
}  # fmt: skip
_TOUCHING: Final = frozenset({Sig.LOAD, Sig.STORE, *_NEED})


def trap_code(site: int, kind: TrapKind) -> int:
    """What a thread remembers of a trap: the low bits of its key."""
    return site << _KIND_BITS | kind


@dataclass(frozen=True, slots=True)
class _Place:
    """A memory as text: qualifier of pointers to it, its first byte, its length in bytes."""

    space: str
    base: str
    length: str


class Memory:
    """The memories of one kernel. ``local``: qualifier and first byte of a thread's local memory. ``check`` False: nothing is judged.
    ``suffix``: what names of the program's scope end with."""

    def __init__(
        self,
        kernel: Kernel,
        language: Language,
        dynamic_bytes: int,
        check: bool,
        local: tuple[str, str],
        register: Callable[[int], str],
        suffix: str,
    ) -> None:
        self._suffix = suffix
        self.kernel, self._language, self._check, self._register = kernel, language, check, register
        self.shared_total = shared_bytes(kernel, dynamic_bytes)
        self._offsets = shared_offsets(kernel)
        ends = [offset + array.n * DType(array.dtype).itemsize for offset, array in zip(self._offsets, kernel.shared, strict=True)]
        ends[-1:] = [self.shared_total] if ends else []
        self._shared_ends = ends
        self._local = _Place(*local, f"{kernel.local_bytes}")
        spaces = {op.attrs[0] for block in kernel.blocks for op in block.code if BY_CODE[op.op].sig in _TOUCHING}
        self.uses_local = Space.LOCAL in spaces or kernel.local_bytes > 0
        self.uses_const = Space.CONST in spaces
        self.functions: dict[str, str] = {}
        self.finds = False  # whether ``find`` is called

    def statement(self, op: Op, site: int) -> str:
        """An op that loads, stores or updates; ``site``: its number among those that may trap."""
        match BY_CODE[op.op].sig:
            case Sig.LOAD | Sig.STORE:
                return self._element(op, site)
            case Sig.BYTES_LOAD | Sig.BYTES_STORE:
                _, _, dtype, count, _, _ = op.attrs
                return self._bytes(op, site, DType(dtype).itemsize * count)
            case _:
                return self._bytes(op, site, DType(op.attrs[2]).itemsize)

    def address(self, op: Op) -> str:
        """The value of ``addr``."""
        space, which = op.attrs
        if space == Space.GLOBAL:
            return f"a{which}"
        base = SHARED_BASE + self._offsets[which] if space == Space.SHARED else LOCAL_BASE
        return f"{base}{self._language.long}"

    # --- places
    def _place(self, space: int, which: int) -> _Place:
        if space == Space.GLOBAL:
            return _Place("GLOBAL", f"p{which}", f"n{which}")
        if space == Space.SHARED:
            start = self._offsets[which]
            return _Place("SHARED", f"sh + {start}" if start else "sh", str(self._shared_ends[which] - start))
        return self._local if space == Space.LOCAL else _Place("CONSTANT", f"cn_{self._suffix}", str(len(self.kernel.constants)))

    def _limit(self, place: _Place, size: int) -> str:
        """Offsets below this number are inside for an access of ``size`` bytes."""
        if not place.length.startswith("n"):
            return f"{max(0, int(place.length) - size + 1)}u"
        return f"({place.length} < {size} ? 0 : {place.length} - {size - 1})" if size > 1 else place.length

    # --- element-indexed
    def _element(self, op: Op, site: int) -> str:
        space, which, dtype = op.attrs
        place, kind, size = self._place(space, which), ELEMENT[DType(dtype)], DType(dtype).itemsize
        index = self._register(op.ins[0])
        cell = f"(({place.space} {{}}{kind}_m *)({place.base}))[{index}]"
        count = f"{int(place.length) // size}u" if space == Space.SHARED else f"{place.length} / {size}"
        inside = f"{index} < {count}"
        if op.outs:
            out = self._register(op.outs[0])
            good, bad = f"{out} = {self._loaded(op.outs[0], dtype, cell.format('const '))};", f"{out} = 0;"
        else:
            good, bad = f"{cell.format('')} = ({kind}){self._register(op.ins[1])};", ""
        if not self._check:
            return good
        return f"if ({inside}) {{ {good} }} else {{ {bad} TRAP({trap_code(site, TrapKind.OUTSIDE)}u) }}"

    def _loaded(self, register: int, dtype: int, cell: str) -> str:
        kind = RegType(self.kernel.regs[register])
        return f"{cell} != 0" if dtype == DType.BOOL else f"({REGISTER[kind]}){cell}"

    # --- byte-addressed
    def _bytes(self, op: Op, site: int, size: int) -> str:
        space, which = op.attrs[:2]
        displacement = op.attrs[4] & (1 << 64) - 1
        offset = f"(u64){self._register(op.ins[0])}" + (f" + {displacement}{self._language.long}" if displacement else "")
        if space != Space.ARENA:
            return f"{{ const u64 o = {offset}; {self._judged(op, site, self._place(space, which), size, None)} }}"
        return f"{{ u64 o = {offset}, l; {self._found(op, site, size)} }}"

    def _found(self, op: Op, site: int, size: int) -> str:
        """An access by address: in shared memory, in local memory, in a buffer, or nowhere."""
        parts = []
        if self.shared_total:
            base = f"{SHARED_BASE}{self._language.long}"
            inner = self._judged(op, site, _Place("SHARED", "sh", str(self.shared_total)), size, None)
            parts.append(f"if (o - {base} < {self.shared_total}u) {{ o -= {base}; {inner} }} else ")
        if self.kernel.local_bytes:
            base = f"{LOCAL_BASE}{self._language.long}"
            parts.append(
                f"if (o - {base} < {self.kernel.local_bytes}u) {{ o -= {base}; {self._judged(op, site, self._local, size, None)} }} else "
            )
        self.finds = True
        need = _NEED[BY_CODE[op.op].sig]
        found = f"GLOBAL u8 *const g = find_{self._suffix}(&o, &l, {int(need)}u, {size}u{self._arena()}); "
        return "".join(parts) + f"{{ {found}{self._judged(op, site, _Place('GLOBAL', 'g', ''), size, 'l')} }}"

    def _judged(self, op: Op, site: int, place: _Place, size: int, limit: str | None) -> str:
        """The access at byte ``o`` of a place (whose ``limit`` is known already), or what is done instead."""
        good, bad = self._access(op, place)
        if not self._check and limit is None:
            return good
        limit = limit or self._limit(place, size)
        outside = f"TRAP({trap_code(site, TrapKind.OUTSIDE)}u)"
        if size == 1:
            return f"if (o < {limit}) {{ {good} }} else {{ {bad}{outside} }}"
        traps = f"if (o < {limit}) TRAP({trap_code(site, TrapKind.MISALIGNED)}u) else {outside}"
        return f"if (o < {limit} && (o & {size - 1}) == 0) {{ {good} }} else {{ {bad}{traps} }}"

    def _access(self, op: Op, place: _Place) -> tuple[str, str]:
        """What is done at byte ``o``; what is done when that is not allowed."""
        sig, dtype = BY_CODE[op.op].sig, op.attrs[2]
        kind = ELEMENT[DType(dtype)]
        nothing = "".join(f"{self._register(r)} = 0; " for r in op.outs)
        if sig in (Sig.ATOM, Sig.RED):
            return self._atomic(op, place, kind), nothing
        volatile = "volatile " if op.attrs[5] & 1 else ""
        if sig is Sig.BYTES_LOAD:
            pointer = f"{volatile}const {place.space} {kind}_m *"
            cells = [self._loaded(r, dtype, f"e[{i}]") for i, r in enumerate(op.outs)]
            stores = "".join(f"{self._register(r)} = {cell}; " for r, cell in zip(op.outs, cells, strict=True))
        else:
            pointer = f"{volatile}{place.space} {kind}_m *"
            stores = "".join(f"e[{i}] = ({kind}){self._register(r)}; " for i, r in enumerate(op.ins[1:]))
        return f"{pointer}const e = ({pointer})({place.base} + o); {stores}", nothing

    def _atomic(self, op: Op, place: _Place, kind: str) -> str:
        name, text = atomic_helper(Atomic(op.attrs[3]).name.lower(), kind, place.space)
        self.functions[name] = text
        word = f"u{kind[1:]}_m"
        given = ", ".join(self._register(r) for r in op.ins[1:])
        call = f"{name}((volatile {place.space} {word} *)({place.base} + o), {given});"
        return f"{self._register(op.outs[0])} = {call} " if op.outs else call + " "

    # --- addresses
    def find(self) -> str:
        """The function that finds an address in the buffers: ``*o`` becomes the offset, ``*l`` the limit of offsets that are inside."""
        buffers = [(i, p.access) for i, p in enumerate(self.kernel.params) if isinstance(p, BufferParam)]
        params = "".join(f", GLOBAL u8 *p{i}, u64 n{i}, u64 a{i}" for i, _ in buffers)
        lines = [f"FN GLOBAL u8 *find_{self._suffix}(PRIVATE u64 *o, PRIVATE u64 *l, u32 need, u32 size{params}) {{", "  *l = 0;"]
        for i, access in buffers:
            limit = f"({access}u & need) == need && n{i} >= size ? n{i} - size + 1 : 0"
            lines.append(f"  if (*o - a{i} < n{i}) {{ *o -= a{i}; *l = {limit}; return p{i}; }}")
        return "\n".join([*lines, "  return 0;", "}"])

    def _arena(self) -> str:
        """The arguments that ``find`` takes of the kernel."""
        return "".join(f", p{i}, n{i}, a{i}" for i, p in enumerate(self.kernel.params) if isinstance(p, BufferParam))

    def constants(self) -> str:
        """The kernel's constants as a program-scope array."""
        data = self.kernel.constants or b"\0"
        rows: Sequence[str] = [", ".join(map(str, data[i : i + 32])) for i in range(0, len(data), 32)]
        return f"{self._language.constant} ALIGN16 u8 cn_{self._suffix}[{len(data)}] = {{\n" + ",\n".join(rows) + "};"
