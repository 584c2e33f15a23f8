"""Value analysis of integer registers at every point of a kernel: bounds, trailing zero bits, and an affine form in the thread's numbers.

A forward analysis to a fixed point over the signed readings of i16, i32 and i64 registers. Everything said holds for every thread of every
launch that keeps the assumptions (``Facts``), wraps included: a result that may wrap has no bounds and no form.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from wis.kernel.flow import Flow, live_before
from wis.kernel.limits import KERNEL_LIMITS
from wis.kernel.model import WARP, Cbr, Kernel, Op, RegType, ScalarParam, Special
from wis.kernel.ops import BY_CODE

__all__ = ["Effort", "QUICK", "THOROUGH", "Facts", "AffineForm", "Value", "Values", "known_values"]

Symbol = tuple[str, int]
"""("special", a Special), ("start", d): ctaid * ntid in dimension d, or ("param", number)."""


class AffineForm(NamedTuple):
    """constant + the sum of coefficient * symbol, an exact integer; symbols in order, no coefficient 0."""

    constant: int
    terms: tuple[tuple[Symbol, int], ...]

    def plus(self, other: AffineForm, sign: int = 1) -> AffineForm:
        terms = dict(self.terms)
        for symbol, coefficient in other.terms:
            terms[symbol] = terms.get(symbol, 0) + sign * coefficient
        return AffineForm(self.constant + sign * other.constant, tuple(sorted((s, c) for s, c in terms.items() if c)))

    def times(self, factor: int) -> AffineForm:
        return AffineForm(self.constant * factor, tuple((s, c * factor) for s, c in self.terms) if factor else ())


class Value(NamedTuple):
    """``low <= x <= high``; 2**zeros divides x; ``form``: what x is, or None; registers with one ``number`` hold the same value."""

    low: int
    high: int
    zeros: int
    form: AffineForm | None
    number: object


@dataclass(frozen=True, slots=True)
class Facts:
    """What launches keep. ``block``: the shape of a block of threads, None: any of at most the kernel's threads.

    ``row_threads_max``: threads in the whole grid, along one dimension.
    """

    block: tuple[int, int, int] | None = None
    row_threads_max: int = ((1 << 31) - 1) * KERNEL_LIMITS.threads_max


_BITS: Final = {RegType.I16: 16, RegType.I32: 32, RegType.I64: 64}


class Effort(NamedTuple):
    """``rounds`` in which the bounds of what loops change grow from constant to constant of the code, then to the type's limits; ``steps``
    (ops and registers looked at) after which the analysis is given up."""

    rounds: int
    steps: int


QUICK: Final = Effort(2, 3_000)
THOROUGH: Final = Effort(24, 500_000)
_COMPARED: Final = frozenset({"eq", "ne", "lt_s", "le_s", "lt_u", "le_u"})


class Test(NamedTuple):
    """How a predicate came about: a comparison of two values, or ``and``, ``or``, ``not`` of such."""

    name: str
    bits: int
    parts: tuple[Value | Test, ...]


State = dict[int, "Value | Test"]


def _zeros(n: int) -> int:
    return (n & -n).bit_length() - 1 if n else 64


class Values:
    """The state before every block; None when the analysis was given up because the kernel is too large for it."""

    def __init__(self, kernel: Kernel, flow: Flow, facts: Facts, effort: Effort) -> None:
        self.kernel, self.flow, self.facts, self._effort = kernel, flow, facts, effort
        self.live = live_before(kernel.blocks, flow.order)
        self.bits = [_BITS.get(RegType(t), 0) for t in kernel.regs]
        self.heads = {loop.head for loop in flow.loops}
        self.thresholds = _thresholds(kernel)
        self.before: dict[int, State] = {0: {}}
        self._steps = 0
        self._edges: dict[tuple[int, int], State] = {}

    def solve(self) -> bool:
        """Whether the fixed point was found in time."""
        rounds = 0
        changed = True
        while changed:
            changed = False
            rounds += 1
            if rounds == self._effort.rounds:
                self.thresholds = []
            for b in self.flow.order:
                if not self._flow_through(b):
                    return False
                for c in self.flow.succ[b]:
                    changed |= self._arrive(c, widen=c in self.heads and rounds > 1)
        for _ in range(2):  # what widening lost, branches may give back
            for b in self.flow.order:
                if b:
                    self.before[b] = self._joined(b)
                if not self._flow_through(b):
                    return False
        return True

    def _flow_through(self, b: int) -> bool:
        """Bring the states on the edges out of ``b`` up to date; False when too much was done already."""
        self._steps += len(self.kernel.blocks[b].code) + 1 + len(self.before[b])
        if self._steps > self._effort.steps:
            return False
        state = dict(self.before[b])
        for i, op in enumerate(self.kernel.blocks[b].code):
            self.step(state, op, (b, i))
        end = self.kernel.blocks[b].end
        for c in self.flow.succ[b]:
            after = state
            if isinstance(end, Cbr) and end.yes != end.no:
                test = state.get(end.pred)
                if isinstance(test, Test):
                    after = dict(state)
                    _refine(after, test, c == end.yes)
            self._edges[b, c] = after
        return True

    def _joined(self, c: int) -> State:
        """What holds on all edges into ``c`` that were seen."""
        states = [self._edges[p, c] for p in self.flow.pred[c] if (p, c) in self._edges]
        if c == 0:
            states.append({})
        first, *rest = states
        result: State = {}
        live, renumber = self.live[c], bool(rest) or c in self.heads
        for r, value in first.items():
            if not live >> r & 1:
                continue
            joined: Value | Test | None = value
            for other in rest:
                joined = _join(joined, other.get(r))
            if isinstance(joined, Value):
                # A number of its own: elsewhere the old one may by now stand for another time round a loop.
                result[r] = Value(joined[0], joined[1], joined[2], joined[3], ("at", c, r)) if renumber else joined
            elif joined is not None and c not in self.heads:
                result[r] = joined
        return result

    def _arrive(self, c: int, widen: bool) -> bool:
        new = self._joined(c)
        old = self.before.get(c)
        if old is not None and widen:
            for r, value in list(new.items()):
                was = old.get(r)
                if not isinstance(was, Value) or not isinstance(value, Value):
                    del new[r]
                else:
                    new[r] = self._widened(was, value, r)
        if old == new:
            return False
        self.before[c] = new
        return True

    def _widened(self, was: Value, now: Value, register: int) -> Value:
        limit = 1 << max(self.bits[register], 1) - 1
        low, high = min(was.low, now.low), max(was.high, now.high)
        if low < was.low:
            place = bisect_right(self.thresholds, low) - 1
            low = max(self.thresholds[place], -limit) if place >= 0 else -limit
        if high > was.high:
            place = bisect_left(self.thresholds, high)
            high = min(self.thresholds[place], limit - 1) if place < len(self.thresholds) else limit - 1
        return Value(low, high, min(was.zeros, now.zeros), now.form if was.form == now.form else None, now.number)

    # --- ops
    def get(self, state: State, register: int, number: object) -> Value:
        """What is known of an integer register."""
        value = state.get(register)
        if isinstance(value, Value):
            return value
        limit = 1 << self.bits[register] - 1
        value = Value(-limit, limit - 1, 0, None, (number, register))
        state[register] = value
        return value

    def step(self, state: State, op: Op, at: tuple[int, int]) -> None:
        """What ``op`` does to ``state``."""
        name = BY_CODE[op.op].name
        result: Value | Test | None = None
        if len(op.outs) == 1:
            ins = op.ins
            if self.bits[op.outs[0]] and all(self.bits[r] or name == "sel" for r in ins):
                result = self._integer(state, name, op, at)
            elif name in _COMPARED and self.bits[ins[0]]:
                result = Test(name, self.bits[ins[0]], tuple(self.get(state, r, at) for r in ins))
            elif name in ("and", "or", "not", "mov"):  # of predicates
                tests = tuple(t for r in ins if isinstance(t := state.get(r), Test))
                if len(tests) == len(ins):
                    result = tests[0] if name == "mov" else Test(name, 1, tests)
        for out in op.outs:
            state.pop(out, None)
        if result is not None:
            state[op.outs[0]] = result

    def _integer(self, state: State, name: str, op: Op, at: tuple[int, int]) -> Value | None:
        bits = self.bits[op.outs[0]]
        if name == "const":
            c = op.attrs[0]
            return Value(c, c, _zeros(c), AffineForm(c, ()), at)
        if name == "special":
            return self._special(Special(op.attrs[0]), at)
        if name == "param":
            limit = 1 << bits - 1
            symbol = ("param", op.attrs[0])
            assert isinstance(self.kernel.params[op.attrs[0]], ScalarParam)
            return Value(-limit, limit - 1, 0, AffineForm(0, ((symbol, 1),)), symbol)
        if name == "sel":
            both = _join(self.get(state, op.ins[1], at), self.get(state, op.ins[2], at))
            return both._replace(number=at) if isinstance(both, Value) else None
        rule = _RULES.get(name)
        if rule is None:
            return None
        values = [self.get(state, r, (at, r)) for r in op.ins]
        if name == "mov":
            return values[0]
        result = rule(self.bits[op.ins[0]], bits, *values)
        if result is None:
            return None
        fitted = self._fitted(result._replace(number=at), bits)
        kept = name in ("sext", "zext", "narrow") and (fitted.low, fitted.high) == (values[0].low, values[0].high)
        return fitted._replace(number=values[0].number) if kept else fitted

    def _special(self, which: Special, at: tuple[int, int]) -> Value:
        low, high = 0, (1 << 31) - 2
        block = self.facts.block
        most = self.kernel.threads_max
        match which:
            case Special.TID_X | Special.TID_Y | Special.TID_Z:
                high = (block[which - Special.TID_X] if block else most) - 1
            case Special.NTID_X | Special.NTID_Y | Special.NTID_Z:
                low, high = (block[which - Special.NTID_X],) * 2 if block else (1, most)
            case Special.NCTAID_X | Special.NCTAID_Y | Special.NCTAID_Z:
                low, high = 1, (1 << 31) - 1
            case Special.LANE:
                high = WARP - 1
            case Special.WARP:
                high = (most - 1) // WARP
            case Special.DYNAMIC:
                high = KERNEL_LIMITS.dynamic_shared_bytes_max
        form = AffineForm(low, ()) if low == high else AffineForm(0, ((("special", int(which)), 1),))
        return Value(low, high, _zeros(low) if low == high else 0, form, at)

    def _fitted(self, value: Value, bits: int) -> Value:
        """``value`` as a register of ``bits`` holds it: bounds and form only when it cannot have wrapped."""
        if value.form is not None:
            low, high = self._bounds(value.form)
            value = value._replace(low=max(value.low, low), high=min(value.high, high))
        limit = 1 << bits - 1
        if -limit <= value.low and value.high < limit:
            return value
        return Value(-limit, limit - 1, min(value.zeros, bits), None, value.number)

    def _bounds(self, form: AffineForm) -> tuple[int, int]:
        """Bounds of a form; a thread's place in the grid, start + tid, has better ones than its parts."""
        terms = dict(form.terms)
        low = high = form.constant
        for d in range(3):
            start, tid = ("start", d), ("special", Special.TID_X + d)
            if start in terms:
                c = terms[start]
                if terms.get(tid) == c:
                    del terms[tid]
                del terms[start]
                low, high = low + min(0, c * (self.facts.row_threads_max - 1)), high + max(0, c * (self.facts.row_threads_max - 1))
        for (kind, which), c in terms.items():
            v = self._special(Special(which), (0, 0)) if kind == "special" else None
            ends = (c * v.low, c * v.high) if v is not None else (-(1 << 127), 1 << 127)
            low, high = low + min(ends), high + max(ends)
        return low, high


def _thresholds(kernel: Kernel) -> list[int]:
    """Where widening stops first: around the constants of the kernel."""
    const = next(code for code, row in BY_CODE.items() if row.name == "const")
    constants = {op.attrs[0] for block in kernel.blocks for op in block.code if op.op == const}
    return sorted({c + d for c in constants for d in (-1, 0, 1)})[:4_000]


def _join(a: Value | Test | None, b: Value | Test | None) -> Value | Test | None:
    if a is b:
        return a
    if isinstance(a, Value) and isinstance(b, Value):
        return Value(min(a.low, b.low), max(a.high, b.high), min(a.zeros, b.zeros), a.form if a.form == b.form else None, None)
    return a if a == b else None


# --- what single ops do: (bits in, bits out, operands) -> a value as of unbounded integers
Rule = Callable[..., Value | None]


def _add(sign: int) -> Rule:
    def rule(width: int, bits: int, a: Value, b: Value) -> Value:
        low, high = (a.low + b.low, a.high + b.high) if sign > 0 else (a.low - b.high, a.high - b.low)
        form = a.form.plus(b.form, sign) if a.form is not None and b.form is not None else None
        return Value(low, high, min(a.zeros, b.zeros), form, None)

    return rule


def _mul(width: int, bits: int, a: Value, b: Value) -> Value:
    ends = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
    form = None
    if a.form is not None and b.form is not None:
        form = _start(a.form, b.form) or _start(b.form, a.form)
        if form is None and not a.form.terms:
            form = b.form.times(a.form.constant)
        elif form is None and not b.form.terms:
            form = a.form.times(b.form.constant)
    return Value(min(ends), max(ends), min(64, a.zeros + b.zeros), form, None)


def _start(a: AffineForm, b: AffineForm) -> AffineForm | None:
    """ctaid * ntid of one dimension, when a and b are those."""
    if len(a.terms) != 1 or a.constant:
        return None
    (kind, which), factor = a.terms[0]
    if kind != "special" or which not in (Special.CTAID_X, Special.CTAID_Y, Special.CTAID_Z):
        return None
    d = which - Special.CTAID_X
    ntid = ("special", int(Special.NTID_X) + d)
    if b.constant == 0 and len(b.terms) == 1 and b.terms[0][0] == ntid:
        return AffineForm(0, ((("start", d), factor * b.terms[0][1]),))
    return None


def _shl(width: int, bits: int, a: Value, b: Value) -> Value | None:
    if b.low != b.high or not 0 <= b.low < bits:
        return None
    n = b.low
    return Value(a.low << n, a.high << n, min(64, a.zeros + n), a.form.times(1 << n) if a.form is not None else None, None)


def _shr(width: int, bits: int, a: Value, b: Value) -> Value | None:
    if b.low != b.high or not 0 <= b.low < bits:
        return None
    return Value(a.low >> b.low, a.high >> b.low, max(0, a.zeros - b.low), None, None)


def _shr_u(width: int, bits: int, a: Value, b: Value) -> Value | None:
    if a.low >= 0:
        return _shr(width, bits, a, b)
    if b.low != b.high or not 0 < b.low < bits:
        return None
    return Value(0, ((1 << bits) - 1) >> b.low, max(0, min(a.zeros, bits) - b.low), None, None)


def _and(width: int, bits: int, a: Value, b: Value) -> Value | None:
    zeros = max(a.zeros, b.zeros)
    highs = [v.high for v in (a, b) if v.low >= 0]
    limit = 1 << bits - 1
    return Value(0, min(highs), zeros, None, None) if highs else Value(-limit, limit - 1, zeros, None, None)


def _or(width: int, bits: int, a: Value, b: Value) -> Value | None:
    zeros = min(a.zeros, b.zeros)
    limit = 1 << bits - 1
    if a.low < 0 or b.low < 0:
        return Value(-limit, limit - 1, zeros, None, None)
    apart = max(a.high.bit_length() <= b.zeros, b.high.bit_length() <= a.zeros)  # no bit in both: the same as a sum
    if apart and a.form is not None and b.form is not None:
        return _add(1)(width, bits, a, b)
    return Value(max(a.low, b.low), (1 << max(a.high.bit_length(), b.high.bit_length())) - 1, zeros, None, None)


def _xor(width: int, bits: int, a: Value, b: Value) -> Value | None:
    limit = 1 << bits - 1
    zeros = min(a.zeros, b.zeros)
    if a.low < 0 or b.low < 0:
        return Value(-limit, limit - 1, zeros, None, None)
    return Value(0, (1 << max(a.high.bit_length(), b.high.bit_length())) - 1, zeros, None, None)


def _rem_u(width: int, bits: int, a: Value, b: Value) -> Value | None:
    if b.low < 0:
        return None
    high = max(b.high - 1, 0)  # by 0 gives 0
    return Value(0, min(high, a.high) if a.low >= 0 else high, 0, None, None)


def _rem_s(width: int, bits: int, a: Value, b: Value) -> Value | None:
    return _rem_u(width, bits, a, b) if a.low >= 0 else None


def _div(width: int, bits: int, a: Value, b: Value) -> Value | None:
    if a.low < 0 or b.low < 0:
        return None
    return Value(0 if b.low == 0 else a.low // b.high, a.high // max(b.low, 1), 0, None, None)


def _least(width: int, bits: int, a: Value, b: Value) -> Value:
    return Value(min(a.low, b.low), min(a.high, b.high), min(a.zeros, b.zeros), None, None)


def _greatest(width: int, bits: int, a: Value, b: Value) -> Value:
    return Value(max(a.low, b.low), max(a.high, b.high), min(a.zeros, b.zeros), None, None)


def _unsigned(rule: Rule) -> Rule:
    """A signed rule, for operands whose readings agree."""
    return lambda width, bits, a, b: rule(width, bits, a, b) if a.low >= 0 and b.low >= 0 else None


def _neg(width: int, bits: int, a: Value) -> Value:
    return Value(-a.high, -a.low, a.zeros, a.form.times(-1) if a.form is not None else None, None)


def _zext(width: int, bits: int, a: Value) -> Value:
    return a if a.low >= 0 else Value(0, (1 << width) - 1, a.zeros if a.zeros < width else 0, None, None)


_RULES: Final[dict[str, Rule]] = {
    "mov": lambda width, bits, a: a,
    "add": _add(1),
    "sub": _add(-1),
    "mul": _mul,
    "neg": _neg,
    "shl": _shl,
    "shr_s": _shr,
    "shr_u": _shr_u,
    "and": _and,
    "or": _or,
    "xor": _xor,
    "rem_u": _rem_u,
    "rem_s": _rem_s,
    "div_s": _div,
    "div_u": _div,
    "min_s": _least,
    "max_s": _greatest,
    "min_u": _unsigned(_least),
    "max_u": _unsigned(_greatest),
    "sext": lambda width, bits, a: a,
    "zext": _zext,
    "narrow": lambda width, bits, a: a,
}


# --- what branches say
def _refine(state: State, test: Test, holds: bool) -> None:
    """Narrow the values in ``state`` by the outcome of ``test``."""
    if test.name == "not":
        _refine_part(state, test.parts[0], not holds)
    elif test.name in ("and", "or"):
        if holds == (test.name == "and"):
            for part in test.parts:
                _refine_part(state, part, holds)
    else:
        a, b = test.parts
        assert isinstance(a, Value) and isinstance(b, Value)
        _compare(state, test.name, _current(state, a), _current(state, b), holds)


def _refine_part(state: State, part: Value | Test, holds: bool) -> None:
    if isinstance(part, Test):
        _refine(state, part, holds)


def _current(state: State, value: Value) -> Value:
    """What is known by now of the value that was compared."""
    return next((v for v in state.values() if isinstance(v, Value) and v.number == value.number), value)


def _compare(state: State, name: str, a: Value, b: Value, holds: bool) -> None:
    if name in ("eq", "ne"):
        if holds == (name == "eq"):
            _narrow(state, a, b.low, b.high)
            _narrow(state, b, a.low, a.high)
        else:
            for x, y in ((a, b), (b, a)):
                if y.low == y.high:
                    _narrow(state, x, x.low + (x.low == y.low), x.high - (x.high == y.low))
        return
    unsigned, strict = name.endswith("_u"), name.startswith("lt")
    if not holds:
        a, b, strict = b, a, not strict  # not a < b: b <= a
    if unsigned:
        if b.low < 0:
            return
        a = a._replace(low=max(a.low, 0))  # what is less than a number without the sign bit has none either
    _narrow(state, a, a.low, b.high - strict)
    _narrow(state, b, a.low + strict, b.high)


def _narrow(state: State, value: Value, low: int, high: int) -> None:
    """All registers that hold ``value`` are between ``low`` and ``high``. What no thread can get to stays as it was."""
    for r, v in state.items():
        if isinstance(v, Value) and v.number == value.number and max(v.low, low) <= min(v.high, high):
            state[r] = v._replace(low=max(v.low, low), high=min(v.high, high))


def known_values(kernel: Kernel, flow: Flow, facts: Facts, effort: Effort = THOROUGH) -> Values | None:
    """The analysis of a kernel without calls; None when it would take more than ``effort``."""
    values = Values(kernel, flow, facts, effort)
    return values if values.solve() else None
