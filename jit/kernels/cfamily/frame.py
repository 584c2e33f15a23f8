"""Shared parts of both forms: the parts of a program around the code, and statements.

A form says how registers are called, how a thread learns its numbers, traps and counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import ClassVar, Final

from jit.kernels.cfamily.abi import Form, Source
from jit.kernels.cfamily.helpers import with_needs
from jit.kernels.cfamily.language import REGISTER, Language
from jit.kernels.cfamily.memory import Memory, trap_code
from jit.kernels.cfamily.values import Values
from jit.kernels.launch import Dim3, KernelOptions
from wis.encoding import digest
from wis.kernel.model import BufferParam, Op, RegType, Special, TrapKind
from wis.kernel.ops import BY_CODE, Sig
from wis.kernel.verify import TRAPPING, VerifiedKernel

POLL_BITS: Final = 16
"""A work-item that loops asks every 2**16 thread-instructions whether the launch is out of fuel."""
_NAME_MAX: Final = 40
_MEMORY: Final = frozenset({Sig.LOAD, Sig.STORE, Sig.BYTES_LOAD, Sig.BYTES_STORE, Sig.ATOM, Sig.RED})


class Frame:
    """A kernel being written. ``sites[b][i]``: the number of the trapping op i of block b of code."""

    form: ClassVar[Form]

    def __init__(self, verified: VerifiedKernel, language: Language, block: Dim3, dynamic_bytes: int, options: KernelOptions) -> None:
        self.verified, self.language, self.block, self.dynamic_bytes, self.options = verified, language, block, dynamic_bytes, options
        self.kernel = verified.core
        self.threads = prod(block)
        self.flow = verified.flow
        self.place = {b: i for i, b in enumerate(self.flow.order)}
        self.loops = any(self.place[b] <= self.place[a] for a in self.flow.order for b in self.flow.succ[a])
        self.helpers: list[str] = []
        self.values = Values(language, self._note)
        suffix = self._suffix()
        self.entry = f"k_{self.kernel.name[:_NAME_MAX]}_{suffix}"
        self.memory = Memory(self.kernel, language, dynamic_bytes, options.check, self.local(), self.register, suffix)
        self.sites = _sites(verified)
        self.traps = bool(verified.sites) and (options.check or any(self._ops(Sig.RAISE)))

    def _suffix(self) -> str:
        """Tells programs of one kernel apart."""
        o = self.options
        what = (self.form.value, self.block, self.dynamic_bytes, o.check, o.meter, o.fuel)
        return digest(self.verified.digest + repr(what).encode()).hex()[:12]

    def _ops(self, *sigs: Sig) -> Iterator[Op]:
        for block in self.kernel.blocks:
            yield from (op for op in block.code if BY_CODE[op.op].sig in sigs)

    def _note(self, helper: str) -> None:
        if helper not in self.helpers:
            self.helpers.append(helper)

    # --- what forms differ in
    def register(self, number: int) -> str:
        raise NotImplementedError

    def local(self) -> tuple[str, str]:
        """Qualifier and start of the thread's local memory."""
        raise NotImplementedError

    def trap(self) -> str:
        """Statements that keep the least of the trap ``code`` and earlier ones."""
        raise NotImplementedError

    # --- the program
    def source(self) -> Source:
        raise NotImplementedError

    def program(self, body: list[str], local: Dim3, scratch_bytes: int, shared_bytes: int = 0) -> Source:
        """The source around the ``body`` of the function."""
        entry = self.language.entry.format(name=self.entry, threads=prod(local), block=", ".join(map(str, local)))
        scope = [f"#undef TRAP\n#define TRAP(code) {{ {self.trap() if self.traps else ''} }}"]
        scope += [self.memory.constants()] if self.memory.uses_const else []
        scope += [self.memory.find()] if self.memory.finds else []
        function = "\n".join([*scope, f"{entry}({self._parameters()}) {{", *body, "}"])
        helpers = {**with_needs(self.helpers, self.language.long), **self.memory.functions}
        return Source(self.language.prelude, tuple(helpers.items()), function, self.entry, self.form, local, scratch_bytes, shared_bytes)

    def _parameters(self) -> str:
        buffers = [f"GLOBAL u8 *b{i}, " for i, p in enumerate(self.kernel.params) if isinstance(p, BufferParam)]
        return "".join(buffers) + "GLOBAL const u64 *w, u64 at, GLOBAL u64 *state, GLOBAL u8 *scratch"

    def opening(self) -> list[str]:
        """Parameters and the launch out of the table."""
        lines, at = ["w += at;"], 0
        for i, param in enumerate(self.kernel.params):
            if isinstance(param, BufferParam):
                lines.append(f"GLOBAL u8 *const p{i} = b{i} + w[{at}]; const u64 n{i} = w[{at + 1}], a{i} = w[{at + 2}];")
                at += 3
            else:
                kind = RegType(param.reg_type)
                word = f"w[{at}]" if kind.bits == 64 else f"(u32)w[{at}]"
                value = f"AS_F{kind.bits}({word})" if kind in (RegType.F32, RegType.F64) else word
                lines.append(f"const {REGISTER[kind]} v{i} = ({REGISTER[kind]}){value};")
                at += 1
        return [*lines, f"const u32 gx = (u32)w[{at}], gy = (u32)w[{at + 1}], gz = (u32)w[{at + 2}]; const u64 first = w[{at + 3}];"]

    @staticmethod
    def block_numbers() -> str:
        """Coordinates of block ``cta`` in the grid."""
        return "const u32 cx = (u32)cta % gx, cy = (u32)cta / gx % gy, cz = (u32)cta / gx / gy;"

    # --- statements
    def special(self, which: Special) -> str:
        """A value that the thread is given, as u32."""
        x, y, z = self.block
        return {
            Special.TID_X: "tx", Special.TID_Y: "ty", Special.TID_Z: "tz", Special.NTID_X: f"{x}u", Special.NTID_Y: f"{y}u",
            Special.NTID_Z: f"{z}u", Special.CTAID_X: "cx", Special.CTAID_Y: "cy", Special.CTAID_Z: "cz", Special.NCTAID_X: "gx",
            Special.NCTAID_Y: "gy", Special.NCTAID_Z: "gz", Special.LANE: "(t & 31u)", Special.WARP: "(t >> 5)",
            Special.DYNAMIC: f"{self.dynamic_bytes}u",
        }[which]  # fmt: skip

    def statement(self, b: int, i: int) -> str:
        """Op ``i`` of block of code ``b``; not those of warps."""
        op = self.kernel.blocks[b].code[i]
        row = BY_CODE[op.op]
        if row.sig in _MEMORY:
            return self.memory.statement(op, self.sites[b].get(i, 0))
        match row.sig:
            case Sig.RAISE:
                return f"TRAP({trap_code(self.sites[b][i], TrapKind.RAISED)}u)"
            case Sig.FENCE:
                return f"FENCE{op.attrs[0]};"
            case Sig.WARPSYNC:
                return ""
        return f"{self.register(op.outs[0])} = {self._value(op)};"

    def _value(self, op: Op) -> str:
        row, target = BY_CODE[op.op], RegType(self.kernel.regs[op.outs[0]])
        match row.sig:
            case Sig.CONST:
                return self.values.constant(target, op.attrs[0])
            case Sig.SPECIAL:
                return self.special(Special(op.attrs[0]))
            case Sig.PARAM:
                return f"v{op.attrs[0]}"
            case Sig.ADDRESS:
                return self.memory.address(op)
        return self.values.value(row, RegType(self.kernel.regs[op.ins[-1]]), target, [self.register(r) for r in op.ins])


def _sites(verified: VerifiedKernel) -> list[dict[int, int]]:
    """Trapping ops of ``core`` come in the order of those of ``flat``, block for block."""
    found: list[dict[int, int]] = []
    number = 0
    for block in verified.core.blocks:
        here: dict[int, int] = {}
        for i, op in enumerate(block.code):
            if BY_CODE[op.op].sig in TRAPPING:
                here[i] = number
                number += 1
        found.append(here)
    assert number == len(verified.sites), "expansion keeps the ops that trap"
    return found
