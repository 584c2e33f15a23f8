"""Code generation for one block of code of a gang: every op under the lanes that run it, memory behind one guard where that can be
proved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from jit.errors import KernelRefused
from jit.host.simt import atomics, warp
from jit.host.simt.control import Control
from jit.host.simt.guard import Plan, plan_block
from jit.host.simt.memory import Memory, access_of
from jit.host.simt.ops import value_of
from jit.host.simt.registers import Registers, literal_bits, vector_constant
from jit.host.simt.shape import Gang, Vector, Wide
from jit.host.simt.warp import WARP_OPS, Warp
from jit.kernels.launch import KernelOptions
from wis.kernel.model import LOCAL_BASE, SHARED_BASE, Op, RegType, ScalarParam, Space, Special, TrapKind, shared_offsets, terminator_reads
from wis.kernel.ops import BY_CODE, Sig
from wis.kernel.verify import TRAPPING

__all__ = ["Body", "special_name"]

LINES_MAX: Final = 400_000
"""Of a kernel's text: what is beyond takes the compiler longer than it may, and writing it takes time of the process that launches."""


def special_name(gang: Gang, dynamic_bytes: int, which: Special) -> str:
    """What a number of the thread is called in the text, or the number itself where it is known; of lane 0 where lanes differ."""
    if Special.NTID_X <= which <= Special.NTID_Z:
        return str(gang.block[which - Special.NTID_X])
    if which is Special.DYNAMIC:
        return str(dynamic_bytes)
    return f"%{which.name.lower()}"


class Body:
    """Writes blocks of code in any order. ``helpers``: functions that they call, each with what writes it; ``actives``: for every block the
    lanes in it."""

    def __init__(
        self, costs: Sequence[int], regs: Registers, control: Control, memory: Memory, options: KernelOptions, dynamic_bytes: int
    ) -> None:
        """``costs``: what a thread is charged for each block of code."""
        self.costs, self.regs, self.control, self.memory, self.options = costs, regs, control, memory, options
        self.code, self.kernel, self.gang = regs.code, regs.kernel, regs.gang
        self.warp = Warp(self.code, regs)
        self.dynamic_bytes = dynamic_bytes
        self.helpers: dict[str, Callable[[str], str]] = {}
        self.actives: dict[int, str] = {}
        #: how often each register is read
        self.reads: Counter[int] = Counter(r for block in self.kernel.blocks for op in block.code for r in op.ins)
        self.reads.update(r for block in self.kernel.blocks for r in terminator_reads(block.end))
        self.site = 0

    def block(self, b: int) -> None:
        """All of block ``b``, its count and what follows it. Raises KernelRefused when the kernel has become too much code."""
        code, control, memory = self.code, self.control, self.memory
        if len(code.lines) > LINES_MAX:
            raise KernelRefused(f"kernel {self.kernel.name} becomes too much code for this device; give it fewer ways to go, or less to do")
        control.enter(b)
        self.actives[b] = control.active
        memory.running = control.running()
        self.warp.there = control.active
        if self.options.meter:
            cost = self.costs[b]
            lanes = control.how_many()
            more = str(int(lanes) * cost) if lanes.isdigit() else code.mul(lanes, str(cost))
            code.do(f"store i64 {code.add(code.value('load i64, ptr %count'), more)}, ptr %count")
        code_of_block = self.kernel.blocks[b].code
        plan = plan_block(code_of_block, self.regs.facts, memory.guardable) if self.options.check else None
        if plan is None or not plan.groups:
            self._ops(code_of_block)
        else:
            self._twice(plan)
        control.leave(b)

    def _ops(self, ops: Sequence[Op]) -> None:
        for chain in warp.chains(ops, self.reads):
            self._chain(chain)

    def _chain(self, chain: Sequence[Op]) -> None:
        if BY_CODE[chain[0].op].sig in (Sig.MMA, Sig.MMA_F64):
            self.helpers[warp.matrix_product(self.code, self.regs, chain, self.warp.there)] = warp.matrix_helper
        else:
            self._op(chain[0])

    def _twice(self, plan: Plan) -> None:
        """Behind the guard without checks, beside it lane by lane."""
        code, regs, memory = self.code, self.regs, self.memory
        self._ops(plan.early)
        self._ops(plan.rest[: plan.begin])
        both, members = plan.rest[plan.begin : plan.end], {at - plan.begin for at in plan.members}
        fast, slow, meet = code.fresh("fast"), code.fresh("slow"), code.fresh("meet")
        code.do(f"br i1 {memory.guard(plan.groups)}, label %{fast}, label %{slow}, !prof !0")
        known, site = regs.saved(), self.site
        code.label(fast)
        at = 0
        for chain in warp.chains(both, self.reads):
            memory.check = at not in members
            self._chain(chain)
            at += len(chain)
        memory.check = True
        code.branch(meet)
        code.label(slow)
        regs.back_to(dict(known))
        self.site, memory.apart = site, True
        self._ops(both)
        memory.apart = False
        code.branch(meet)
        code.label(meet)
        regs.back_to(known)
        for op in both:
            for r in op.outs:
                regs.forget(r)
        self._ops(plan.rest[plan.end :])

    def _op(self, op: Op) -> None:
        sig = BY_CODE[op.op].sig
        site = self.site
        if sig in TRAPPING:
            self.site += 1
        if sig in (Sig.LOAD, Sig.BYTES_LOAD) or sig in (Sig.STORE, Sig.BYTES_STORE):
            loads = sig in (Sig.LOAD, Sig.BYTES_LOAD)
            if op.attrs[0] == Space.ARENA:
                self._arena(op, site, loads)
            else:
                (self.memory.load if loads else self.memory.store)(op, site)
        elif sig in (Sig.ATOM, Sig.RED):
            self.helpers[atomics.atomic(self.code, self.regs, self.memory, op, access_of(op), site)] = atomics.helper_text
        elif sig in WARP_OPS:
            self.warp.emit(op)
        elif sig is Sig.RAISE:
            values = ("i64", self.memory.key), ("i64", self.memory.running), ("i64", str(site)), ("i64", str(int(TrapKind.RAISED)))
            self.code.call("void", "simt_raise", ("ptr", "%state"), *values)
        elif sig is Sig.FENCE:
            self.code.do("fence seq_cst")
        elif sig is Sig.ADDRESS:
            self.regs.put_scalar(op.outs[0], self._address(Space(op.attrs[0]), op.attrs[1]))
        elif sig is not Sig.WARPSYNC:
            self._compute(op)

    def _address(self, space: Space, which: int) -> str:
        if space is Space.GLOBAL:
            return f"%address{which}"
        return str(LOCAL_BASE if space is Space.LOCAL else SHARED_BASE + shared_offsets(self.kernel)[which])

    def _arena(self, op: Op, site: int, loads: bool) -> None:
        memory, access = self.memory, access_of(op)
        places = memory.spill("%lane.places", memory.places(op.ins[0], access), "i64", self.gang.lanes)
        data = self.regs.variable("%lane.data", f"[{self.gang.lanes * 16} x i8]")
        if not loads:
            memory.put_data(op, access)
        self.code.call(
            "void", "simt_arena_load" if loads else "simt_arena_store", ("ptr", "%environment"), ("ptr", places), ("i64", memory.running),
            ("i64", str(access.nbytes)), ("ptr", "%state"), ("i64", memory.key), ("i64", str(site)), ("ptr", data),
            ("i64", str(self.gang.lanes)),
        )  # fmt: skip
        if loads:
            memory.take_data(op, access)

    def _compute(self, op: Op) -> None:
        """In lane 0 where that says it all, else in all lanes."""
        regs = self.regs
        out = op.outs[0]
        fact = regs.fact(out)
        row = BY_CODE[op.op]
        if fact.value is not None or out in regs.given:
            return
        if row.sig is Sig.CONST:
            regs.put_scalar(out, self._constant(op, out))
        elif row.sig is Sig.PARAM:
            param = self.kernel.params[op.attrs[0]]
            assert isinstance(param, ScalarParam)
            regs.put_scalar(out, f"%flag{op.attrs[0]}" if param.reg_type == RegType.PRED else f"%base{op.attrs[0]}")
        elif row.sig is Sig.SPECIAL:
            self._special(out, Special(op.attrs[0]))
        elif isinstance(fact.shape, Wide):
            self._wide(op, out, fact.shape)
        else:
            kinds = [regs.kind(r) for r in op.ins]
            if isinstance(fact.shape, Vector) and not all(regs.is_same(r) for r in op.ins):
                args = [regs.vector(r) for r in op.ins]
                parts = self._parts(row.name, op) if not self.memory.guarded else None
                regs.put_vector(out, value_of(regs.v, row, regs.kind(out), kinds, args))
                if row.name == "sext" and kinds[0] is RegType.I32:
                    regs.put_narrow(out, args[0])
                if parts is not None:
                    regs.sums[out] = parts
            else:
                args = [regs.scalar(r) for r in op.ins]
                regs.put_scalar(out, value_of(regs.one, row, regs.kind(out), kinds, args))

    def _parts(self, name: str, op: Op) -> tuple[str, str] | None:
        """A 64-bit sum as what all lanes share and what they do not: together they are an address without arithmetic on vectors."""
        regs, (out,) = self.regs, op.outs
        if name != "add" or regs.kind(out) is not RegType.I64 or out in op.ins:
            return None
        same = [r for r in op.ins if regs.is_same(r)]
        other = [r for r in op.ins if regs.is_vector(r)]
        if len(same) != 1 or len(other) != 1:
            return None
        shared, lanes = regs.sums.get(other[0], ("", regs.vector(other[0])))
        scalar = regs.scalar(same[0])
        return self.code.add(shared, scalar) if shared else scalar, lanes

    def _constant(self, op: Op, out: int) -> str:
        return literal_bits(self.regs.kind(out), op.attrs[0])

    def _special(self, out: int, which: Special) -> None:
        """A number of the thread into a register that holds others too, or that differs in no simple way."""
        regs, v = self.regs, self.regs.v
        if not isinstance(regs.fact(out).shape, Vector):
            regs.put_scalar(out, special_name(self.gang, self.dynamic_bytes, which))
            return
        if which not in (Special.TID_X, Special.TID_Y, Special.TID_Z, Special.LANE, Special.WARP):
            regs.put_scalar(out, special_name(self.gang, self.dynamic_bytes, which))
            return
        x, y, z = self.gang.block
        thread = v.op("add", "i32", v.splat("i32", "%thread32"), vector_constant("i32", range(self.gang.lanes)))
        below, size = {
            Special.TID_X: (1, x), Special.TID_Y: (x, y), Special.TID_Z: (x * y, z), Special.LANE: (1, 32), Special.WARP: (32, 1 << 20),
        }[which]  # fmt: skip
        if below > 1:
            thread = v.op("udiv", "i32", thread, v.const("i32", below))
        regs.put_vector(out, v.op("urem", "i32", thread, v.const("i32", size)))

    def _wide(self, op: Op, out: int, shape: Wide) -> None:
        """Root and rest of a widened number."""
        regs, code = self.regs, self.code
        name = BY_CODE[op.op].name
        a = op.ins[0]
        if name in ("sext", "zext"):
            regs.put_wide(out, regs.scalar(a), "0")
        elif name == "mov":
            regs.put_wide(out, *regs.wide(a))
        elif name in ("mul", "shl"):
            if not isinstance(regs.fact(a).shape, Wide):
                a, by = op.ins[1], regs.fact(op.ins[0]).value
            else:
                by = regs.fact(op.ins[1]).value
            assert by is not None
            root, rest = regs.wide(a)
            regs.put_wide(out, root, code.mul(rest, str(1 << by if name == "shl" else by)))
        elif name in ("add", "sub"):
            b = op.ins[1]
            if isinstance(regs.fact(a).shape, Wide):
                root, rest = regs.wide(a)
                regs.put_wide(out, root, code.value(f"{name} i64 {rest}, {regs.scalar(b)}"))
            else:
                root, rest = regs.wide(b)
                regs.put_wide(out, root, code.value(f"{name} i64 {regs.scalar(a)}, {rest}"))
        else:
            assert name == "sel", name
            p = regs.scalar(op.ins[0])
            (r1, s1), (r2, s2) = regs.wide(op.ins[1]), regs.wide(op.ins[2])
            regs.put_wide(out, regs.one.select("i32", p, r1, r2), regs.one.select("i64", p, s1, s2))
