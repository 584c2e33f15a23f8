"""Atomic operations, lane by lane: plain on the block's own memory, which one thread runs, and atomic on what other blocks may touch."""

from __future__ import annotations

from typing import Final

from jit.host.emit.code import Code
from jit.host.simt.memory import MEMORY_LLVM, Access, Memory
from jit.host.simt.registers import Registers
from wis.dtypes import DType
from wis.kernel.model import Atomic, Op, Space

_RMW: Final = {
    Atomic.ADD: "add", Atomic.AND: "and", Atomic.OR: "or", Atomic.XOR: "xor", Atomic.EXCH: "xchg", Atomic.INC: "uinc_wrap",
    Atomic.DEC: "udec_wrap",
}  # fmt: skip
_SIGNED: Final = (DType.I32, DType.I64)


def atomic(code: Code, registers: Registers, memory: Memory, op: Op, access: Access, site: int) -> str:
    """Emits the op; returns the name of the helper it needs. ``access.displacement`` is that of the op."""
    function = Atomic(op.attrs[3])
    kind, lanes = MEMORY_LLVM[access.dtype], registers.gang.lanes
    if lanes == 1 and not memory.check and access.space is Space.GLOBAL and function is not Atomic.CAS:
        name = f"change.{access.dtype.text}.{function.name.lower()}"
        there = code.gep("i8", memory.regions[access.space, access.which].base, memory.places(op.ins[0], access))
        old = code.call(kind, name, ("ptr", there), (kind, registers.vector(op.ins[1])))
        code.declared.pop(name)
        if op.outs:
            registers.put_vector(op.outs[0], old)
        return name
    places = memory.spill("%lane.places", memory.places(op.ins[0], access), "i64", lanes)
    operands = []
    for at, r in enumerate(op.ins[1:]):
        slot = registers.variable(f"%lane.operand{at}", f"[{lanes} x i64]")
        code.do(f"store {registers.v.type(kind)} {registers.vector(r)}, ptr {slot}, align 8")
        operands.append(slot)
    out = registers.variable("%lane.data", f"[{lanes * 16} x i8]")
    name = helper_name(access.space, access.dtype, function)
    if access.space is Space.ARENA:
        where = (("ptr", "%environment"), ("i64", "0"), ("i64", "0"))
    else:
        region = memory.regions[access.space, access.which]
        where = (("ptr", region.base), ("i64", region.nbytes), ("i64", str(region.lane_stride)))
    code.call(
        "void", name, *where, ("ptr", places), ("i64", memory.running), ("ptr", memory.state), ("i64", memory.key), ("i64", str(site)),
        ("ptr", operands[0]), ("ptr", operands[-1]), ("ptr", out), ("i64", str(lanes)),
    )  # fmt: skip
    code.declared.pop(name)  # it is defined beside the kernel
    if op.outs:
        registers.put_vector(op.outs[0], code.value(f"load {registers.v.type(kind)}, ptr {out}, align 8"))
    return name


def helper_name(space: Space, dtype: DType, function: Atomic) -> str:
    return f"atomic.{space.name.lower()}.{dtype.text}.{function.name.lower()}"


def helper_text(name: str) -> str:
    """The helper's definition. One without checks for one lane ("change") is a function too, so that loops keep their registers."""
    *what, dtype_name, function_name = name.split(".")
    function, dtype = Atomic[function_name.upper()], next(d for d in DType if d.text == dtype_name)
    kind, size = MEMORY_LLVM[dtype], dtype.itemsize
    if what == ["change"]:
        change = _shared(dtype, function, kind, size)
        return f"define internal {kind} @{name}(ptr %there, {kind} %x) noinline cold {{\n{change}\n  ret {kind} %old\n}}\n"
    space = Space[what[1].upper()]
    if space is Space.ARENA:
        find = f"""
  %found = call i64 @simt_find(ptr %base, i64 %p, i64 {size}, i64 3, i64 %lane)
  br label %look2
look2:
  %in = icmp ne i64 %found, 0
  br i1 %in, label %inside, label %bad
inside:
  %even = icmp ne i64 %found, 1
  br i1 %even, label %do, label %bad
do:
  %there = inttoptr i64 %found to ptr"""
    else:
        find = f"""
  br label %look2
look2:
  %n1 = add i64 %nbytes, 1
  %limit = call i64 @llvm.usub.sat.i64(i64 %n1, i64 {size})
  %in = icmp ult i64 %p, %limit
  br i1 %in, label %inside, label %bad
inside:
  %off = and i64 %p, {size - 1}
  %even = icmp eq i64 %off, 0
  br i1 %even, label %do, label %bad
do:
  %shift = mul i64 %lane, %stride
  %q = add i64 %p, %shift
  %there = getelementptr i8, ptr %base, i64 %q"""
    change = _plain(dtype, function, kind) if space in (Space.SHARED, Space.LOCAL) else _shared(dtype, function, kind, size)
    return f"""
define internal void @{name}(ptr %base, i64 %nbytes, i64 %stride, ptr %places, i64 %running, ptr %state, i64 %key, i64 %site, ptr %a,
                             ptr %b, ptr %out, i64 %lanes) noinline {{
entry:
  %all = mul i64 %lanes, {size}
  call void @llvm.memset.p0.i64(ptr %out, i8 0, i64 %all, i1 false)
  br label %head
head:
  %rest = phi i64 [ %running, %entry ], [ %less, %latch ]
  %more = icmp ne i64 %rest, 0
  br i1 %more, label %run, label %exit
exit:
  ret void
latch:
  %minus = sub i64 %rest, 1
  %less = and i64 %rest, %minus
  br label %head
run:
  %lane = call i64 @llvm.cttz.i64(i64 %rest, i1 false)
  %key1 = add i64 %key, %lane
  %pp = getelementptr i64, ptr %places, i64 %lane
  %p = load i64, ptr %pp
  %ap = getelementptr {kind}, ptr %a, i64 %lane
  %x = load {kind}, ptr %ap
  %op = getelementptr {kind}, ptr %out, i64 %lane{find}
{change}
  store {kind} %old, ptr %op
  br label %latch
bad:
  %kind = phi i64 [ 0, %look2 ], [ 1, %inside ]
  call void @simt_raise(ptr %state, i64 %key1, i64 1, i64 %site, i64 %kind)
  br label %latch
}}
"""


def _shared(dtype: DType, function: Atomic, kind: str, size: int) -> str:
    if function is Atomic.CAS:
        return f"""  %bp = getelementptr {kind}, ptr %b, i64 %lane
  %new = load {kind}, ptr %bp
  %pair = cmpxchg ptr %there, {kind} %x, {kind} %new monotonic monotonic, align {size}
  %old = extractvalue {{ {kind}, i1 }} %pair, 0"""
    if function in (Atomic.MIN, Atomic.MAX):
        name = ("" if dtype in _SIGNED else "u") + function.name.lower()
    else:
        name = ("f" if dtype.is_float else "") + _RMW[function]
    return f"  %old = atomicrmw {name} ptr %there, {kind} %x monotonic, align {size}"


def _plain(dtype: DType, function: Atomic, kind: str) -> str:
    load = f"  %old = load {kind}, ptr %there\n"
    sign = "s" if dtype in _SIGNED else "u"
    lines = {
        Atomic.ADD: f"  %y = {'fadd' if dtype.is_float else 'add'} {kind} %old, %x",
        Atomic.AND: f"  %y = and {kind} %old, %x",
        Atomic.OR: f"  %y = or {kind} %old, %x",
        Atomic.XOR: f"  %y = xor {kind} %old, %x",
        Atomic.MIN: f"  %c = icmp {sign}lt {kind} %old, %x\n  %y = select i1 %c, {kind} %old, {kind} %x",
        Atomic.MAX: f"  %c = icmp {sign}gt {kind} %old, %x\n  %y = select i1 %c, {kind} %old, {kind} %x",
        Atomic.EXCH: "",
        Atomic.CAS: f"  %bp = getelementptr {kind}, ptr %b, i64 %lane\n  %new = load {kind}, ptr %bp\n"
        f"  %c = icmp eq {kind} %old, %x\n  %y = select i1 %c, {kind} %new, {kind} %old",
        Atomic.INC: f"  %c = icmp uge {kind} %old, %x\n  %up = add {kind} %old, 1\n  %y = select i1 %c, {kind} 0, {kind} %up",
        Atomic.DEC: f"  %z = icmp eq {kind} %old, 0\n  %g = icmp ugt {kind} %old, %x\n  %c = or i1 %z, %g\n"
        f"  %down = sub {kind} %old, 1\n  %y = select i1 %c, {kind} %x, {kind} %down",
    }[function]
    return f"{load}{lines}\n  store {kind} {'%x' if function is Atomic.EXCH else '%y'}, ptr %there"
