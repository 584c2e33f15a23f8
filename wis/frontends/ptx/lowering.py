"""From PTX statements to ops: registers, constants, operands, blocks, guards. What each instruction becomes stands in the modules that
register themselves in ``LOWERINGS``.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable
from difflib import get_close_matches
from typing import Final, NamedTuple

from wis.dtypes import DType
from wis.frontends.ptx.classes import BITS, INTEGER, choose, registers_of
from wis.frontends.ptx.code import Code, End, Node, Part, signed
from wis.frontends.ptx.scene import Scene
from wis.frontends.ptx.syntax import Instruction, Name, Not, Number, Operand, Pair, PtxError, Register, Routine, single
from wis.kernel.model import RegType, Space, Special

__all__ = [
    "RoutineLowering", "InstructionLowering", "LOWERINGS", "lowers", "lower", "element", "access",
    "FLOATS", "HALVES", "EXACT", "SIGNED", "UNSIGNED",
]  # fmt: skip

FLOATS: Final = {"f16": RegType.F16, "bf16": RegType.BF16, "f32": RegType.F32, "f64": RegType.F64}
HALVES: Final = frozenset({"f16", "bf16"})
UNSIGNED: Final = {8: DType.U8, 16: DType.U16, 32: DType.U32, 64: DType.U64}
SIGNED: Final = {8: DType.I8, 16: DType.I16, 32: DType.I32, 64: DType.I64}
EXACT: Final = {
    RegType.F16: DType.F16, RegType.BF16: DType.BF16, RegType.F32: DType.F32, RegType.F64: DType.F64,
}  # fmt: skip
_BYTES_MAX: Final = 16
_ONES: Final = {RegType.PRED: 1, RegType.I16: -1, RegType.I32: -1, RegType.I64: -1}


class InstructionLowering(NamedTuple):
    """How an instruction is lowered. ``effect``: a guard must skip it (not: compute and drop); ``typed``: a modifier must be a type, and
    the lowering finds the types after all other modifiers."""

    lower: Callable[[RoutineLowering, Instruction], None]
    modifiers: frozenset[str]
    effect: bool
    args: tuple[int, int]
    typed: bool = True


LOWERINGS: Final[dict[str, InstructionLowering]] = {}


def lowers(
    names: str, modifiers: str = "", args: tuple[int, int] | int = (0, 99), *, effect: bool = False, typed: bool = True
) -> Callable[[Callable[[RoutineLowering, Instruction], None]], Callable[[RoutineLowering, Instruction], None]]:
    """Register a function as the lowering of some instructions. ``modifiers``: those accepted beside types; ``args``: how many operands."""
    bounds = (args, args) if isinstance(args, int) else args

    def register(lower: Callable[[RoutineLowering, Instruction], None]) -> Callable[[RoutineLowering, Instruction], None]:
        for name in names.split():
            LOWERINGS[name] = InstructionLowering(lower, frozenset(modifiers.split()), effect, bounds, typed)
        return lower

    return register


_SPECIALS: Final = {
    **{f"%{name}.{axis}": Special[f"{name.upper()}_{axis.upper()}"] for name in ("tid", "ntid", "ctaid", "nctaid") for axis in "xyz"},
    "%laneid": Special.LANE,
    "%warpid": Special.WARP,
    "%dynamic_smem_size": Special.DYNAMIC,
}
_CONSTANTS: Final = {
    "WARP_SZ": 32, "%tid.w": 0, "%ctaid.w": 0, "%ntid.w": 1, "%nctaid.w": 1, "%gridid": 0, "%clusterid.w": 0, "%cluster_ctaid.x": 0,
    "%cluster_ctaid.y": 0, "%cluster_ctaid.z": 0, "%cluster_nctaid.x": 1, "%cluster_nctaid.y": 1, "%cluster_nctaid.z": 1,
    "%cluster_ctarank": 0, "%cluster_nctarank": 1,
}  # fmt: skip
_AS_CTA: Final = {f"%{a}.{axis}": f"%{b}.{axis}" for a, b in (("clusterid", "ctaid"), ("nclusterid", "nctaid")) for axis in "xyz"}
_REFUSED_SPECIALS: Final = {
    "%clock": "clocks differ on every device: measure with events from the host",
    "%globaltimer": "clocks differ on every device: measure with events from the host",
    "%smid": "which multiprocessor runs a block is not portable: use %ctaid (blockIdx)",
    "%nsmid": "the number of multiprocessors is not portable: pass a number as an argument",
    "%envreg": "grid-wide synchronisation is not portable: split the kernel into launches",
    "%pm": "performance counters are not portable",
    "%reserved_smem": "memory that the driver keeps for tiles of several warps: use tiles of at most 32 threads, or the whole block",
}


def _parameter_addresses(routine: Routine) -> dict[Register, Name]:
    """Registers of a kernel that are written once, with the address of a parameter or of a byte in it."""
    params = {param.name for param in routine.params}
    targets = [arg for ins in routine.code for arg in (*ins.args[:1], *(ins.lists[0] if ins.lists else ()))]
    written = Counter(register for arg in targets for register in registers_of(arg))
    found: dict[Register, Name] = {}
    for ins in routine.code:
        if ins.op not in ("mov", "add") or ins.guard is not None or len(ins.args) < 2:
            continue
        target, base, *more = ins.args
        start = found.get(base) if isinstance(base, Register) else base
        numbers = [number.value for number in more if isinstance(number, Number) and number.kind == "i"]
        if not isinstance(start, Name) or start.text not in params or len(numbers) != len(more):
            continue
        if isinstance(target, Register) and written[target] == 1:
            found[target] = start._replace(offset=start.offset + sum(signed(number, 64) for number in numbers))
    return found


class RoutineLowering:
    """The state while the code of one kernel or function becomes blocks."""

    def __init__(self, scene: Scene, routine: Routine) -> None:
        self.scene, self.routine = scene, routine
        self.code = Code(routine.name)
        self.classes = choose(routine)
        self.registers: dict[Register, int] = {}
        self.current: Part = self.code.parts[self.code.part()]
        self.pending: list[tuple[int, int, RegType]] = []
        self.guard: tuple[int, bool] | None = None
        self.line, self.source = routine.line, 0
        self.starts: dict[int, int] = {}
        self.carry: int | None = None
        self.call_results: dict[str, dict[int, int]] = {}
        self.call_inputs: dict[str, dict[int, tuple[int, int]]] = {}
        self.copy_sizes: dict[Register, int] | None = None
        """Registers that are always 0 or this number of bytes; None until an asynchronous copy asks for them."""
        self.param_addresses = _parameter_addresses(routine) if routine.kernel else {}

    # -- ops -------------------------------------------------------------------------------------------------------------------------

    def fail(self, text: str, hint: str = "") -> PtxError:
        return PtxError(self.line, text, hint=hint)

    def emit(self, name: str, outs: list[int], ins: list[int], attrs: tuple[int, ...] = ()) -> None:
        self.current.nodes.append(Node(name, outs, ins, attrs, self.source, self.line))

    def op(self, name: str, type_: RegType, *ins: int, attrs: tuple[int, ...] = ()) -> int:
        """A new register with the result of an op."""
        out = self.code.temp(type_)
        self.emit(name, [out], list(ins), attrs)
        return out

    def const(self, type_: RegType, bits: int) -> int:
        return self.code.const(type_, bits)

    def f32(self, value: float) -> int:
        return self.const(RegType.F32, int.from_bytes(struct.pack("<f", value), "little"))

    def number(self, type_: RegType, value: float) -> int:
        """A float constant of type f32 or f64."""
        code = "<f" if type_ is RegType.F32 else "<d"
        return self.const(type_, int.from_bytes(struct.pack(code, value), "little"))

    def convert(self, value: int, to: RegType) -> int:
        """Bits of one type as another of the same width."""
        return value if self.code.types[value] is to else self._reinterpreted(value, to)

    def _reinterpreted(self, value: int, to: RegType) -> int:
        if value in self.code.constants:
            return self.const(to, self.code.constants[value])
        return self.op("reinterpret", to, value)

    def extend(self, value: int, to: RegType, *, signed: bool) -> int:
        """An integer as a wider one, or the same."""
        return value if self.code.types[value] is to else self.op("sext" if signed else "zext", to, value)

    # -- operands --------------------------------------------------------------------------------------------------------------------

    def type_of(self, register: Register) -> RegType:
        return self.classes[register]

    def register(self, register: Register) -> int:
        found = self.registers.get(register)
        if found is None:
            found = self.registers[register] = self.code.temp(self.classes[register])
        return found

    def read(self, arg: Operand, type_: RegType) -> int:
        """The register that holds an operand as ``type_``."""
        if isinstance(arg, Register):
            value = self.register(arg)
            have = self.code.types[value]
            if have is type_:
                return value
            if have.bits == type_.bits and RegType.PRED not in (have, type_):
                return self._reinterpreted(value, type_)
            raise self.fail(f"{arg.name} has type .{arg.type}, which cannot be used as {type_.text} here")
        if isinstance(arg, Number):
            return self.literal(arg, type_)
        if isinstance(arg, Name):
            return self.named(arg, type_)
        if isinstance(arg, Not):
            return self.op("not", RegType.PRED, self.read(arg.register, RegType.PRED))
        raise self.fail("this kind of operand cannot stand here")

    def read_int(self, arg: Operand, bits: int) -> int:
        """An operand's low ``bits`` bits or more, as an integer register of at least 16 bits; wider registers as they are."""
        if isinstance(arg, Register) and BITS[arg.type] >= bits and arg.type != "pred":
            return self.read(arg, INTEGER[BITS[arg.type]])
        return self.read(arg, INTEGER[bits])

    def read_low(self, arg: Operand, type_: RegType) -> int:
        """An operand of ``type_``, also out of the low bits of a wider register (conversions and stores allow that)."""
        if isinstance(arg, Register) and BITS[arg.type] > type_.bits:
            whole = self.read(arg, INTEGER[BITS[arg.type]])
            return self.convert(self.op("narrow", INTEGER[type_.bits], whole), type_)
        return self.read(arg, type_)

    def literal(self, given: Number, type_: RegType) -> int:
        value, kind = given
        if kind == "d" and type_ is RegType.F32:
            value = single(value)
        elif kind == "f" and type_ is RegType.F64:
            value = int.from_bytes(struct.pack("<d", struct.unpack("<f", struct.pack("<I", value))[0]), "little")
        elif kind == "i" and type_ is RegType.PRED:
            return self.const(type_, int(value != 0))
        elif kind == "i" and not -(1 << 63) <= value < 1 << 64:
            raise self.fail(f"{value} does not fit 64 bits")
        return self.const(type_, value)

    def named(self, arg: Name, type_: RegType) -> int:
        """A special register, or the address of a variable."""
        text = arg.text
        text = _AS_CTA.get(text, text)
        special = _SPECIALS.get(text)
        if special is not None:
            return self._fitted(self.op("special", RegType.I32, attrs=(int(special),)), type_)
        if text in _CONSTANTS:
            return self.const(type_, _CONSTANTS[text])
        if text.startswith("%lanemask_"):
            return self._fitted(self._lane_mask(text), type_)
        if text in ("%nwarpid",):
            return self._fitted(self._warps(), type_)
        if text == "%is_explicit_cluster":
            return self.const(type_, 0)
        for head, hint in _REFUSED_SPECIALS.items():
            if text.startswith(head):
                raise self.fail(f"{text} is not portable", hint)
        return self._address_of(arg, type_)

    def _fitted(self, value: int, type_: RegType) -> int:
        if type_ is RegType.I32:
            return value
        if type_ is RegType.I64:
            return self.op("zext", type_, value)
        if type_ is RegType.I16:
            return self.op("narrow", type_, value)
        return self.convert(value, type_) if type_.bits == 32 else self._wrong(type_)

    def _wrong(self, type_: RegType) -> int:
        raise self.fail(f"a special register cannot be read as {type_.text}")

    def _lane_mask(self, text: str) -> int:
        i32 = RegType.I32
        lane = self.op("special", i32, attrs=(int(Special.LANE),))
        one = self.const(i32, 1)
        if text == "%lanemask_eq":
            return self.op("shl", i32, one, lane)
        if text in ("%lanemask_lt", "%lanemask_ge"):
            below = self.op("sub", i32, self.op("shl", i32, one, lane), one)
            return below if text == "%lanemask_lt" else self.op("not", i32, below)
        if text in ("%lanemask_le", "%lanemask_gt"):
            upto = self.op("sub", i32, self.op("shl", i32, self.const(i32, 2), lane), one)
            return upto if text == "%lanemask_le" else self.op("not", i32, upto)
        raise self.fail(f"{text} is not a special register")

    def _warps(self) -> int:
        i32 = RegType.I32
        x, y, z = (self.op("special", i32, attrs=(int(which),)) for which in (Special.NTID_X, Special.NTID_Y, Special.NTID_Z))
        threads = self.op("mul", i32, self.op("mul", i32, x, y), z)
        return self.op("shr_u", i32, self.op("add", i32, threads, self.const(i32, 31)), self.const(i32, 5))

    def _address_of(self, arg: Name, type_: RegType) -> int:
        if type_ not in (RegType.I32, RegType.I64):
            raise self.fail(f"{arg.text} is not something whose value is {type_.text}")
        symbol = self.scene.symbol(self.routine, arg.text)
        if symbol is None:
            if arg.text.startswith("%"):
                raise self.fail(f"{arg.text} is neither declared nor a special register that is known")
            if arg.text in self.scene.source.routines:
                raise self.fail(f"{arg.text} is a function: addresses of functions are not portable", "call it by its name")
            raise self.fail(f"{arg.text} is not declared")
        value = self.op("symbol", type_, attrs=(symbol,))
        return self.op("add", type_, value, self.const(type_, arg.offset)) if arg.offset else value

    def write(self, arg: Operand, type_: RegType) -> int:
        """The register to put a result of ``type_`` into; what remains to be done is done by ``settle``."""
        if isinstance(arg, Name) and arg.text == "_":
            return self.code.temp(type_)
        if not isinstance(arg, Register):
            raise self.fail("a result needs a register")
        target = self.register(arg)
        have = self.code.types[target]
        if have is type_ and self.guard is None:
            return target
        if have.bits != type_.bits or (RegType.PRED in (have, type_) and have is not type_):
            raise self.fail(f"{arg.name} has type .{arg.type}, which cannot take {type_.text}")
        value = self.code.temp(type_)
        self.pending.append((target, value, have))
        return value

    def put(self, arg: Operand, value: int) -> None:
        """Move a value into the register ``arg``."""
        self.emit("mov", [self.write(arg, self.code.types[value])], [value])

    def settle(self) -> None:
        """Bring pending results into their registers, as the guard says."""
        for target, value, type_ in self.pending:
            value = self.convert(value, type_)
            if self.guard is None:
                self.emit("mov", [target], [value])
            else:
                pred, negated = self.guard
                self.emit("sel", [target], [pred, target, value] if negated else [pred, value, target])
        self.pending.clear()

    # -- blocks ----------------------------------------------------------------------------------------------------------------------

    def end(
        self, kind: str, targets: list[int], ins: list[int] | None = None, outs: list[int] | None = None, extra: tuple[int, ...] = ()
    ) -> None:
        """End the block; what follows without a label is not reached."""
        if self.current.end is None:
            self.current.end = End(kind, targets, ins, outs, extra, self.line)
        self.current = self.code.parts[self.code.part()]

    def start(self, number: int) -> None:
        """Go on in block ``number``, which the code before it falls into."""
        if self.current.end is None:
            self.current.end = End("br", [number], ptx=self.line)
        self.current = self.code.parts[number]

    def new_block(self) -> int:
        return self.code.part()

    def target(self, arg: Operand) -> int:
        """The block of a label."""
        if isinstance(arg, Name):
            scope = arg.scope
            while scope != -1:
                at = self.routine.labels.get((scope, arg.text))
                if at is not None:
                    return self.block_at(at)
                scope = self.routine.scopes[scope]
            raise self.fail(f"there is no label {arg.text}")
        raise self.fail("expected a label")

    def block_at(self, index: int) -> int:
        if index not in self.starts:
            self.starts[index] = self.code.part()
        return self.starts[index]

    # -- instructions ----------------------------------------------------------------------------------------------------------------

    def instruction(self, ins: Instruction) -> None:
        known = LOWERINGS.get(ins.op)
        if known is None:
            near = get_close_matches(ins.op, LOWERINGS, 1)
            raise self.fail(f"instruction {ins.text} is not known", f"there is {near[0]}" if near else "")
        for modifier in ins.mods:
            if modifier not in BITS and modifier not in known.modifiers and "::" not in modifier:
                raise self.fail(f"{ins.text}: .{modifier} is not supported")
        if not known.args[0] <= len(ins.args) <= known.args[1]:
            least, most = known.args
            raise self.fail(f"{ins.text} takes {least if least == most else f'{least} to {most}'} operands, not {len(ins.args)}")
        if known.typed:
            self._types_last(ins)
        try:
            if ins.guard is None or ins.op == "bra":
                known.lower(self, ins)
            elif known.effect:
                self._skipping(ins, known)
            else:
                self.guard = (self.read(ins.guard, RegType.PRED), ins.negated)
                known.lower(self, ins)
        except (LookupError, StopIteration, ValueError):  # a table has no entry for this type, or operands are too few or too many
            raise self.fail(f"{ins.text} is not a form that is known") from None
        if self.pending:
            self.settle()
        self.guard = None

    def _types_last(self, ins: Instruction) -> None:
        mods = ins.mods
        if mods and mods[-1] in BITS and (len(mods) == 1 or mods[-2] in BITS or not any(m in BITS for m in mods[:-1])):
            return
        types = [m for m in mods if m in BITS]
        if not types:
            raise self.fail(f"{ins.text} does not say the type")
        ins.mods = (*(m for m in mods if m not in BITS), *types)

    def _skipping(self, ins: Instruction, known: InstructionLowering) -> None:
        assert ins.guard is not None, "only guarded instructions are skipped"
        pred = self.read(ins.guard, RegType.PRED)
        body, after = self.new_block(), self.new_block()
        self.end("cbr", [after, body] if ins.negated else [body, after], ins=[pred])
        self.current = self.code.parts[body]
        known.lower(self, ins)
        self.settle()
        self.start(after)


def lower(scene: Scene, routine: Routine) -> Code:
    """The code of one routine. Raises PtxError."""
    state = RoutineLowering(scene, routine)
    _enter(state)
    indices = set(routine.labels.values())
    code, located = routine.code, scene.source.located
    _find_targets(state, routine)
    for index, ins in enumerate(code):
        if index in indices and index in state.starts:
            state.start(state.starts[index])
            state.carry = None
        state.line, state.source = ins.line, ins.source if located else ins.line
        state.instruction(ins)
    if len(code) in state.starts:
        state.start(state.starts[len(code)])
    if state.current.end is None:
        state.current.end = End("ret", [], ptx=state.line)
    return state.code


def _enter(state: RoutineLowering) -> None:
    """Give the code of a function the registers of its arguments and results."""
    if state.routine.kernel:
        return
    signature = state.scene.signature(state.routine.name)
    for slots, params, registers in (
        (signature.ins, state.routine.params, state.code.ins),
        (signature.outs, state.routine.results, state.code.outs),
    ):
        for slot, param in zip(slots, params, strict=True):
            if slot.type is None:
                continue
            register = state.code.temp(slot.type)
            if param.register is not None:
                state.classes[param.register] = slot.type
                state.registers[param.register] = register
            registers.append(register)


def _find_targets(state: RoutineLowering, routine: Routine) -> None:
    for ins in routine.code:
        state.line = ins.line
        if ins.op == "bra" and ins.args:
            state.target(ins.args[-1])
        elif ins.op == "brx" and len(ins.args) == 2:
            for label in table_of(state, ins.args[1]):
                state.target(label)


def table_of(state: RoutineLowering, arg: Operand) -> list[Operand]:
    """The labels that ``.branchtargets`` lists under a name."""
    if isinstance(arg, Name):
        scope = arg.scope
        while scope != -1:
            found = state.routine.tables.get((scope, arg.text))
            if found is not None:
                return found
            scope = state.routine.scopes[scope]
    raise state.fail("expected the name of a .branchtargets list")


def pair(arg: Operand) -> tuple[Operand, Operand]:
    """The two results of ``d|p``; the second one dropped when there is one."""
    return (arg.first, arg.second) if isinstance(arg, Pair) else (arg, Name("_"))


def element(low: RoutineLowering, type_: str, arg: Operand) -> tuple[RegType, DType]:
    """How a loaded or stored operand is held, and the element in memory."""
    bits = BITS[type_]
    natural = FLOATS.get(type_, INTEGER[bits])
    if type_ == "pred" or type_ not in BITS:
        raise low.fail(f".{type_} cannot be loaded or stored")
    if isinstance(arg, Register):
        have = low.type_of(arg)
        if have is RegType.PRED or have.bits < bits:
            raise low.fail(f"{arg.name} of type .{arg.type} cannot hold .{type_}")
        if have.bits == bits:
            return (have, EXACT[have]) if have in EXACT else (have, (SIGNED if type_[0] == "s" else UNSIGNED)[bits])
        integer = INTEGER[have.bits]
        return integer, (SIGNED if type_[0] == "s" else UNSIGNED)[bits]
    if natural in EXACT:
        return natural, EXACT[natural]
    return natural, (SIGNED if type_[0] == "s" else UNSIGNED)[bits]


def access(low: RoutineLowering, name: str, space: Space, where: tuple[int, int], items: list[int], dtype: DType, flags: int = 0) -> None:
    """Loads or stores of elements side by side, in pieces of at most 16 bytes."""
    base, offset = where
    step = max(1, _BYTES_MAX // dtype.itemsize)
    for first in range(0, len(items), step):
        some = items[first : first + step]
        attrs = (int(space), 0, int(dtype), len(some), offset + first * dtype.itemsize, flags)
        if name == "load":
            low.emit("load", some, [base], attrs)
        else:
            low.emit("store", [], [base, *some], attrs)
