"""The thread form: a work-item runs one thread; blocks of code are labels and branches gotos.

A thread counts its instructions and remembers its least trap; at the end the threads of a block add up. In loops it asks from time to time
whether the launch is out of fuel. A thread that must stop goes to the end. Where threads wait for each other they may only do so together,
so one that is alone leaves the code that only some threads run, and goes on to a place where all ask (its results do not matter any more);
but where threads that ended do not count at barriers (CUDA), it just ends (``FuelExits``).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import ClassVar

from jit.errors import Unspelled
from jit.kernels.cfamily.abi import Form, Source
from jit.kernels.cfamily.frame import POLL_BITS, Frame
from jit.kernels.cfamily.helpers import matrix_helper
from jit.kernels.cfamily.language import REGISTER
from jit.kernels.cfamily.warp import MATRIX_SIGS, WARP_SIGS, asks_lanes, folding, kind_of, source_lane, vote
from jit.kernels.launch import Dim3
from wis.kernel.flow import Flow
from wis.kernel.model import WARP, Bar, Br, Cbr, Kernel, Math, Op, RegType, Ret, Switch, Sync, Terminator
from wis.kernel.ops import BY_CODE, Sig
from wis.kernel.uniformity import Uniformity, warp_uniformity
from wis.kernel.verify import Barriers, VerifiedKernel

__all__ = ["ThreadForm", "FuelExits"]


class Place(Enum):
    """Which threads decide together in a block of code."""

    BLOCK = "block"  # all threads of the block are there: they stop together
    WARP = "warp"  # all lanes of a warp are: they leave together
    ALONE = "alone"  # a thread leaves


def region(flow: Flow, branch: int, stop: int | None) -> frozenset[int]:
    """Blocks of code on paths from ``branch`` before ``stop`` (None: the end)."""
    found: set[int] = set()
    todo = [b for b in flow.succ[branch] if b != stop]
    while todo:
        b = todo.pop()
        if b not in found:
            found.add(b)
            todo += [c for c in flow.succ[b] if c != stop]
    return frozenset(found)


class FuelExits:
    """For every block of code: which threads decide together there, and where the threads that leave rejoin the others."""

    def __init__(self, verified: VerifiedKernel, block: Dim3) -> None:
        self._flow = verified.flow
        self._block = verified.uniformity
        self._regions: dict[int, frozenset[int]] = {}
        self._warp = warp_uniformity(verified.core, verified.flow, block) if verified.uses.warp else None

    @classmethod
    def known(cls, verified: VerifiedKernel, block: Dim3) -> bool:
        """Whether there is a fuel-exit block for every block that leads back."""
        exits, place = cls(verified, block), {b: i for i, b in enumerate(verified.flow.order)}
        try:
            for b in verified.flow.order:
                if any(place[c] <= place[b] for c in verified.flow.succ[b]):
                    exits.of(b)
        except Unspelled:
            return False
        return True

    def of(self, b: int) -> tuple[Place, int | None]:
        """Raises Unspelled when threads that leave could meet others in two places."""
        if b not in self._block.divergent:
            return Place.BLOCK, None
        if self._warp is None:
            return Place.ALONE, self._meeting(b, self._block)
        if b not in self._warp.divergent:
            return Place.WARP, self._meeting(b, self._block)
        return Place.ALONE, self._meeting(b, self._warp)

    def _region(self, branch: int) -> frozenset[int]:
        if branch not in self._regions:
            self._regions[branch] = region(self._flow, branch, self._flow.ipdom[branch])
        return self._regions[branch]

    def _meeting(self, b: int, same: Uniformity) -> int | None:
        """The reconvergence point of all threads that diverged before ``b``."""
        meets = {self._flow.ipdom[s] for s in same.split if b in self._region(s)}
        found = meets - same.divergent
        if len(found) != 1:
            raise Unspelled("threads that stop could meet the others in two places")
        return found.pop()


_POLL_EVERY = 256  # times round a loop with barriers in it, after which the threads of a block ask together
_ADD_ALONE = "ATOM_ADD64((volatile GLOBAL u64 *)(state + 1), (u64)n);"
_STATIC_SHARED_BYTES_MAX = 47 << 10  # of CUDA's 48 KiB; more is asked for at launch


class ThreadForm(Frame):
    """One kernel."""

    form: ClassVar[Form] = Form.THREAD

    def register(self, number: int) -> str:
        return f"r{number}"

    def local(self) -> tuple[str, str]:
        return "PRIVATE", "lo"

    def trap(self) -> str:
        return "const u32 code_ = code; tr = code_ < tr ? code_ : tr;"

    def source(self) -> Source:
        barriers = self.verified.barriers
        self.leaves = barriers is Barriers.LIVE  # threads end while others wait, so the others do not wait for them at the end
        self.together = asks_lanes(self.kernel) or (barriers is not Barriers.NONE and not self.language.warps)
        self.polls = self.options.meter and self.options.fuel and self.loops
        self.fuel_exits = FuelExits(self.verified, self.block) if self.polls and self.together else None
        body = [line for b in range(len(self.kernel.blocks)) for line in self._block(b)]
        lines = [*self.opening(), *self._numbers(), *self._memory(), *self._registers(), *self._start(), *body, *self._finish()]
        return self.program(lines, self.block, 0, self._asked_shared())

    # --- around the code
    def _numbers(self) -> list[str]:
        x, y, _ = self.block
        kind = "u64" if self.loops else "u32"
        lines = [
            f"const u32 tx = LOCAL_X, ty = LOCAL_Y, tz = LOCAL_Z, t = (tz * {y}u + ty) * {x}u + tx;",
            "const u64 cta = first + GROUP;",
            self.block_numbers(),
        ]
        if self.options.meter:
            lines.append(f"{kind} n = 0;")
        if self.polls:
            lines.append(f"const u64 fuel = state[2]; u64 next = {1 << POLL_BITS}u;" + (" u32 it = 0, dead = 0;" if self.together else ""))
        if self.traps:
            lines.append("u32 tr = ~0u;")
        if any(BY_CODE[op.op].sig in WARP_SIGS for block in self.kernel.blocks for op in block.code):
            lines.append(f"const u32 wm = {self._warp_mask()};")
        return lines

    def _warp_mask(self) -> str:
        """The lanes of the thread's warp."""
        if self.threads % WARP == 0:
            return "~0u"
        last, rest = self.threads // WARP, self.threads % WARP
        return f"t >> 5 == {last}u ? {(1 << rest) - 1:#x}u : ~0u"

    def _memory(self) -> list[str]:
        lines = []
        if self.kernel.shared:
            total = max(4, -(-self.memory.shared_total // 4) * 4)
            lines.append("extern __shared__ ALIGN16 u8 sh[];" if self._asked_shared() else self._shared("u8", "sh", total))
        if self.polls and self.together:
            lines.append(self._shared("u32", "stop", 1))
        if self.options.meter and not self.leaves:
            lines.append(self._shared("u32", "fin", 3))
        if self.memory.uses_local:
            lines.append(f"ALIGN16 u8 lo[{max(16, self.kernel.local_bytes)}];")
        return lines

    def _asked_shared(self) -> int:
        """Bytes of shared memory beyond what CUDA lets a program declare."""
        total = -(-self.memory.shared_total // 4) * 4
        return total if self.language.warps and total > _STATIC_SHARED_BYTES_MAX else 0

    def _shared(self, kind: str, name: str, n: int) -> str:
        return f"{self.language.shared} ALIGN16 {kind} {name}[{n}];"

    def _registers(self) -> list[str]:
        by_kind: dict[str, list[str]] = {}
        for number, kind in enumerate(self.kernel.regs):
            by_kind.setdefault(REGISTER[RegType(kind)], []).append(f"r{number}")
        return [f"{kind} {', '.join(names[i : i + 24])};" for kind, names in by_kind.items() for i in range(0, len(names), 24)]

    def _start(self) -> list[str]:
        """Zeros where the definition promises them."""
        lines = []
        if total := self.memory.shared_total:
            lines.append(f"for (u32 i = t; i < {-(-total // 4)}u; i += {self.threads}u) ((SHARED u32_m *)sh)[i] = 0;")
        if self.options.meter and not self.leaves:
            lines.append("if (t < 3) fin[t] = 0;" if self.threads >= 3 else "if (t == 0) fin[0] = fin[1] = fin[2] = 0;")
        if lines:
            lines.append("BARRIER;")
        if self.kernel.local_bytes:
            qualifier = self.local()[0]
            lines.append(f"for (u32 i = 0; i < {self.kernel.local_bytes}u; i++) (({qualifier} u8 *)lo)[i] = 0;")
        if self.options.meter and self.options.fuel and not self.together and self.verified.barriers is Barriers.NONE:
            lines.append(f"if (state[1] > state[2] || state[3] << {POLL_BITS} > state[2]) goto END;")
        return lines

    def _finish(self) -> list[str]:
        lines = ["END:;"]
        if self.traps:
            lines.append("if (tr != ~0u) ATOM_MIN64((volatile GLOBAL u64 *)state, cta << 29 | (u64)t << 19 | tr);")
        if self.options.meter:
            lines += [_ADD_ALONE] if self.leaves else self._finish_together()
        return lines

    def _finish_together(self) -> list[str]:
        """Sums in shared memory, in three parts of which none overflows."""
        add = "ATOM_ADD32((volatile SHARED u32 *)(fin + {}), (u32)(n >> {}{}));"
        return [
            add.format(0, 0, " & 0xffff"),
            add.format(1, 16, " & 0xffff"),
            *([add.format(2, 32, "")] if self.loops else []),
            "BARRIER;",
            "if (t == 0) ATOM_ADD64((volatile GLOBAL u64 *)(state + 1), fin[0] + ((u64)fin[1] << 16) + ((u64)fin[2] << 32));",
        ]

    # --- code
    def _block(self, b: int) -> list[str]:
        lines = [f"B{b}:;"]
        if self.options.meter:
            lines.append(f"  n += {self.verified.costs[b]}u;")
        for i, op in enumerate(self.kernel.blocks[b].code):
            sig = BY_CODE[op.op].sig
            if sig in MATRIX_SIGS:
                text = self._product(op)
            else:
                text = _lane_statement(self.kernel, op, self.register) if sig in WARP_SIGS else self.statement(b, i)
            if text:
                lines.append("  " + text)
        return [*lines, *("  " + line for line in self._end(b, self.kernel.blocks[b].end))]

    def _product(self, op: Op) -> str:
        """A product of matrices, by a function that asks other lanes or, under native math, uses tensor cores."""
        helper = matrix_helper(op) + ("_tensor" if self.kernel.math == Math.NATIVE else "_lane")
        self._note(helper)
        x, out = [self.register(r) for r in op.ins], [self.register(r) for r in op.outs]
        factors, sums = x[: -len(out)], x[-len(out) :]
        kind = REGISTER[RegType(self.kernel.regs[op.outs[0]])]
        results = " ".join(f"{r} = s[{i}];" for i, r in enumerate(out))
        return f"{{ {kind} s[{len(out)}] = {{ {', '.join(sums)} }}; {helper}(wm, t & 31u, {', '.join(factors)}, s); {results} }}"

    def _end(self, b: int, end: Terminator) -> list[str]:
        match end:
            case Br(target):
                return [self._go(b, target)]
            case Cbr(pred, yes, no):
                return [f"if ({self.register(pred)}) {{ {self._go(b, yes)} }} else {{ {self._go(b, no)} }}"]
            case Switch(index, targets, default):
                cases = [f"case {i}u: {self._go(b, target)}" for i, target in enumerate(targets)]
                return [f"switch ({self.register(index)}) {{", *cases, f"default: {self._go(b, default)}", "}"]
            case Ret():
                return ["goto END;"]
            case Bar(target) | Sync(target):
                return [f"BARRIER; {self._go(b, target)}"]
        raise AssertionError("calls are inlined")

    def _go(self, b: int, target: int) -> str:
        """A branch; one that leads back asks for fuel first."""
        back = self.polls and self.place[target] <= self.place[b]
        return (self._poll(b) if back else "") + f"goto B{target};"

    def _poll(self, b: int) -> str:
        self._note("wis_spent")
        asked = "wis_spent(state, fuel, n, &next)"
        if self.fuel_exits is None:
            # Where threads end, those that wait at a barrier wait for the rest: a thread that stops counts for itself and ends.
            alone = self.language.warps and self.verified.barriers is not Barriers.NONE
            return f"if (n >= next && {asked}) {{ {_ADD_ALONE + ' return;' if alone else 'goto END;'} }} "
        self._note("wis_over")
        place, target = self.fuel_exits.of(b)
        ask = f"if (n >= next && {asked}) dead = 1; "
        leave = "goto END;" if target is None else f"goto B{target};"
        if place is Place.ALONE:
            return ask + f"if (dead) {leave} "
        if place is Place.WARP:
            return ask + f"if (WARP_BALLOT(wm, dead)) {{ dead = 1; {leave} }} "
        together = "BARRIER; if (t == 0) stop[0] = wis_over(state, fuel); BARRIER; if (stop[0]) goto END;"
        return ask + f"if (++it == {_POLL_EVERY}u) {{ it = 0; {together} }} "


# --- warp ops on devices with warps of 32: all lanes of a warp (mask ``wm``) run them together
_EACH = "for (u32 l = 0; l < 32; l++) if (wm >> l & 1)"


def _lane_statement(kernel: Kernel, op: Op, register: Callable[[int], str]) -> str:
    """One warp op of the thread."""
    x, out = [register(r) for r in op.ins], [register(r) for r in op.outs]
    match BY_CODE[op.op].sig:
        case Sig.WARPSYNC:
            return "WARP_SYNC(wm);"
        case Sig.ACTIVEMASK:
            return f"{out[0]} = wm;"
        case Sig.SHFL:
            kind = kind_of(kernel, op)
            lane = source_lane(op, "(t & 31u)", x[1], x[2])
            return (
                f"{{ {lane} ok &= wm >> j; const {kind} v = WARP_SHFL(wm, {x[0]}, j); {out[0]} = ok & 1 ? v : {x[0]}; {out[1]} = ok & 1; }}"
            )
        case Sig.VOTE:
            return f"{{ const u32 m = {x[1]} & wm, h = WARP_BALLOT(wm, {x[0]}) & m; {out[0]} = {vote(op, 'h', 'm')}; }}"
        case Sig.BALLOT:
            return f"{out[0]} = WARP_BALLOT(wm, {x[0]}) & {x[1]} & wm;"
        case Sig.MATCH_ANY:
            return f"{{ u32 h = 0; {_EACH} h |= (u32)(WARP_SHFL(wm, {x[0]}, l) == {x[0]}) << l; {out[0]} = h & {x[1]}; }}"
        case Sig.MATCH_ALL:
            wanted = f"const {kind_of(kernel, op)} v = WARP_SHFL(wm, {x[0]}, m ? 31u - CLZ32(m & (0u - m)) : 0u);"
            every = f"u32 h = 0; {_EACH} h |= (u32)(WARP_SHFL(wm, {x[0]}, l) == v) << l;"
            return f"{{ const u32 m = {x[1]} & wm; {wanted} {every} h = (h & m) == m; {out[0]} = h ? m : 0u; {out[1]} = h; }}"
        case _:
            start, fold = folding(op)
            step = f"{{ const u32 v = WARP_SHFL(wm, {x[0]}, l); if (m >> l & 1) h = {fold('h', 'v')}; }}"
            return f"{{ const u32 m = {x[1]}; u32 h = {start}; {_EACH} {step} {out[0]} = h; }}"
