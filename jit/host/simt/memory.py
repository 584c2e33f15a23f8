"""Loads and stores: one range check for a whole gang where the lanes' places are a constant apart, one a lane elsewhere.

What is inside is loaded wide and without masks; a check that fails leads to code beside the path that does it lane by lane (runtime).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from jit.host.emit.code import Code, Lanes
from jit.host.simt.registers import LLVM, Registers, vector_constant
from jit.host.simt.shape import Same, Steps, Vector, Wide, lane_zeros, trailing_zeros
from wis.dtypes import DType
from wis.kernel.model import Op, RegType, Space
from wis.kernel.ops import BY_CODE, Sig

if TYPE_CHECKING:
    from jit.host.simt.guard import Guarded

MEMORY_LLVM: Final = {
    DType.BOOL: "i8", DType.U8: "i8", DType.I8: "i8", DType.I16: "i16", DType.U16: "i16", DType.I32: "i32", DType.U32: "i32",
    DType.I64: "i64", DType.U64: "i64", DType.F16: "i16", DType.BF16: "i16", DType.F32: "float", DType.F64: "double",
}  # fmt: skip
_SIGNED: Final = frozenset({DType.I8, DType.I16, DType.I32, DType.I64})
_FAR: Final = 1 << 59
"""Indices of elements from here on are taken for this one, which is outside of every memory and does not wrap when it becomes bytes."""
_WINDOW: Final = 4
"""A gang's elements are loaded as one window and sorted out when it is at most this many times as large as what is wanted."""


class Region(NamedTuple):
    """A memory: its first byte, its size in bytes (an LLVM value; ``fixed`` when known), and bytes between the copies of two lanes."""

    base: str
    nbytes: str
    fixed: int | None = None
    lane_stride: int = 0


@dataclass(frozen=True, slots=True)
class Access:
    """What an op accesses. The place in bytes is ``unit`` times the offset register plus ``displacement``."""

    space: Space
    which: int
    dtype: DType
    count: int
    unit: int
    displacement: int
    volatile: bool

    @property
    def nbytes(self) -> int:
        return self.count * self.dtype.itemsize


def access_of(op: Op) -> Access:
    sig = BY_CODE[op.op].sig
    space, which, dtype = Space(op.attrs[0]), op.attrs[1], DType(op.attrs[2])
    if sig in (Sig.LOAD, Sig.STORE):
        return Access(space, which, dtype, 1, dtype.itemsize, 0, False)
    if sig in (Sig.ATOM, Sig.RED):
        return Access(space, which, dtype, 1, 1, op.attrs[4], False)
    return Access(space, which, dtype, op.attrs[3], 1, op.attrs[4], bool(op.attrs[5] & 1))


def from_memory(v: Lanes, dtype: DType, kind: RegType, raw: str) -> str:
    """The register value of an element."""
    source, target = MEMORY_LLVM[dtype], LLVM[kind]
    if dtype is DType.BOOL:
        return v.compare("icmp ne", "i8", raw, v.const("i8", 0))
    if source == target:
        return raw
    return v.convert("sext" if dtype in _SIGNED else "zext", source, raw, target)


def to_memory(v: Lanes, dtype: DType, kind: RegType, value: str) -> str:
    """The element that a register value is stored as: its low bits."""
    source, target = LLVM[kind], MEMORY_LLVM[dtype]
    if dtype is DType.BOOL:
        return v.convert("zext", "i1", value, "i8")
    return value if source == target else v.convert("trunc", source, value, target)


@dataclass(frozen=True, slots=True)
class _Spot:
    """Lane 0's place (i64) and by how many bytes the others' exceed it. They do not where a 32-bit number wraps: then ``whole`` (an i1) is
    false (None: always true), or lane 0's place is at least ``cap`` (-1: there is none)."""

    place: str
    deltas: tuple[int, ...]
    whole: str | None
    zeros: int
    cap: int = -1


class Memory:
    """Emits accesses. ``key`` names the value with the running block and gang that traps are made of; ``running`` the lanes' bits (i64).

    ``check``: whether what follows is checked at all; ``guarded``: whether what is not checked here was checked before; ``apart``: whether
    it is done lane by lane, in the runtime.
    """

    def __init__(self, code: Code, registers: Registers, regions: dict[tuple[Space, int], Region], check: bool) -> None:
        self.code, self.regs, self.regions, self.check = code, registers, regions, check
        self.guarded = check
        self.apart = False
        self.v, self.one = registers.v, registers.one
        self.lanes = registers.gang.lanes
        self.state, self.key, self.running = "%state", "0", "0"
        self._limits: dict[tuple[str, int, int, int], str] = {}
        self._pieces: dict[tuple[str, ...], list[str]] = {}  # by the vectors of elements that were loaded: each lane's elements

    # --- entry points
    def load(self, op: Op, site: int) -> None:
        access = access_of(op)
        region = self.regions[access.space, access.which]
        shape = self.regs.fact(op.ins[0]).shape
        if self.apart:
            self._load_apart(op, access, region, site)
            return
        if isinstance(shape, Same) and not region.lane_stride:
            self._load_one(op, access, region, site)
            return
        spot = None if region.lane_stride or access.volatile else self._spot(op.ins[0], access)
        if spot is not None and self._window(spot.deltas, access):
            values = self._load_window(spot, access, region, op.ins[0], site)
        elif access.volatile:
            values = self._split(self._load_lanes(access, region, self.places(op.ins[0], access), site), access)
        else:
            values = self._gather(op.ins[0], access, region, site)
        for r, raw in zip(op.outs, values, strict=True):
            self.regs.put_vector(r, from_memory(self.v, access.dtype, self.regs.kind(r), raw))

    def store(self, op: Op, site: int) -> None:
        access = access_of(op)
        region = self.regions[access.space, access.which]
        shape = self.regs.fact(op.ins[0]).shape
        if self.apart:
            raws = [to_memory(self.v, access.dtype, self.regs.kind(r), self.regs.vector(r)) for r in op.ins[1:]]
            self._store_lanes(access, region, self.places(op.ins[0], access), self._joined(raws, access), site)
            return
        if isinstance(shape, Same) and not region.lane_stride and not access.volatile:
            self._store_one(op, access, region, site)
            return
        raws = [to_memory(self.v, access.dtype, self.regs.kind(r), self.regs.vector(r)) for r in op.ins[1:]]
        spot = None if region.lane_stride or access.volatile else self._spot(op.ins[0], access)
        if spot is not None and spot.deltas == tuple(lane * access.nbytes for lane in range(self.lanes)):
            self._store_row(spot, access, region, op.ins[0], raws, site)
        elif access.volatile:
            self._store_lanes(access, region, self.places(op.ins[0], access), self._joined(raws, access), site)
        else:
            self._scatter(op.ins[0], access, region, raws, site)

    def _load_apart(self, op: Op, access: Access, region: Region, site: int) -> None:
        """Lane by lane. What all lanes share is taken from the first that runs."""
        code = self.code
        values = self._split(self._load_lanes(access, region, self.places(op.ins[0], access), site), access)
        for r, raw in zip(op.outs, values, strict=True):
            value, kind = from_memory(self.v, access.dtype, self.regs.kind(r), raw), self.regs.llvm(r)
            if self.regs.is_vector(r) or self.lanes == 1:
                self.regs.put_vector(r, value)
            else:
                lane = code.call("i64", "llvm.cttz.i64", ("i64", self.running), ("i1", "false"))
                self.regs.put_scalar(r, code.value(f"extractelement {self.v.type(kind)} {value}, i64 {lane}"))

    # --- guards
    def guardable(self, op: Op, access: Access) -> bool:
        """Whether one check of lane 0's place says that all lanes are inside and aligned."""
        shape = self.regs.fact(op.ins[0]).shape
        region = self.regions[access.space, access.which]
        if isinstance(shape, Same):
            return True
        if isinstance(shape, Vector) or region.lane_stride:
            return False
        deltas = self._deltas(op.ins[0], access)
        loads = bool(op.outs)
        if deltas is None or any((x - min(deltas)) % access.nbytes for x in deltas):
            return False
        return self._window(deltas, access) if loads else deltas == tuple(lane * access.nbytes for lane in range(self.lanes))

    def guard(self, groups: Sequence[Guarded]) -> str:
        """Whether everything in all groups is inside and aligned."""
        result = ""
        for group in groups:
            region = self.regions[group.access.space, group.access.which]
            access = replace(group.access, displacement=0)
            spot = self._spot(group.offset, access)
            if spot is None:
                place, zeros = self._one_place(group.offset, access)
                spot = _Spot(place, (0,), None, zeros)
            low = group.low + min(spot.deltas)
            span = group.high - group.low + max(spot.deltas) - min(spot.deltas) + access.nbytes
            start = self.code.add(spot.place, str(low)) if low else spot.place
            aligned = 1 << min(spot.zeros, 8) >= access.nbytes and low % access.nbytes == 0
            cap = max(0, spot.cap + low) if spot.cap >= 0 else -1
            for good in (spot.whole, self.inside(self.one, start, region, span, access.nbytes, aligned, cap)):
                if good is not None:
                    result = self.code.value(f"and i1 {result}, {good}") if result else good
        return result

    # --- places
    def _deltas(self, r: int, access: Access) -> tuple[int, ...] | None:
        """By how many bytes the lanes' places exceed that of lane 0."""
        shape = self.regs.fact(r).shape
        if isinstance(shape, (Vector, Same)):
            return None
        scale = access.unit * (shape.scale if isinstance(shape, Wide) else 1)
        deltas = tuple(x * scale for x in shape.offsets)
        return None if any(abs(x) >= 1 << 31 for x in deltas) else deltas

    def _spot(self, r: int, access: Access) -> _Spot | None:
        """Where the lanes' places are a constant apart."""
        fact, narrow = self.regs.fact(r), self.regs.kind(r) is RegType.I32
        code = self.code
        deltas = self._deltas(r, access)
        if deltas is None:
            return None
        assert isinstance(fact.shape, (Steps, Wide))
        offsets, cap = fact.shape.offsets, -1
        if isinstance(fact.shape, Wide):
            root, _ = self.regs.wide(r)
            low, high = min(offsets), max(offsets)
            start = -(1 << 31) - low if fact.shape.signed else -low
            if fact.shape.plain and fact.shape.scale > 0 and low == 0:
                whole, cap = None, fact.shape.scale * access.unit * ((1 << (31 if fact.shape.signed else 32)) - high)
            else:
                whole = self._unwrapped(root, start, high - low)
            place = self._displaced(self.regs.scalar(r), access)
        elif narrow:
            root = self.regs.scalar(r)
            low, high = min(offsets), max(offsets)
            if low == 0:
                whole, cap = None, access.unit * ((1 << 32) - high)
            else:
                whole = self._unwrapped(root, -low, high - low)
            place = self._displaced(code.value(f"zext i32 {root} to i64"), access)
        else:
            assert isinstance(fact.shape, Steps)
            whole = None
            place = self._displaced(self.regs.scalar(r), access)
        zeros = fact.zeros + trailing_zeros(access.unit)
        if access.displacement:
            zeros = min(zeros, trailing_zeros(access.displacement))
        return _Spot(place, deltas, whole, zeros, cap + access.displacement if cap >= 0 else -1)

    def _unwrapped(self, root: str, start: int, span: int) -> str:
        """Whether no lane's 32-bit number wraps: root - start below 2**32 - span."""
        moved = self.code.value(f"sub i32 {root}, {(start + (1 << 31)) % (1 << 32) - (1 << 31)}")
        limit = (1 << 32) - span
        return self.code.value(f"icmp ult i32 {moved}, {limit - (1 << 32) if limit >= 1 << 31 else limit}")

    def _displaced(self, offset: str, access: Access) -> str:
        if access.unit != 1:
            if self.guarded:
                offset = self.one.intrinsic("umin", "i64", offset, str(_FAR))
            offset = self.code.mul(offset, str(access.unit))
        return self.code.add(offset, str(access.displacement)) if access.displacement else offset

    def places(self, r: int, access: Access) -> str:
        """Every lane's place, as a vector of i64."""
        offsets = self.regs.vector(r)
        if self.regs.kind(r) is RegType.I32:
            offsets = self.v.convert("zext", "i32", offsets, "i64")
        if access.unit != 1:
            if self.guarded:
                offsets = self.v.intrinsic("umin", "i64", offsets, self.v.const("i64", _FAR))
            offsets = self.v.op("mul", "i64", offsets, self.v.const("i64", access.unit))
        if access.displacement:
            offsets = self.v.op("add", "i64", offsets, self.v.const("i64", access.displacement))
        return offsets

    # --- checks
    def _limit(self, region: Region, span: int, align: int, cap: int = -1) -> str:
        """Below this many ``align`` bytes from the start, and below ``cap`` bytes (-1: no cap), ``span`` bytes are inside."""
        cap = cap if 0 <= cap < 1 << 62 else 1 << 62
        if region.fixed is not None:
            return str(-(-min(cap, max(0, region.fixed + 1 - span)) // align))
        key = (region.nbytes, span, align, cap)
        if key not in self._limits:
            entry, name = self.regs.entry, f"%limit{len(self._limits)}"
            entry.append(f"  {name}.a = add i64 {region.nbytes}, 1")
            entry.append(f"  {name}.b = call i64 @llvm.usub.sat.i64(i64 {name}.a, i64 {span})")
            entry.append(f"  {name}.d = call i64 @llvm.umin.i64(i64 {name}.b, i64 {cap})")
            entry.append(f"  {name}.c = add i64 {name}.d, {align - 1}")
            entry.append(f"  {name} = udiv i64 {name}.c, {align}")
            self.code.declared["llvm.umin.i64"] = "declare i64 @llvm.umin.i64(i64, i64)"
            self.code.declared["llvm.usub.sat.i64"] = "declare i64 @llvm.usub.sat.i64(i64, i64)"
            self._limits[key] = name
        return self._limits[key]

    def inside(self, v: Lanes, place: str, region: Region, span: int, align: int, aligned: bool, cap: int = -1) -> str:
        """Whether ``span`` bytes from ``place`` (i64) are inside and ``place`` is a multiple of ``align``: misaligned places, turned
        around, are beyond everything."""
        if aligned or align == 1:
            return self._below(v, place, self._limit(region, span, 1, cap))
        turned = v.intrinsic("fshr", "i64", place, place, v.const("i64", trailing_zeros(align)))
        return self._below(v, turned, self._limit(region, span, align, cap))

    def _below(self, v: Lanes, a: str, limit: str) -> str:
        return v.compare("icmp ult", "i64", a, v.const("i64", int(limit)) if limit.isdigit() else v.splat("i64", limit))

    def _fork(self, good: str) -> tuple[str, str, str]:
        """Branch to (fast, slow), which meet at the third."""
        code = self.code
        fast, slow, meet = code.fresh("fast"), code.fresh("slow"), code.fresh("meet")
        code.do(f"br i1 {good}, label %{fast}, label %{slow}, !prof !0")
        return fast, slow, meet

    # --- all lanes at one place
    def _one_place(self, r: int, access: Access) -> tuple[str, int]:
        """The place, and how many of its low bits are zero."""
        offset = self.regs.scalar(r)
        if self.regs.kind(r) is RegType.I32:
            offset = self.code.value(f"zext i32 {offset} to i64")
        fact = self.regs.fact(r)
        zeros = fact.zeros + trailing_zeros(access.unit)
        if access.displacement:
            zeros = min(zeros, trailing_zeros(access.displacement))
        return self._displaced(offset, access), zeros

    def _load_one(self, op: Op, access: Access, region: Region, site: int) -> None:
        code = self.code
        kind = MEMORY_LLVM[access.dtype]
        wide = _several(access.count, kind)
        place, zeros = self._one_place(op.ins[0], access)
        aligned = 1 << min(zeros, 8) >= access.nbytes
        how = "load volatile" if access.volatile else "load"
        if self.check:
            fast, slow, meet = self._fork(self.inside(self.one, place, region, access.nbytes, access.nbytes, aligned))
            code.label(slow)
            self._trap_all(place, region, access, site)
            code.branch(meet)
            code.label(fast)
        raw = code.value(f"{how} {wide}, ptr {code.gep('i8', region.base, place)}, align {access.dtype.itemsize}")
        if self.check:
            code.branch(meet)
            code.label(meet)
            raw = code.value(f"phi {wide} [ {raw}, %{fast} ], [ zeroinitializer, %{slow} ]")
        for at, r in enumerate(op.outs):
            one = raw if access.count == 1 else code.value(f"extractelement {wide} {raw}, i32 {at}")
            self.regs.put_scalar(r, from_memory(self.one, access.dtype, self.regs.kind(r), one))

    def _store_one(self, op: Op, access: Access, region: Region, site: int) -> None:
        """The last running lane's value stays."""
        code = self.code
        place, zeros = self._one_place(op.ins[0], access)
        aligned = 1 << min(zeros, 8) >= access.nbytes
        values = []
        if not all(self.regs.is_same(r) for r in op.ins[1:]):
            lead = code.call("i64", "llvm.ctlz.i64", ("i64", self.running), ("i1", "false"))
            lane = code.value(f"trunc i64 {code.sub('63', lead)} to i32")
        for r in op.ins[1:]:
            one = self.regs.scalar(r) if self.regs.is_same(r) else ""
            if not one:
                one = code.value(f"extractelement {self.v.type(self.regs.llvm(r))} {self.regs.vector(r)}, i32 {lane}")
            values.append(to_memory(self.one, access.dtype, self.regs.kind(r), one))
        if self.check:
            fast, slow, meet = self._fork(self.inside(self.one, place, region, access.nbytes, access.nbytes, aligned))
            code.label(slow)
            self._trap_all(place, region, access, site)
            code.branch(meet)
            code.label(fast)
        kind, size = MEMORY_LLVM[access.dtype], access.dtype.itemsize
        at = code.gep("i8", region.base, place)
        for number, value in enumerate(values):
            code.do(f"store {kind} {value}, ptr {code.gep('i8', at, str(number * size)) if number else at}, align {size}")
        if self.check:
            code.branch(meet)
            code.label(meet)

    def _trap_all(self, place: str, region: Region, access: Access, site: int) -> None:
        """All running lanes trap; the first of them counts."""
        outside = self.code.value(f"icmp uge i64 {place}, {self._limit(region, access.nbytes, 1)}")
        masked = self.code.value(f"select i1 {outside}, i64 {self.running}, i64 0")
        self.trap(masked, self.running, site)

    def trap(self, outside: str, bad: str, site: int) -> None:
        """Note the first of the lanes ``bad`` (bits, i64); it is outside when its bit is in ``outside``, else misaligned."""
        self.code.call("void", "simt_trap", ("ptr", self.state), ("i64", self.key), ("i64", outside), ("i64", bad), ("i64", str(site)))

    # --- lanes a constant apart
    def _window(self, deltas: Sequence[int], access: Access) -> bool:
        """Whether one load reaches all lanes' elements."""
        size = access.dtype.itemsize
        span = max(deltas) - min(deltas) + access.nbytes
        return span <= _WINDOW * self.lanes * access.nbytes and all((x - deltas[0]) % size == 0 for x in deltas)

    def _load_window(self, spot: _Spot, access: Access, region: Region, r: int, site: int) -> list[str]:
        code, size = self.code, access.dtype.itemsize
        kind = MEMORY_LLVM[access.dtype]
        low = min(spot.deltas)
        span = max(spot.deltas) - low + access.nbytes
        start = code.add(spot.place, str(low)) if low else spot.place
        n = span // size
        picked = [(x - low) // size + c for x in spot.deltas for c in range(access.count)]
        if self.check:
            fast, slow, meet = self._row_fork(spot, start, access, region, span)
            code.label(slow)
            saved = self.regs.saved()
            lanes = self._load_lanes(access, region, self.places(r, access), site)
            self.regs.back_to(saved)
            slow = code.block
            code.branch(meet)
            code.label(fast)
        if self.regs.mask is not None and not self.guarded:
            if len(set(picked)) < len(picked):
                return self._gather(r, access, region, site)
            n = 1 << (n - 1).bit_length()  # LLVM takes other masked loads apart
            raw = self._masked_window(access, region, start, n, picked)
        else:
            raw = code.value(f"load <{n} x {kind}>, ptr {code.gep('i8', region.base, start)}, align {size}")
        if picked != list(range(n)):
            raw = self._pick(raw, n, kind, picked)
        if self.check:
            fast = code.block
            code.branch(meet)
            code.label(meet)
            raw = code.value(f"phi <{self.lanes * access.count} x {kind}> [ {raw}, %{fast} ], [ {lanes}, %{slow} ]")
        return self._split(raw, access)

    def _masked_window(self, access: Access, region: Region, start: str, n: int, picked: Sequence[int]) -> str:
        """The window, without a look at elements that only lanes would read which do not run."""
        code, kind, lanes = self.code, MEMORY_LLVM[access.dtype], self.lanes
        reader = {element: at // access.count for at, element in enumerate(picked)}
        order = vector_constant("i32", [reader.get(element, lanes) for element in range(n)])
        mask = code.value(f"shufflevector <{lanes} x i1> {self.regs.mask}, <{lanes} x i1> zeroinitializer, <{n} x i32> {order}")
        wide = f"<{n} x {kind}>"
        args = ("ptr", code.gep("i8", region.base, start)), ("i32", str(access.dtype.itemsize)), (f"<{n} x i1>", mask)
        return code.call(wide, f"llvm.masked.load.v{n}{_short(kind)}.p0", *args, (wide, "zeroinitializer"))

    def _row_fork(self, spot: _Spot, start: str, access: Access, region: Region, span: int) -> tuple[str, str, str]:
        even = all(x % access.nbytes == 0 for x in spot.deltas)
        aligned = even and 1 << min(spot.zeros, 8) >= access.nbytes
        cap = max(0, spot.cap + min(spot.deltas)) if spot.cap >= 0 else -1
        good = self.inside(self.one, start, region, span, access.nbytes, aligned, cap) if even else "false"
        if spot.whole is not None:
            good = self.code.value(f"and i1 {good}, {spot.whole}")
        return self._fork(good)

    def _store_row(self, spot: _Spot, access: Access, region: Region, r: int, raws: Sequence[str], site: int) -> None:
        code, size = self.code, access.dtype.itemsize
        kind = MEMORY_LLVM[access.dtype]
        n = self.lanes * access.count
        wide = self._joined(raws, access)
        if self.check:
            fast, slow, meet = self._row_fork(spot, spot.place, access, region, self.lanes * access.nbytes)
            code.label(slow)
            saved = self.regs.saved()
            self._store_lanes(access, region, self.places(r, access), wide, site)
            self.regs.back_to(saved)
            code.branch(meet)
            code.label(fast)
        at = code.gep("i8", region.base, spot.place)
        if self.regs.mask is None:
            code.do(f"store <{n} x {kind}> {wide}, ptr {at}, align {size}")
        else:
            mask = self.regs.mask
            if access.count > 1:
                lanes = [lane for lane in range(self.lanes) for _ in range(access.count)]
                mask = self._pick(mask, self.lanes, "i1", lanes)
            name = f"llvm.masked.store.v{n}{_short(kind)}.p0"
            code.call("void", name, (f"<{n} x {kind}>", wide), ("ptr", at), ("i32", str(size)), (f"<{n} x i1>", mask))
        if self.check:
            code.branch(meet)
            code.label(meet)

    def _pick(self, raw: str, n: int, kind: str, picked: Sequence[int]) -> str:
        wanted = vector_constant("i32", picked)
        return self.code.value(f"shufflevector <{n} x {kind}> {raw}, <{n} x {kind}> poison, <{len(picked)} x i32> {wanted}")

    def _split(self, raw: str, access: Access) -> list[str]:
        """The elements of each lane, lane by lane, as one vector an element."""
        if access.count == 1:
            return [raw]
        n, kind = self.lanes * access.count, MEMORY_LLVM[access.dtype]
        if self.lanes == 1:
            return [self.code.value(f"extractelement <{n} x {kind}> {raw}, i32 {at}") for at in range(n)]
        return [self._pick(raw, n, kind, range(at, n, access.count)) for at in range(access.count)]

    def _joined(self, raws: Sequence[str], access: Access) -> str:
        """The other way round."""
        code, kind = self.code, MEMORY_LLVM[access.dtype]
        if self.lanes == 1 and access.count > 1:
            wide = "poison"
            for at, raw in enumerate(raws):
                wide = code.value(f"insertelement <{access.count} x {kind}> {wide}, {kind} {raw}, i32 {at}")
            return wide
        wide = self._beside(list(raws), self.lanes, kind)
        if access.count == 1:
            return wide
        order = [c * self.lanes + lane for lane in range(self.lanes) for c in range(access.count)]
        return self._pick(wide, self.lanes * access.count, kind, order)

    # --- lane by lane, in the runtime
    def spill(self, name: str, vector: str, kind: str, n: int) -> str:
        """A vector in memory."""
        at = self.regs.variable(name, f"[{n * 16} x i8]")
        self.code.do(f"store {_several(n, kind)} {vector}, ptr {at}, align 8")
        return at

    def _load_lanes(self, access: Access, region: Region, places: str, site: int) -> str:
        """Whatever is inside and aligned; traps for the rest. A raw vector, lane by lane."""
        code = self.code
        at = self.spill("%lane.places", places, "i64", self.lanes)
        n = self.lanes * access.count
        out = self.regs.variable("%lane.data", f"[{self.lanes * 16} x i8]")
        code.call(
            "void", "simt_load", ("ptr", region.base), ("i64", region.nbytes), ("i64", str(region.lane_stride)), ("ptr", at),
            ("i64", self.running), ("i64", str(access.nbytes)), ("ptr", self.state), ("i64", self.key), ("i64", str(site)), ("ptr", out),
            ("i64", str(self.lanes)),
        )  # fmt: skip
        return code.value(f"load {_several(n, MEMORY_LLVM[access.dtype])}, ptr {out}, align 8")

    def _store_lanes(self, access: Access, region: Region, places: str, wide: str, site: int) -> None:
        at = self.spill("%lane.places", places, "i64", self.lanes)
        data = self.regs.variable("%lane.data", f"[{self.lanes * 16} x i8]")
        self.code.do(f"store {_several(self.lanes * access.count, MEMORY_LLVM[access.dtype])} {wide}, ptr {data}, align 8")
        self.code.call(
            "void", "simt_store", ("ptr", region.base), ("i64", region.nbytes), ("i64", str(region.lane_stride)), ("ptr", at),
            ("i64", self.running), ("i64", str(access.nbytes)), ("ptr", self.state), ("i64", self.key), ("i64", str(site)), ("ptr", data),
            ("i64", str(self.lanes)),
        )  # fmt: skip

    def put_data(self, op: Op, access: Access) -> None:
        """The values that ``op`` stores, where the runtime finds them."""
        raws = [to_memory(self.v, access.dtype, self.regs.kind(r), self.regs.vector(r)) for r in op.ins[1:]]
        data = self.regs.variable("%lane.data", f"[{self.lanes * 16} x i8]")
        wide = self._joined(raws, access)
        self.code.do(f"store {_several(self.lanes * access.count, MEMORY_LLVM[access.dtype])} {wide}, ptr {data}, align 8")

    def take_data(self, op: Op, access: Access) -> None:
        """What the runtime loaded, into the results of ``op``."""
        n = self.lanes * access.count
        data = self.regs.variable("%lane.data", f"[{self.lanes * 16} x i8]")
        raw = self.code.value(f"load {_several(n, MEMORY_LLVM[access.dtype])}, ptr {data}, align 8")
        for r, one in zip(op.outs, self._split(raw, access), strict=True):
            self.regs.put_vector(r, from_memory(self.v, access.dtype, self.regs.kind(r), one))

    # --- any places
    def _checked(self, r: int, access: Access, region: Region, site: int) -> tuple[str, str | None]:
        """Pointers of the lanes, and which of them may be used (None: all)."""
        code, v = self.code, self.v
        kind = MEMORY_LLVM[access.dtype]
        if not self.guarded and r in self.regs.sums and not region.lane_stride and access.unit == access.dtype.itemsize:
            shared, lanes = self.regs.sums[r]
            base = code.gep(kind, region.base, shared)
            return code.value(f"getelementptr {kind}, ptr {base}, {v.type('i64')} {lanes}"), self.regs.mask
        zeros = lane_zeros(self.regs.fact(r)) + trailing_zeros(access.unit)
        if access.displacement:
            zeros = min(zeros, trailing_zeros(access.displacement))
        aligned = 1 << min(zeros, 8) >= access.nbytes
        narrow = self.regs.narrow(r) if region.fixed is not None and access.unit == 1 and abs(access.displacement) < 1 << 30 else None
        if narrow is not None:
            places, kind = narrow, "i32"
            good = self._inside_narrow(places, access, region, aligned, signed=self.regs.kind(r) is RegType.I64)
            if access.displacement:
                places = v.op("add", "i32", places, v.const("i32", access.displacement))
        else:
            places, kind = self.places(r, access), "i64"
            good = self.inside(v, places, region, access.nbytes, access.nbytes, aligned)
        mask = self.regs.mask
        if self.check:
            good_bits = self.bits(good)
            usable = good_bits if mask is None else code.value(f"and i64 {good_bits}, {self.running}")
            bad = code.value(f"xor i64 {usable}, {self.running}")
            fine = code.value(f"icmp eq i64 {bad}, 0")
            fast, slow, _ = self._fork(fine)
            code.label(slow)
            saved = self.regs.saved()
            limit = self._limit(region, access.nbytes, 1)
            wide = self.places(r, access)
            inside = self.bits(self._below(v, wide, limit))
            self.regs.back_to(saved)
            self.trap(code.value(f"and i64 {code.value(f'xor i64 {inside}, -1')}, {self.running}"), bad, site)
            code.branch(fast)
            code.label(fast)
            mask = good if mask is None else v.op("and", "i1", mask, good)
        if region.lane_stride:
            shift = vector_constant(kind, [lane * region.lane_stride for lane in range(self.lanes)])
            places = v.op("add", kind, places, shift)
        pointers = code.value(f"getelementptr i8, ptr {region.base}, {v.type(kind)} {places}")
        return pointers, mask

    def _inside_narrow(self, offsets: str, access: Access, region: Region, aligned: bool, signed: bool) -> str:
        """The check for an offset of 32 bits into a memory of less than 2**30 bytes. Signed ones wrap with the displacement, at worst to
        2**30 and above, which is outside; with unsigned ones only a negative displacement is added."""
        assert region.fixed is not None
        v, down = self.v, access.displacement if signed else min(access.displacement, 0)
        up = access.displacement - down
        last = region.fixed + 1 - access.nbytes - up
        align = access.nbytes
        if up % align or (down % align and not signed):
            return self.inside(v, self._wide_places(offsets, access), region, access.nbytes, align, False)
        place = v.op("add", "i32", offsets, v.const("i32", down)) if down else offsets
        if align == 1 or aligned:
            return v.compare("icmp ult", "i32", place, v.const("i32", max(0, last)))
        place = v.intrinsic("fshr", "i32", place, place, v.const("i32", trailing_zeros(align)))
        return v.compare("icmp ult", "i32", place, v.const("i32", -(-max(0, last) // align)))

    def _wide_places(self, offsets: str, access: Access) -> str:
        wide = self.v.convert("zext", "i32", offsets, "i64")
        return self.v.op("add", "i64", wide, self.v.const("i64", access.displacement))

    def bits(self, lanes: str) -> str:
        """A vector of i1 as the bits of an i64."""
        n = self.lanes
        narrow = self.code.value(f"bitcast <{n} x i1> {lanes} to i{n}")
        return narrow if n == 64 else self.code.value(f"zext i{n} {narrow} to i64")

    def _gather(self, r: int, access: Access, region: Region, site: int) -> list[str]:
        v, code = self.v, self.code
        pointers, mask = self._checked(r, access, region, site)
        kind, size = MEMORY_LLVM[access.dtype], access.dtype.itemsize
        if access.count == 1:
            name = f"llvm.masked.gather.{v.suffix(kind)}.v{self.lanes}p0"
            usable = v.type("i1"), mask or v.const("i1", 1)
            return [code.call(v.type(kind), name, (v.type("ptr"), pointers), ("i32", str(size)), usable, (v.type(kind), "zeroinitializer"))]
        row = f"<{access.count} x {kind}>"
        pieces = [code.value(f"load {row}, ptr {at}, align {size}") for at in self._pointers(pointers, mask, "%lane.zero")]
        values = self._split(self._beside(pieces, access.count, kind), access)
        self._pieces[tuple(values)] = pieces
        return values

    def _scatter(self, r: int, access: Access, region: Region, raws: Sequence[str], site: int) -> None:
        v, code = self.v, self.code
        pointers, mask = self._checked(r, access, region, site)
        kind, size = MEMORY_LLVM[access.dtype], access.dtype.itemsize
        if access.count == 1:
            name = f"llvm.masked.scatter.{v.suffix(kind)}.v{self.lanes}p0"
            args = (v.type(kind), raws[0]), (v.type("ptr"), pointers), ("i32", str(size)), (v.type("i1"), mask or v.const("i1", 1))
            code.call("void", name, *args)
            return
        n, row = self.lanes * access.count, f"<{access.count} x {kind}>"
        pieces = self._pieces.get(tuple(raws))
        if pieces is None:
            wide = self._joined(raws, access)
            pieces = [self._pick(wide, n, kind, range(first, first + access.count)) for first in range(0, n, access.count)]
        for piece, at in zip(pieces, self._pointers(pointers, mask, "%lane.sink"), strict=True):
            code.do(f"store {row} {piece}, ptr {at}, align {size}")

    def _pointers(self, pointers: str, mask: str | None, other: str) -> list[str]:
        """Each lane's pointer: several elements a lane are moved faster one lane after the other than by an instruction for all lanes.
        Lanes that may not use theirs have that of the variable ``other``, 16 bytes which were zeros at the start."""
        v, code = self.v, self.code
        if mask is not None:
            other = self.regs.variable(other, "<4 x i32>")
            pointers = code.value(f"select {v.type('i1')} {mask}, {v.type('ptr')} {pointers}, {v.type('ptr')} {v.splat('ptr', other)}")
        return [code.value(f"extractelement {v.type('ptr')} {pointers}, i32 {lane}") for lane in range(self.lanes)]

    def _beside(self, parts: list[str], width: int, kind: str) -> str:
        """Vectors of ``width`` elements, a power of two of them, as one."""
        while len(parts) > 1:
            order = vector_constant("i32", range(2 * width))
            parts = [
                self.code.value(f"shufflevector <{width} x {kind}> {a}, <{width} x {kind}> {b}, <{2 * width} x i32> {order}")
                for a, b in zip(parts[::2], parts[1::2], strict=True)
            ]
            width *= 2
        return parts[0]


def _several(n: int, kind: str) -> str:
    """The type of ``n`` elements side by side."""
    return kind if n == 1 else f"<{n} x {kind}>"


def _short(kind: str) -> str:
    return {"float": "f32", "double": "f64"}.get(kind, kind)
