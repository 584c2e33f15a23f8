"""Optimises lowered code: copy propagation, constant folding, displacements, dead ops and blocks.

Every op that stays is counted when it runs, so this is what makes an imported kernel cost what its PTX says. Nothing here changes a result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from wis.frontends.ptx.code import Code, End, Node, Part, signed
from wis.kernel.model import RegType

_I32, _I64 = RegType.I32, RegType.I64
_EFFECTS: Final = frozenset(
    {
        "load",
        "store",
        "atom",
        "red",
        "fence",
        "raise",
        "warpsync",
        "shfl",
        "vote",
        "ballot",
        "match_any",
        "match_all",
        "activemask",
        "redux",
        "mma",
        "mma_f64",
    }
)
_ACCESSES: Final = frozenset({"load", "store", "atom", "red"})
_DISPLACEMENT: Final = 4  # its place in the attributes


def define_everything(code: Code) -> None:
    """Give a zero to registers that some path reads before it writes them: PTX leaves open what they hold."""
    missing = _live_at_entry(code)
    missing &= ~_bits(code.ins)
    if missing:
        # In a block of its own: the first block may be the head of a loop.
        first = code.part()
        code.parts[first].nodes = [
            Node("mov", [r], [code.const(code.types[r], 0)], (), 0, 0) for r in range(missing.bit_length()) if missing >> r & 1
        ]
        code.parts[first].end = End("br", [code.entry])
        code.entry = first


def _bits(registers: list[int]) -> int:
    result = 0
    for register in registers:
        result |= 1 << register
    return result


def _live_at_entry(code: Code) -> int:
    """Registers, as a set of bits, whose value before the first block may be read."""
    constants = _bits(list(code.constants))
    uses: dict[int, int] = {}
    kills: dict[int, int] = {}
    for number, part in code.parts.items():
        used = killed = 0
        for node in part.nodes:
            for register in node.ins:
                if not killed >> register & 1:
                    used |= 1 << register
            for register in node.outs:
                killed |= 1 << register
        end = part.end
        if end is not None:
            for register in [*end.ins, *(code.outs if end.kind == "ret" else ())]:
                if not killed >> register & 1:
                    used |= 1 << register
            for register in end.outs:
                killed |= 1 << register
        uses[number], kills[number] = used & ~constants, killed
    live = dict(uses)
    changed = True
    while changed:
        changed = False
        for number, part in reversed(code.parts.items()):
            after = 0
            if part.end is not None:
                for target in part.end.targets:
                    after |= live[target]
            new = uses[number] | (after & ~kills[number])
            if new != live[number]:
                live[number] = new
                changed = True
    return live[code.entry]


def tidy(code: Code, order: list[int]) -> None:
    """Simplify in place. ``order``: the blocks that can be reached, in reverse postorder."""
    state = _Tidy(code, order)
    state.forward()
    state.displace()
    state.widen()
    state.sweep()
    state.coalesce()


class _Tidy:
    def __init__(self, code: Code, order: list[int]) -> None:
        self.code, self.order = code, order
        self.parts: list[Part] = [code.parts[number] for number in order]
        self.definitions: Counter[int] = Counter(code.ins)
        for part in self.parts:
            for node in part.nodes:
                self.definitions.update(node.outs)
            if part.end is not None:
                self.definitions.update(part.end.outs)
        self.by: dict[int, Node] = {}  # what makes a register that is written once
        self.alias: dict[int, int] = {}

    def once(self, register: int) -> bool:
        """Whether a register has one value wherever it is read."""
        return register in self.code.constants or self.definitions[register] == 1

    # -- copies and constants --------------------------------------------------------------------------------------------------------

    def forward(self) -> None:
        alias, definitions = self.alias, self.definitions
        for part in self.parts:
            for node in part.nodes:
                ins = node.ins
                for i, register in enumerate(ins):
                    if register in alias:
                        ins[i] = alias[register]
                if len(node.outs) != 1:
                    continue
                out = node.outs[0]
                same = self._simplified(node)
                if same is None:
                    if definitions[out] == 1:
                        self.by[out] = node
                elif definitions[out] == 1 and self.once(same):
                    alias[out] = same
                elif node.name != "mov":
                    node.name, node.ins, node.attrs = "mov", [same], ()
            end = part.end
            if end is not None:
                end.ins = [alias.get(register, register) for register in end.ins]
        self.code.outs = [alias.get(register, register) for register in self.code.outs]

    def _simplified(self, node: Node) -> int | None:
        """A register that already holds what the node makes."""
        name = node.name
        if name == "mov":
            return node.ins[0]
        rule = _RULES.get(name)
        return None if rule is None else rule(self, node)

    def constant(self, register: int) -> int | None:
        return self.code.constants.get(register)

    # -- addresses -------------------------------------------------------------------------------------------------------------------

    def displace(self) -> None:
        """Constant parts of addresses go into the displacement of the access."""
        for part in self.parts:
            for node in part.nodes:
                if node.name not in _ACCESSES:
                    continue
                base, moved = self._base(node.ins[0])
                if base != node.ins[0]:
                    node.ins[0] = base
                    node.attrs = (*node.attrs[:_DISPLACEMENT], node.attrs[_DISPLACEMENT] + moved, *node.attrs[_DISPLACEMENT + 1 :])

    def _base(self, register: int) -> tuple[int, int]:
        """The register that ``register`` is a constant more than."""
        moved = 0
        node = self.by.get(register)
        while node is not None and node.name == "add":
            a, b = node.ins
            step = self.constant(b)
            if step is None:
                a, step = b, self.constant(a)
            if step is None or not self.once(a):
                break
            register, moved = a, moved + step
            node = self.by.get(register)
        whole = self.constant(register)
        if whole:
            return self.code.const(self.code.types[register], 0), moved + whole
        return register, moved

    def widen(self) -> None:
        """A 32-bit address with something added wraps at 32 bits in PTX but not in an access: where the sum could differ, which takes an
        address below its variable and a displacement above 0, the address is sign-extended first."""
        wide: dict[int, int] = {}  # of bases with one value, which are extended where they are made
        for part in self.parts:
            done: list[Node] = []
            here: dict[int, int] = {}
            for node in part.nodes:
                if node.name in _ACCESSES and node.attrs[_DISPLACEMENT] > 0 and self.code.types[node.ins[0]] is _I32:
                    node.ins[0] = self._wide(node, wide, here, done)
                for register in node.outs:
                    here.pop(register, None)
                done.append(node)
            part.nodes = done
        if wide:
            self._insert(wide)

    def _wide(self, node: Node, wide: dict[int, int], here: dict[int, int], done: list[Node]) -> int:
        base = node.ins[0]
        constant = self.constant(base)
        if constant is not None:
            return self.code.const(_I64, constant)
        known = wide if base in self.by else here
        if base not in known:
            known[base] = self.code.temp(_I64)
            self.definitions[known[base]] = 1
            if known is here:
                done.append(Node("sext", [known[base]], [base], (), node.line, node.ptx))
        return known[base]

    def _insert(self, wide: dict[int, int]) -> None:
        for part in self.parts:
            done: list[Node] = []
            for node in part.nodes:
                done.append(node)
                done += [Node("sext", [wide[r]], [r], (), node.line, node.ptx) for r in node.outs if r in wide]
            part.nodes = done

    # -- unread results --------------------------------------------------------------------------------------------------------------

    def sweep(self) -> None:
        """Drop ops whose results are not read."""
        uses: Counter[int] = Counter(self.code.outs)
        makers: dict[int, list[Node]] = {}
        for part in self.parts:
            for node in part.nodes:
                uses.update(node.ins)
                for register in node.outs:
                    makers.setdefault(register, []).append(node)
            if part.end is not None:
                uses.update(part.end.ins)
        dead: set[int] = set()
        todo = [node for nodes in makers.values() for node in nodes]
        while todo:
            node = todo.pop()
            if id(node) in dead or (node.name in _EFFECTS and not self._droppable(node)) or any(uses[r] for r in node.outs):
                continue
            dead.add(id(node))
            for register in node.ins:
                uses[register] -= 1
                if not uses[register]:
                    todo += makers.get(register, ())
        if dead:
            for part in self.parts:
                part.nodes = [node for node in part.nodes if id(node) not in dead]
        self.uses = uses

    @staticmethod
    def _droppable(node: Node) -> bool:
        return node.name == "activemask"

    def coalesce(self) -> None:
        """``t = op; d = t`` becomes ``d = op`` when t is read nowhere else and d not in between."""
        for part in self.parts:
            where: dict[int, int] = {}
            dropped: set[int] = set()
            for i, node in enumerate(part.nodes):
                if node.name == "mov" and len(node.outs) == 1:
                    at = where.get(node.ins[0])
                    if at is not None and self._can_move(part, at, i):
                        maker = part.nodes[at]
                        maker.outs = [node.outs[0] if r == node.ins[0] else r for r in maker.outs]
                        dropped.add(i)
                        where[node.outs[0]] = at
                        continue
                for register in node.outs:
                    where[register] = i
            if dropped:
                part.nodes = [node for i, node in enumerate(part.nodes) if i not in dropped]

    def _can_move(self, part: Part, at: int, to: int) -> bool:
        source, target = part.nodes[to].ins[0], part.nodes[to].outs[0]
        if self.definitions[source] != 1 or self.uses[source] != 1 or source in self.code.constants or source in self.code.outs:
            return False
        if target in part.nodes[at].outs:
            return False
        return all(target not in node.ins and target not in node.outs for node in part.nodes[at + 1 : to])


# -- rules: the register a node's result is equal to -----------------------------------------------------------------------------------

_Rule = Callable[[_Tidy, Node], "int | None"]


def _fold2(compute: Callable[[int, int], int], neutral: int | None, *, either: bool) -> _Rule:
    def rule(state: _Tidy, node: Node) -> int | None:
        constants = state.code.constants
        a, b = node.ins
        if b in constants:
            if a in constants:
                type_ = state.code.types[node.outs[0]]
                if type_ in _INTEGERS:
                    return state.code.const(type_, compute(constants[a], constants[b]))
                return None
            if constants[b] == neutral and state.code.types[a] in _INTEGERS:
                return a
        elif either and a in constants and constants[a] == neutral and state.code.types[b] in _INTEGERS:
            return b
        return None

    return rule


_INTEGERS: Final = (RegType.I16, RegType.I32, RegType.I64)


def _add(state: _Tidy, node: Node) -> int | None:
    """x + 0 is x; (x + c) + d is x + (c + d)."""
    found = _plain_add(state, node)
    if found is not None:
        return found
    constants = state.code.constants
    a, b = node.ins
    if a in constants:
        a, b = b, a
    if b not in constants or state.code.types[b] not in _INTEGERS:
        return None
    inner = state.by.get(a)
    if inner is not None and inner.name == "add" and inner.ins[1] in constants and state.once(inner.ins[0]):
        type_ = state.code.types[b]
        total = constants[b] + constants[inner.ins[1]]
        if signed(total, type_.bits) == 0:
            return inner.ins[0]
        node.ins = [inner.ins[0], state.code.const(type_, total)]
    else:
        node.ins = [a, b]
    return None


_plain_add: Final = _fold2(lambda a, b: a + b, 0, either=True)


def _shift(state: _Tidy, node: Node) -> int | None:
    constants = state.code.constants
    a, b = node.ins
    if b not in constants:
        return None
    if constants[b] == 0:
        return a
    if a not in constants:
        return None
    type_ = state.code.types[a]
    amount = constants[b] & (1 << type_.bits) - 1
    if node.name == "shl":
        return state.code.const(type_, constants[a] << amount if amount < type_.bits else 0)
    whole = constants[a] if node.name == "shr_s" else constants[a] & (1 << type_.bits) - 1
    return state.code.const(type_, whole >> min(amount, type_.bits))


def _extension(state: _Tidy, node: Node) -> int | None:
    value = state.code.constants.get(node.ins[0])
    if value is None:
        return None
    have, to = state.code.types[node.ins[0]], state.code.types[node.outs[0]]
    return state.code.const(to, value & (1 << have.bits) - 1 if node.name == "zext" else value)


def _minimum(state: _Tidy, node: Node) -> int | None:
    a, b = (state.code.constants.get(register) for register in node.ins)
    if a is None or b is None:
        return None
    type_ = state.code.types[node.ins[0]]
    mask = (1 << type_.bits) - 1
    return state.code.const(type_, min(a & mask, b & mask))


def _reinterpret(state: _Tidy, node: Node) -> int | None:
    """Back to the type it came from; constants by their bits."""
    source = node.ins[0]
    to = state.code.types[node.outs[0]]
    if source in state.code.constants:
        return state.code.const(to, state.code.constants[source])
    maker = state.by.get(source)
    if maker is not None and maker.name == "reinterpret" and state.code.types[maker.ins[0]] is to:
        return maker.ins[0]
    return None


def _choice(state: _Tidy, node: Node) -> int | None:
    if node.ins[1] == node.ins[2]:
        return node.ins[1]
    known = state.code.constants.get(node.ins[0])
    return None if known is None else node.ins[1 if known else 2]


def _predicates(state: _Tidy, node: Node) -> int | None:
    """``xor p, false`` and the like, which the compiler writes for negations."""
    constants = state.code.constants
    a, b = node.ins
    if a in constants:
        a, b = b, a
    if b not in constants or state.code.types[a] is not RegType.PRED:
        return _bitwise[node.name](state, node) if state.code.types[node.ins[0]] in _INTEGERS else None
    value = constants[b]
    if node.name == "and":
        return a if value else b
    if node.name == "or":
        return b if value else a
    if not value:
        return a
    node.name, node.ins = "not", [a]
    return _negation(state, node)


def _negation(state: _Tidy, node: Node) -> int | None:
    """not of not; not of an integer comparison is the opposite comparison."""
    source = node.ins[0]
    if source in state.code.constants:
        bits = state.code.constants[source]
        return state.code.const(state.code.types[source], ~bits)
    maker = state.by.get(source)
    if maker is None:
        return None
    if maker.name == "not":
        return maker.ins[0]
    opposite = _OPPOSITE.get(maker.name)
    if opposite is not None and all(state.once(r) for r in maker.ins) and _comparable(state, maker):
        name, swap = opposite
        node.name, node.ins = name, [maker.ins[1], maker.ins[0]] if swap else list(maker.ins)
    return None


def _comparable(state: _Tidy, maker: Node) -> bool:
    """Orders of floats have no opposite, because of NaN; equality has."""
    return maker.name not in ("lt", "le")


_OPPOSITE: Final = {
    "eq": ("ne", False), "ne": ("eq", False), "lt_s": ("le_s", True), "le_s": ("lt_s", True), "lt_u": ("le_u", True),
    "le_u": ("lt_u", True),
}  # fmt: skip
_bitwise: Final = {
    "and": _fold2(lambda a, b: a & b, -1, either=True),
    "or": _fold2(lambda a, b: a | b, 0, either=True),
    "xor": _fold2(lambda a, b: a ^ b, 0, either=True),
}
_RULES: Final[dict[str, _Rule]] = {
    "add": _add,
    "sub": _fold2(lambda a, b: a - b, 0, either=False),
    "mul": _fold2(lambda a, b: a * b, 1, either=True),
    "shl": _shift,
    "shr_s": _shift,
    "shr_u": _shift,
    "sext": _extension,
    "zext": _extension,
    "narrow": _extension,
    "min_u": _minimum,
    "reinterpret": _reinterpret,
    "sel": _choice,
    "and": _predicates,
    "or": _predicates,
    "xor": _predicates,
    "not": _negation,
}
