"""Ops in which the lanes of a warp see each other; a gang is a warp here.

A product of matrices is a function for each type of element, which keeps a lane of every operand in a lane of a vector. Elements that other
lanes hold come by constant permutations; each result is a chain of fused multiply-adds in the order of the definition (wis.kernel.matrix).
Two products of which one adds to the other's sums are one call.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from jit.host.emit.code import Code, Lanes
from jit.host.simt.registers import Registers, vector_constant
from wis.kernel.matrix import ELEMENTS, INTEGERS, SIGNED, a_lanes, b_lanes
from wis.kernel.model import WARP, Atomic, Matrix, Op, Shuffle, Vote
from wis.kernel.ops import BY_CODE, Sig

_IOTA: Final = vector_constant("i32", range(WARP))


class Warp:
    """Emits warp ops; ``there``: the lanes that run, as an i32."""

    def __init__(self, code: Code, registers: Registers) -> None:
        self.code, self.regs, self.v, self.one = code, registers, registers.v, registers.one
        self.there = "-1"

    def emit(self, op: Op) -> None:
        WARP_OPS[BY_CODE[op.op].sig](self, op)

    def _bits(self, lanes: str) -> str:
        return self.code.value(f"bitcast <{WARP} x i1> {lanes} to i32")

    def _members(self, r: int) -> tuple[bool, str]:
        """Whether all lanes have one mask, and members: a scalar, or a vector."""
        if self.regs.is_same(r):
            return True, self.one.op("and", "i32", self.regs.scalar(r), self.there)
        return False, self.v.op("and", "i32", self.regs.vector(r), self.v.splat("i32", self.there))

    def _holds(self, r: int) -> str:
        """The running lanes whose predicate holds, as an i32."""
        return self.one.op("and", "i32", self._bits(self.regs.vector(r)), self.there)

    def shfl(self, op: Op) -> None:
        """A constant permutation is one; any other goes through memory."""
        regs, v, code = self.regs, self.v, self.code
        value, kind = regs.vector(op.ins[0]), regs.llvm(op.ins[0])
        b, c, lanes = regs.fact(op.ins[1]).value, regs.fact(op.ins[2]).value, regs.fact(op.ins[1]).lane_values()
        if regs.is_same(op.outs[0]):  # of one lane to all others
            assert b is not None
            regs.put_scalar(op.outs[0], code.value(f"extractelement {v.type(kind)} {value}, i32 {b & 31}"))
            regs.put_scalar(op.outs[1], "true")
            return
        constant = _sources(Shuffle(op.attrs[0]), lanes, c) if lanes is not None and c is not None else None
        if constant is not None:
            source, inside = constant
            order = vector_constant("i32", source)
            moved = code.value(f"shufflevector {v.type(kind)} {value}, {v.type(kind)} poison, <{WARP} x i32> {order}")
            fits = vector_constant("i1", inside)
            if self.there != "-1":
                sources = code.value(f"shufflevector <{WARP} x i1> {self._there()}, <{WARP} x i1> poison, <{WARP} x i32> {order}")
                fits = v.op("and", "i1", fits, sources)
        else:
            index, fits = self._computed(op)
            slot = regs.variable("%shuffle", f"[{WARP} x i64]")
            code.do(f"store {v.type(kind)} {value}, ptr {slot}, align 8")
            pointers = code.value(f"getelementptr {kind}, ptr {slot}, {v.type('i32')} {index}")
            name = f"llvm.masked.gather.{v.suffix(kind)}.v{WARP}p0"
            size = 8 if kind in ("i64", "double") else 4
            args = (v.type("ptr"), pointers), ("i32", str(size)), (v.type("i1"), v.const("i1", 1)), (v.type(kind), "zeroinitializer")
            moved = code.call(v.type(kind), name, *args)
            if self.there != "-1":
                there = self.v.splat("i32", self.there)
                bit = v.op("and", "i32", v.op("lshr", "i32", there, index), v.const("i32", 1))
                fits = v.op("and", "i1", fits, v.compare("icmp ne", "i32", bit, v.const("i32", 0)))
        if self.there == "-1" and constant is not None and all(constant[1]):
            regs.put_vector(op.outs[0], moved)
        else:
            regs.put_vector(op.outs[0], v.select(kind, fits, moved, value))
        regs.put_vector(op.outs[1], fits)

    def _there(self) -> str:
        return self.code.value(f"bitcast i32 {self.there} to <{WARP} x i1>")

    def _computed(self, op: Op) -> tuple[str, str]:
        """Source lanes and whether they are in range, by the arithmetic of shfl.sync."""
        v, regs = self.v, self.regs
        by = v.op("and", "i32", regs.vector(op.ins[1]), v.const("i32", 31))
        c = regs.vector(op.ins[2])
        clamp = v.op("and", "i32", c, v.const("i32", 31))
        segment = v.op("and", "i32", v.op("lshr", "i32", c, v.const("i32", 8)), v.const("i32", 31))
        outside = v.op("xor", "i32", segment, v.const("i32", -1))
        least = v.op("and", "i32", _IOTA, segment)
        most = v.op("or", "i32", least, v.op("and", "i32", clamp, outside))
        mode = Shuffle(op.attrs[0])
        if mode is Shuffle.UP:
            source = v.op("sub", "i32", _IOTA, by)
            inside = v.compare("icmp sge", "i32", source, most)
        else:
            if mode is Shuffle.IDX:
                source = v.op("or", "i32", least, v.op("and", "i32", by, outside))
            else:
                source = v.op("add" if mode is Shuffle.DOWN else "xor", "i32", _IOTA, by)
            inside = v.compare("icmp sle", "i32", source, most)
        index = v.op("and", "i32", v.select("i32", inside, source, _IOTA), v.const("i32", 31))
        return index, inside

    def vote(self, op: Op) -> None:
        same, members = self._members(op.ins[1])
        lanes = self.one if same else self.v
        holds = lanes.op("and", "i32", lanes.splat("i32", self._holds(op.ins[0])), members)
        none = lanes.compare("icmp eq", "i32", holds, lanes.const("i32", 0))
        every = lanes.compare("icmp eq", "i32", holds, members)
        mode = Vote(op.attrs[0])
        if mode is Vote.ANY:
            result = lanes.op("xor", "i1", none, lanes.const("i1", 1))
        else:
            result = every if mode is Vote.ALL else lanes.op("or", "i1", none, every)
        self._put(op.outs[0], same, result)

    def _put(self, r: int, same: bool, value: str) -> None:
        if same:
            self.regs.put_scalar(r, value)
        else:
            self.regs.put_vector(r, value)

    def ballot(self, op: Op) -> None:
        same, members = self._members(op.ins[1])
        lanes = self.one if same else self.v
        self._put(op.outs[0], same, lanes.op("and", "i32", lanes.splat("i32", self._holds(op.ins[0])), members))

    def activemask(self, op: Op) -> None:
        self.regs.put_scalar(op.outs[0], self.there)

    def match_any(self, op: Op) -> None:
        """For each lane the lanes that have its value."""
        v, code, regs = self.v, self.code, self.regs
        kind, value = regs.llvm(op.ins[0]), regs.vector(op.ins[0])
        result = "zeroinitializer"
        for lane in range(WARP):
            one = code.value(f"extractelement {v.type(kind)} {value}, i32 {lane}")
            bits = self._bits(v.compare("icmp eq", kind, value, v.splat(kind, one)))
            result = code.value(f"insertelement {v.type('i32')} {result}, i32 {bits}, i32 {lane}")
        same, members = self._members(op.ins[1])
        regs.put_vector(op.outs[0], v.op("and", "i32", result, v.splat("i32", members) if same else members))

    def match_all(self, op: Op) -> None:
        """The lowest member's value is compared with all."""
        v, code, regs, one = self.v, self.code, self.regs, self.one
        kind, value = regs.llvm(op.ins[0]), regs.vector(op.ins[0])
        same, members = self._members(op.ins[1])
        if same:
            equal = self._equal_to_first(kind, value, members)
            alike = one.compare("icmp eq", "i32", one.op("and", "i32", equal, members), members)
            regs.put_scalar(op.outs[0], one.select("i32", alike, members, "0"))
            regs.put_scalar(op.outs[1], alike)
            return
        equals = "zeroinitializer"
        for lane in range(WARP):
            mine = code.value(f"extractelement {v.type('i32')} {members}, i32 {lane}")
            equals = code.value(f"insertelement {v.type('i32')} {equals}, i32 {self._equal_to_first(kind, value, mine)}, i32 {lane}")
        alikes = v.compare("icmp eq", "i32", v.op("and", "i32", equals, members), members)
        regs.put_vector(op.outs[0], v.select("i32", alikes, members, v.const("i32", 0)))
        regs.put_vector(op.outs[1], alikes)

    def _equal_to_first(self, kind: str, value: str, members: str) -> str:
        code, v = self.code, self.v
        lane = code.value(f"and i32 {code.call('i32', 'llvm.cttz.i32', ('i32', members), ('i1', 'false'))}, 31")
        first = code.value(f"extractelement {v.type(kind)} {value}, i32 {lane}")
        return self._bits(v.compare("icmp eq", kind, value, v.splat(kind, first)))

    def redux(self, op: Op) -> None:
        """All members' values by one reduction where there is one mask; lane by lane elsewhere."""
        v, code, regs = self.v, self.code, self.regs
        function, signed = Atomic(op.attrs[0]), bool(op.attrs[1])
        name, neutral = _FOLD[function]
        if function in (Atomic.MIN, Atomic.MAX):
            name, neutral = f"{'s' if signed else 'u'}{name}", _LIMITS[function, signed]
        value = regs.vector(op.ins[0])
        same, members = self._members(op.ins[1])

        def fold(mask: str) -> str:
            chosen = code.value(f"bitcast i32 {mask} to <{WARP} x i1>")
            picked = v.select("i32", chosen, value, v.const("i32", neutral))
            return code.call("i32", f"llvm.vector.reduce.{name}.v{WARP}i32", (v.type("i32"), picked))

        if same:
            regs.put_scalar(op.outs[0], fold(members))
            return
        result = "zeroinitializer"
        for lane in range(WARP):
            mine = code.value(f"extractelement {v.type('i32')} {members}, i32 {lane}")
            result = code.value(f"insertelement {v.type('i32')} {result}, i32 {fold(mine)}, i32 {lane}")
        regs.put_vector(op.outs[0], result)


_FOLD: Final = {
    Atomic.ADD: ("add", 0),
    Atomic.AND: ("and", -1),
    Atomic.OR: ("or", 0),
    Atomic.XOR: ("xor", 0),
    Atomic.MIN: ("min", 0),
    Atomic.MAX: ("max", 0),
}
_LIMITS: Final = {(Atomic.MIN, True): (1 << 31) - 1, (Atomic.MIN, False): -1, (Atomic.MAX, True): -(1 << 31), (Atomic.MAX, False): 0}


def _sources(mode: Shuffle, lanes: Sequence[int], c: int) -> tuple[list[int], list[int]]:
    """The source of each lane and whether it is in range (1 or 0), for an operand b that is known in all ``lanes`` and a constant c."""
    clamp, segment = c & 31, c >> 8 & 31
    source, inside = [], []
    for lane, by in enumerate(x & 31 for x in lanes):
        least = lane & segment
        most = least | clamp & ~segment
        if mode is Shuffle.UP:
            j = lane - by
            fits = j >= most
        else:
            j = {Shuffle.DOWN: lane + by, Shuffle.BFLY: lane ^ by, Shuffle.IDX: least | by & ~segment & 31}[mode]
            fits = j <= most
        source.append((j if fits else lane) & 31)
        inside.append(int(fits))
    return source, inside


WARP_OPS: Final[dict[Sig, Callable[[Warp, Op], None]]] = {
    Sig.SHFL: Warp.shfl,
    Sig.VOTE: Warp.vote,
    Sig.BALLOT: Warp.ballot,
    Sig.MATCH_ANY: Warp.match_any,
    Sig.MATCH_ALL: Warp.match_all,
    Sig.ACTIVEMASK: Warp.activemask,
    Sig.REDUX: Warp.redux,
}


_PREFIX: Final = "matrix."
_CALL: Final = "x86_regcallcc" if platform.machine() in ("x86_64", "AMD64") else "fastcc"
"""How helpers are called: as many vectors as there are registers stay in them."""
_STEPS_MAX: Final = 2
"""Ops of one call. More make it no faster: the operands no longer fit into registers."""


def _continues(first: Op, second: Op, reads: Mapping[int, int]) -> bool:
    """Whether ``second`` adds to the sums of ``first``, which have no other reader. ``reads``: how often each register is read."""
    if BY_CODE[first.op].sig is not Sig.MMA or (first.op, first.attrs) != (second.op, second.attrs):
        return False
    return second.ins[-len(first.outs) :] == first.outs and all(reads[r] == 1 for r in first.outs)


def chains(ops: Sequence[Op], reads: Mapping[int, int]) -> Iterator[Sequence[Op]]:
    """The ops in order, products that continue each other together."""
    at = 0
    while at < len(ops):
        n = 1
        while n < _STEPS_MAX and at + n < len(ops) and _continues(ops[at + n - 1], ops[at + n], reads):
            n += 1
        yield ops[at : at + n]
        at += n


def matrix_product(code: Code, registers: Registers, chain: Sequence[Op], there: str) -> str:
    """Emits products that continue each other; returns the name of the helper they need. ``there``: the lanes that run, as an i32."""
    v, first, last = registers.v, chain[0], chain[-1]
    n_sums = len(first.outs)
    mask = "" if there == "-1" else code.value(f"bitcast i32 {there} to {v.type('i1')}")
    operands = []
    for r in (*first.ins[-n_sums:], *[r for op in chain for r in op.ins[:-n_sums]]):
        kind, value = registers.llvm(r), registers.vector(r)
        if mask:
            value = code.value(f"select {v.type('i1')} {mask}, {v.type(kind)} {value}, {v.type(kind)} zeroinitializer")
        operands.append(f"{v.type(kind)} {value}")
    form = None if BY_CODE[first.op].sig is Sig.MMA_F64 else Matrix(first.attrs[0])
    name = f"{_PREFIX}{'f64' if form is None else form.name.lower()}.{len(chain)}"
    kind = registers.llvm(last.outs[0])
    if kind != "i32":  # the helper calls it
        function = f"llvm.fma.{v.suffix(kind)}"
        code.declared[function] = f"declare {v.type(kind)} @{function}({', '.join([v.type(kind)] * 3)})"
    several = _struct(v.type(kind), n_sums)
    sums = code.value(f"call {_CALL} {several} @{name}({', '.join(operands)})")
    for place, r in enumerate(last.outs):
        registers.put_vector(r, code.value(f"extractvalue {several} {sums}, {place}"))
    return name


def _struct(kind: str, n: int) -> str:
    """The type of ``n`` values that a helper returns."""
    return f"{{{', '.join([kind] * n)}}}"


def matrix_helper(name: str) -> str:
    """The helper's definition."""
    text, steps = name.removeprefix(_PREFIX).split(".")
    return _Product(None if text == "f64" else Matrix[text.upper()]).text(name, int(steps))


class _Product:
    """The text of products of one kind. ``form`` None: f64."""

    def __init__(self, form: Matrix | None) -> None:
        self.form = form
        self.code = Code()
        self.v = Lanes(self.code, WARP)
        self.kind = "double" if form is None else "i32" if form in INTEGERS else "float"
        self.rows = 1 if form is None else 2

    def text(self, name: str, steps: int) -> str:
        """A function of the sums and, for every step, the operands of A and B; it returns the sums."""
        v, n_sums = self.v, 2 * self.rows
        sum_kind, word_kind = v.type(self.kind), v.type("double" if self.form is None else "i32")
        sums = [f"%sum{place}" for place in range(n_sums)]
        words = [[f"%step{step}.{place}" for place in range(self.rows + 1)] for step in range(steps)]
        takes = ", ".join([f"{sum_kind} {x}" for x in sums] + [f"{word_kind} {x}" for step in words for x in step])
        for step in words:
            self._add(sums, step)
        several, result = _struct(sum_kind, n_sums), "poison"
        for place, value in enumerate(sums):
            result = self.code.value(f"insertvalue {several} {result}, {sum_kind} {value}, {place}")
        body = "\n".join(self.code.lines)
        return f"define internal {_CALL} {several} @{name}({takes}) noinline {{\nentry:\n{body}\n  ret {several} {result}\n}}\n"

    def _add(self, sums: list[str], words: Sequence[str]) -> None:
        """The products of one step, added to ``sums``."""
        v = self.v
        a_signed, b_signed = (False, False) if self.form is None else SIGNED.get(self.form, (False, False))
        lefts = [self._elements(word, a_signed) for word in words[:-1]]
        right = self._elements(words[-1], b_signed)
        for t in range(4):
            for at in range(len(right)):
                xs = [self._moved(left[at], a_lanes(t)) for left in lefts]
                ys = [self._moved(right[at], b_lanes(t, column)) for column in range(2)]
                for place, (x, y) in enumerate((x, y) for x in xs for y in ys):
                    if self.kind == "i32":
                        sums[place] = v.op("add", "i32", sums[place], v.op("mul", "i32", x, y))
                    else:
                        sums[place] = v.fma(self.kind, x, y, sums[place])

    def _moved(self, value: str, lanes: list[int]) -> str:
        kind = self.v.type(self.kind)
        return self.code.value(f"shufflevector {kind} {value}, {kind} poison, <{WARP} x i32> {vector_constant('i32', lanes)}")

    def _elements(self, word: str, signed: bool) -> list[str]:
        v, form = self.v, self.form
        if form is None:
            return [word]
        if form in INTEGERS:
            shift = "ashr" if signed else "lshr"
            tops = [v.op("shl", "i32", word, v.const("i32", 24 - 8 * at)) for at in range(ELEMENTS[form])]
            return [v.op(shift, "i32", top, v.const("i32", 24)) for top in tops]
        if form is Matrix.TF32:
            return [v.convert("bitcast", "i32", v.op("and", "i32", word, v.const("i32", -0x2000)), "float")]
        if form is Matrix.BF16:
            bits = v.op("shl", "i32", word, v.const("i32", 16)), v.op("and", "i32", word, v.const("i32", -0x10000))
            return [v.convert("bitcast", "i32", x, "float") for x in bits]
        words = word, v.op("lshr", "i32", word, v.const("i32", 16))
        halves = [v.convert("bitcast", "i16", v.convert("trunc", "i32", x, "i16"), "half") for x in words]
        return [v.convert("fpext", "half", x, "float") for x in halves]
