"""Assembles lowered code to kernels of the kernel tier: parameters, arguments, constants, numbered registers and blocks, source lines."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from wis.dtypes import DType
from wis.frontends.ptx.classes import BITS, INTEGER
from wis.frontends.ptx.code import Code, End, Node
from wis.frontends.ptx.graph import compact_order
from wis.frontends.ptx.provenance import AddressRoot, Provenance
from wis.frontends.ptx.scene import Scene
from wis.frontends.ptx.syntax import Param, PtxError
from wis.kernel.limits import KERNEL_LIMITS
from wis.kernel.model import (
    KERNEL_VERSION,
    Access,
    Bar,
    Block,
    Br,
    BufferParam,
    Call,
    Cbr,
    Function,
    Kernel,
    Math,
    Op,
    RegType,
    Ret,
    ScalarParam,
    Shared,
    Space,
    Switch,
    Sync,
    Terminator,
)
from wis.kernel.module import ArgKind, Argument, Entry, Field, Variable
from wis.kernel.ops import BY_NAME

_DECLARED: Final = {
    **{f"{kind}{bits}": DType[f"{'I' if kind == 's' else 'U'}{bits}"] for kind in "bus" for bits in (8, 16, 32, 64)},
    "f16": DType.F16, "bf16": DType.BF16, "f32": DType.F32, "f64": DType.F64, "f16x2": DType.U32, "bf16x2": DType.U32, "pred": DType.U8,
}  # fmt: skip
_CODES: Final = {name: op.code for name, op in BY_NAME.items()}
_HELD: Final = {DType.F16: RegType.F16, DType.BF16: RegType.BF16, DType.F32: RegType.F32, DType.F64: RegType.F64}


def _held(dtype: int) -> RegType:
    kind = DType(dtype)
    return _HELD.get(kind) or INTEGER[kind.itemsize * 8]


class Variables:
    """The variables of the module, numbered as kernels name them."""

    def __init__(self) -> None:
        self.items: list[Variable] = []
        self._by_name: dict[str, int] = {}

    def number(self, variable: Variable) -> int:
        if variable.name not in self._by_name:
            self._by_name[variable.name] = len(self.items)
            self.items.append(variable)
        return self._by_name[variable.name]


def assemble(scene: Scene, codes: list[Code], places: Provenance, variables: Variables, math: Math, file: str) -> Entry:
    """The entry of one kernel. ``codes``: the kernel's, then its functions'."""
    made = _Parameters(scene, codes[0], places, variables)
    built = [_Body(code, made.memory_params).built() for code in codes]
    lines = [line for body in built for line in body[2]]
    kernel = Kernel(
        KERNEL_VERSION,
        _name(scene.kernel.name),
        math=int(math),
        threads_max=min(scene.kernel.threads or KERNEL_LIMITS.threads_max, KERNEL_LIMITS.threads_max),
        params=tuple(made.params),
        shared=tuple(Shared(int(DType.U8), n) for n in places.arrays),
        regs=built[0][0],
        blocks=built[0][1],
        dynamic=int(places.dynamic),
        local_bytes=places.local_bytes,
        constants=places.constants,
        functions=tuple(_function(code, body) for code, body in zip(codes[1:], built[1:], strict=True)),
        file=file,
        lines=tuple(lines) if any(lines) else (),
    )
    return Entry(scene.kernel.name, kernel, tuple(made.arguments))


_Built = tuple[tuple[int, ...], tuple[Block, ...], list[int], dict[int, int]]


def _function(code: Code, body: _Built) -> Function:
    regs, blocks, _, numbers = body
    return Function(_name(code.name), tuple(numbers[r] for r in code.ins), tuple(numbers[r] for r in code.outs), regs, blocks)


def _name(name: str) -> str:
    """A name the kernel tier takes; the entry keeps the one of the source."""
    plain = re.sub(r"\W", "_", name, flags=re.ASCII)[: KERNEL_LIMITS.name_max]
    return plain if plain.isidentifier() else f"_{plain}"[: KERNEL_LIMITS.name_max]


# -- parameters ------------------------------------------------------------------------------------------------------------------------


class _Parameters:
    """Parameters and arguments; rewrites the code's ``argument`` ops to ``param``. ``memory_params``: parameter of each global memory."""

    def __init__(self, scene: Scene, code: Code, places: Provenance, variables: Variables) -> None:
        self.scene, self.code, self.places = scene, code, places
        self.params: list[BufferParam | ScalarParam] = []
        self.arguments: list[Argument] = []
        self.memory_params: dict[int, int] = {}
        loads: dict[int, list[Node]] = {}
        for node in code.nodes():
            if node.name == "argument":
                loads.setdefault(node.attrs[0], []).append(node)
        memories = self.memories = {memory.argument: i for i, memory in enumerate(places.memories) if memory.argument >= 0}
        replaced: dict[int, list[Node]] = {}
        for number, param in enumerate(scene.kernel.params):
            if number in memories:
                self._buffer(memories[number])
                self.arguments.append(Argument(int(ArgKind.BUFFER), param.name, len(self.params) - 1))
            else:
                self._scalar(param, number, loads.get(number, []), replaced)
        if replaced:
            for part in code.parts.values():
                part.nodes = [made for node in part.nodes for made in replaced.get(id(node), (node,))]
        for i, memory in enumerate(places.memories):
            if memory.space is Space.GLOBAL and memory.symbol >= 0:
                self._variable(i, memory, variables)

    def _buffer(self, index: int) -> None:
        memory, places = self.places.memories[index], self.places
        constant = memory.symbol >= 0 and self.scene.symbols[memory.symbol].space == "const"
        written = memory.written or (places.arena_writes and not constant)
        access = (Access.READ if memory.read or places.arena_reads else 0) | (Access.WRITE if written else 0)
        common = max(memory.elements, key=lambda dtype: memory.elements[dtype], default=int(DType.U8))
        self.memory_params[index] = len(self.params)
        self.params.append(BufferParam(common, int(access or Access.READ)))

    def _variable(self, index: int, memory: AddressRoot, variables: Variables) -> None:
        symbol = self.scene.symbols[memory.symbol]
        self._buffer(index)
        variable = Variable(symbol.name, symbol.nbytes, int(symbol.space == "const"), symbol.data)
        number = variables.number(variable)
        self.arguments.append(Argument(int(ArgKind.VARIABLE), symbol.name, len(self.params) - 1, variable=number))

    def _scalar(self, param: Param, number: int, loads: list[Node], replaced: dict[int, list[Node]]) -> None:
        size = param.nbytes if param.nbytes >= 0 else BITS[param.type] // 8
        for node in loads:
            if node.attrs[1] < 0 or node.attrs[1] + DType(node.attrs[2]).itemsize > size:
                raise PtxError(node.ptx, f"{param.name} has {size} bytes, which a load exceeds")
        if param.nbytes >= 0:
            self._struct(param, number, loads)
            return
        declared = _DECLARED[param.type]
        if not loads:
            self.arguments.append(Argument(int(ArgKind.SCALAR), param.name, -1, int(declared)))
            return
        wholes = [node for node in loads if DType(node.attrs[2]).itemsize == size]
        kind = _held(declared) if declared in _HELD or not wholes else _held(wholes[0].attrs[2])
        place = len(self.params)
        self.params.append(ScalarParam(int(kind)))
        self.arguments.append(Argument(int(ArgKind.SCALAR), param.name, place, int(declared)))
        for node in loads:
            replaced[id(node)] = self._param(node, place, kind, declared)

    def _param(self, node: Node, number: int, kind: RegType, declared: DType) -> list[Node]:
        out, dtype, offset = node.outs[0], DType(node.attrs[2]), node.attrs[1]
        node.name, node.attrs = "param", (number,)
        if dtype.itemsize != declared.itemsize:
            return self._piece(node, out, kind, dtype, offset)
        if declared.itemsize == 1 and dtype is not declared:  # a byte read with the other sign
            raw = self.code.temp(kind)
            node.outs = [raw]
            if dtype is DType.U8:
                return [node, Node("and", [out], [raw, self.code.const(kind, 255)], (), node.line, node.ptx)]
            up, eight = self.code.temp(kind), self.code.const(kind, 8)
            return [
                node, Node("shl", [up], [raw, eight], (), node.line, node.ptx), Node("shr_s", [out], [up, eight], (), node.line, node.ptx)
            ]  # fmt: skip
        if self.code.types[out] is not kind:
            raw = self.code.temp(kind)
            node.outs = [raw]
            return [node, Node("reinterpret", [out], [raw], (), node.line, node.ptx)]
        return [node]

    def _piece(self, node: Node, out: int, kind: RegType, dtype: DType, offset: int) -> list[Node]:
        """Some bytes of a number."""
        code, whole = self.code, INTEGER[kind.bits]
        made = [node]
        at = node.outs[0] = code.temp(kind)

        def step(name: str, type_: RegType, *ins: int) -> int:
            result = code.temp(type_)
            made.append(Node(name, [result], list(ins), (), node.line, node.ptx))
            return result

        if kind is not whole:
            at = step("reinterpret", whole, at)
        if offset:
            at = step("shr_u", whole, at, code.const(whole, 8 * offset))
        target = code.types[out]
        part = INTEGER[target.bits]
        if part is not whole:
            at = step("narrow", part, at)
        if dtype.itemsize == 1:
            at = step("and", part, at, code.const(part, 255))
            if dtype is DType.I8:
                at = step("shr_s", part, step("shl", part, at, code.const(part, part.bits - 8)), code.const(part, part.bits - 8))
        made.append(Node("mov" if target is part else "reinterpret", [out], [at], (), node.line, node.ptx))
        return made

    def _struct(self, param: Param, number: int, loads: list[Node]) -> None:
        made: list[Field] = []
        for (argument, offset), field in self.places.fields.items():
            if argument == number and field in self.memories:
                self._buffer(self.memories[field])
                made.append(Field(offset, int(DType.U64), len(self.params) - 1))
        fields: dict[tuple[int, int], int] = {}
        for node in loads:
            _, offset, dtype = node.attrs
            if (offset, dtype) not in fields:
                fields[offset, dtype] = len(self.params)
                self.params.append(ScalarParam(int(_held(dtype))))
            node.name, node.attrs = "param", (fields[offset, dtype],)
        made += [Field(offset, dtype, place) for (offset, dtype), place in fields.items()]
        made.sort(key=lambda found: (found.offset, found.dtype))
        self.arguments.append(Argument(int(ArgKind.STRUCT), param.name, nbytes=param.nbytes, fields=tuple(made)))


# -- code ------------------------------------------------------------------------------------------------------------------------------


class _Body:
    """Registers and blocks by number. Constants become ops: where the one block that reads them is, or at the start."""

    def __init__(self, code: Code, memory_params: dict[int, int]) -> None:
        self.code, self.memory_params = code, memory_params
        self.order = compact_order(code)
        self.numbers: dict[int, int] = {}
        self.regs: list[int] = []

    def register(self, register: int) -> int:
        found = self.numbers.get(register)
        if found is None:
            found = self.numbers[register] = len(self.regs)
            self.regs.append(int(self.code.types[register]))
        return found

    def built(self) -> _Built:
        code = self.code
        for register in (*code.ins, *code.outs):
            self.register(register)
        homes = self._homes()
        position = {number: i for i, number in enumerate(self.order)}
        blocks, lines = [], []
        for number in self.order:
            part = code.parts[number]
            ops: list[Op] = []
            for constant in homes.get(number, ()):
                ops.append(Op(_CODES["const"], (self.register(constant),), (), (code.constants[constant],)))
                lines.append(0)
            for node in part.nodes:
                ops.append(self._op(node))
                lines.append(max(0, node.line))
            assert part.end is not None, "blocks end"
            blocks.append(Block(tuple(ops), self._end(part.end, position)))
        return tuple(self.regs), tuple(blocks), lines, self.numbers

    def _homes(self) -> dict[int, list[int]]:
        """For each block the constants that are made at its start."""
        code = self.code
        looping = _in_loops(code, self.order)
        where: dict[int, int] = {}
        for number in self.order:
            part = code.parts[number]
            reads: list[int] = []
            for node in part.nodes:
                if node.name != "mov":  # a mov of a constant is a const op itself
                    reads += node.ins
            if part.end is not None:
                reads += part.end.ins
                if part.end.kind == "ret":
                    reads += code.outs
            for register in reads:
                if register in code.constants:
                    known = where.get(register)
                    where[register] = number if known in (None, number) and number not in looping else code.entry
        homes: dict[int, list[int]] = {}
        for register, number in where.items():
            homes.setdefault(number, []).append(register)
        return homes

    def _op(self, node: Node) -> Op:
        name, attrs = node.name, node.attrs
        if name == "mov" and node.ins[0] in self.code.constants:
            return Op(_CODES["const"], (self.register(node.outs[0]),), (), (self.code.constants[node.ins[0]],))
        if attrs and attrs[0] == Space.GLOBAL and name in ("load", "store", "atom", "red", "addr"):
            attrs = (attrs[0], self.memory_params[attrs[1]], *attrs[2:])
        register = self.register
        return Op(_CODES[name], tuple([register(r) for r in node.outs]), tuple([register(r) for r in node.ins]), attrs)

    def _end(self, end: End, position: dict[int, int]) -> Terminator:
        targets = [position[target] for target in end.targets]
        ins = tuple(self.register(r) for r in end.ins)
        if end.kind == "br":
            return Br(targets[0])
        if end.kind == "cbr":
            return Cbr(ins[0], *targets)
        if end.kind == "ret":
            return Ret()
        if end.kind == "sync":
            barrier, arrive = end.extra
            if barrier == 0 and not ins and not arrive:
                return Bar(targets[0])
            return Sync(targets[0], barrier, ins[0] if ins else -1, arrive)
        if end.kind == "switch":
            return Switch(ins[0], tuple(targets), targets[-1])
        return Call(end.extra[0], ins, tuple(self.register(r) for r in end.outs), targets[0])


def _in_loops(code: Code, order: Sequence[int]) -> set[int]:
    """Blocks that lie between the two ends of an edge that goes back in the order, where loops are side by side."""
    position = {number: i for i, number in enumerate(order)}
    found: set[int] = set()
    for i, number in enumerate(order):
        end = code.parts[number].end
        for target in end.targets if end is not None else ():
            if position[target] <= i:
                found.update(order[position[target] : i + 1])
    return found
