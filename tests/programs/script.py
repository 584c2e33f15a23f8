"""The generator: a program is written line by line, and runs on the CPU as it is written, because the next line depends on shapes so far.

Two kinds of values live in a program. *Exact* ones come from small integers by operations that do not round; the device must give the same
bits. *Rounded* ones have met an operation that rounds; they are compared by tolerance, and nothing discontinuous may look at them.
"""

from __future__ import annotations

import math
import random
import re
import string
import warnings
from collections import Counter
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, Final

import torch

from tests.programs import blocks, exact, leaves, rounded, templates

__all__ = ["FLOATS", "INTS", "Line", "Program", "Script", "Namespace", "namespace", "execute_line", "NAME", "generate", "extend"]

FLOATS: Final = ("float32", "float64", "float16", "bfloat16")
INTS: Final = ("int64", "int32", "int16", "int8", "uint8")
WIDE: Final = ("uint16", "uint32", "uint64")
"""Types that few operations take."""
NAME: Final = re.compile(r"\b[tvmo]\d+\b")
"""Names that a program gives: tensors, values read, modules, optimisers."""

_TO_INTEGERS: Final = re.compile(r"\.(long|int|short|char|byte)\(\)|torch\.u?int\d+")

_FLOATING: Final = re.compile(r"float|double|half|complex")

_SEPARATOR: Final = re.compile(r"(?<! )\|")
"""Between the lines of a template; a ``|`` after a space is the operator."""
N_TENSORS_MAX: Final = 12
MAGNITUDE_MAX: Final = 1e4

Namespace = dict[str, Any]

OPEN: Final = (
    "ZeroDivisionError", "out of bounds", "out of range", "ones in mask", "Index to scalar", "without overflow", "bool dtypes", "median()",
    "not implemented for", "not supported for", "single memory location", "Integer division by zero", "INTERNAL ASSERT", "on CPU",
    "expected scalar type", "MKL", "oneDNN", "mkldnn", "only supports", "for 'Half'", "for 'BFloat16'", "must be between", "NameError",
)  # fmt: skip
"""Errors of the CPU that are no errors on a device, or that a device finds too late to be an exception of the line."""


@dataclass
class Line:
    """One statement. ``error``: the class of the exception that it raised on the CPU, or an empty string. ``by_layout``: it is a view that
    the memory format of a tensor does not allow; that format may be another on the device (docs/differences.md)."""

    text: str
    error: str = ""
    by_layout: bool = False

    def set_error(self, error: BaseException | None) -> None:
        """Note what it raised on the CPU."""
        self.error = type(error).__name__ if error else ""
        self.by_layout = "view size is not compatible with input tensor's size and stride" in str(error)


@dataclass
class Program:
    """``rounded``: names whose values are compared by tolerance."""

    seed: int
    lines: list[Line] = field(default_factory=list)
    rounded: set[str] = field(default_factory=set)

    @property
    def text(self) -> str:
        return "\n".join(line.text for line in self.lines)


def namespace(device: str) -> Namespace:
    """What a program finds when it starts."""
    names: Namespace = {name: getattr(leaves, name) for name in leaves.__all__}
    return names | {"torch": torch, "F": torch.nn.functional, "nn": torch.nn, "dev": device, "inf": float("inf"), "nan": float("nan")}


def execute_line(text: str | CodeType, names: Namespace) -> BaseException | None:
    """Run one statement, compiled or not; what it raised."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec(text, names)
    except Exception as error:  # any error is an answer: the other device must give one too
        error.__traceback__ = None
        return error
    return None


class Script:
    """A program in the making, which runs on ``device`` meanwhile."""

    device = "cpu"
    #: Of dimensions: usual ones, and those of a quarter of all fresh tensors.
    sizes: tuple[tuple[int, ...], tuple[int, ...]] = ((1, 2, 3, 4), (0, 1, 2, 3, 3, 4, 5, 17))
    elements_max = 4096

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.program = Program(seed)
        self.names = namespace(self.device)
        self.tensors: list[str] = []
        self.dtypes: tuple[str, ...] = self._dtypes()
        self.modules: list[str] = []
        self._n = {"t": 0, "v": 0, "m": 0, "o": 0}
        torch.manual_seed(seed % (1 << 32))

    def _dtypes(self) -> tuple[str, ...]:
        """The types of this program's values; most programs have few."""
        rng = self.rng
        if rng.random() < 0.02:
            return (rng.choice(FLOATS), rng.choice(WIDE), "bool")
        if rng.random() < 0.5:
            return (rng.choice(FLOATS), rng.choice(INTS), "bool")
        if rng.random() < 0.5:
            return ("float32", "int64", "bool")
        return (*FLOATS, *INTS, "bool", "complex64")

    # --- writing
    def write(self, text: str, rounds: bool) -> bool:
        """Run a statement and append it; False when the program must end before it. ``rounds``: its results are not exact."""
        program, error = self.program, execute_line(text, self.names)
        if error is not None:
            described = f"{type(error).__name__}: {error}"
            if any(word in described for word in OPEN) or "out=" in text or self.rng.random() < 0.75:
                return self._leave_out(text)
        used = set(NAME.findall(text))
        rounds = rounds or "rand(" in text or bool(used & program.rounded)
        program.lines.append(Line(text))
        program.lines[-1].set_error(error)
        self._adopt(used, rounds)
        if not (self._bounded(used) and self._converts(used, text)):
            program.lines.pop()
            self._replay()
            return False
        return True

    def _leave_out(self, text: str) -> bool:
        """A statement that raised is left out; one that may have done half of its work is undone."""
        if "\n" in text or not re.match(r"[tv]\d+ = ", text):
            self._replay()
        return False

    def _replay(self) -> None:
        """Bring the names back to what the lines kept so far make."""
        kept = self.program.lines
        self.names = namespace(self.device)
        torch.manual_seed(self.program.seed % (1 << 32))
        for line in kept:
            execute_line(line.text, self.names)
        self.tensors = [t for t in self.tensors if t in self.names]
        self.modules = [m for m in self.modules if m in self.names]

    def _adopt(self, used: set[str], rounds: bool) -> None:
        program, names = self.program, self.names
        for name in sorted(used, key=lambda n: int(n[1:])):
            value = names.get(name)
            if isinstance(value, torch.Tensor) and name[0] == "t" and name not in self.tensors:
                self.tensors = [*self.tensors, name][-N_TENSORS_MAX:]
            if name[0] == "m" and value is not None and name not in self.modules:
                self.modules.append(name)
        if rounds:
            program.rounded |= {name for name in used if name in names}
            touched = {_storage(names[n]) for n in used if isinstance(names.get(n), torch.Tensor)} - {0}
            program.rounded |= {n for n, v in names.items() if NAME.fullmatch(n) and isinstance(v, torch.Tensor) and _storage(v) in touched}

    @torch.no_grad()
    def _bounded(self, used: set[str]) -> bool:
        for name in used:
            value = self.names.get(name)
            if not isinstance(value, torch.Tensor):
                continue
            if value.numel() > self.elements_max:
                return False
            if value.is_complex() and not bool(torch.isfinite(value).all()):  # torch adds alpha * x, of which 0 * inf is a part
                return False
            if value.is_floating_point():  # of numbers next to the limit, what a sum or product gives depends on its order
                finite = value[torch.isfinite(value)]
                if bool((finite.abs() > torch.finfo(value.dtype).max / 2).any()):
                    return False
            if name in self.program.rounded and value.numel() and value.dtype != torch.bool:
                plain = value.to(torch.complex128 if value.is_complex() else torch.float64)
                if not bool((plain.abs() < MAGNITUDE_MAX).all()):
                    return False
        return True

    def _converts(self, used: set[str], text: str) -> bool:
        """False where numbers may have become integers that cannot hold them: what that gives is not defined."""
        tensors = [v for v in (self.names.get(n) for n in used) if isinstance(v, torch.Tensor)]
        wide = [t for t in tensors if t.is_floating_point() or t.is_complex()]
        if any(str(t.dtype).removeprefix("torch.") in WIDE for t in tensors) and (wide or _FLOATING.search(text)):
            return False
        if len(wide) == len(tensors) and not _TO_INTEGERS.search(text):
            return True
        return all(bool((t.detach().abs() < 100).all()) for t in wide)

    # --- choosing
    def new(self, kind: str = "t") -> str:
        self._n[kind] += 1
        return f"{kind}{self._n[kind]}"

    def value(self, name: str) -> torch.Tensor:
        return self.names[name]  # type: ignore[no-any-return]

    def is_exact(self, name: str) -> bool:
        return name not in self.program.rounded

    def among(self, wanted: Any) -> list[str]:
        return [t for t in self.tensors if isinstance(self.names.get(t), torch.Tensor) and wanted(self.value(t))]

    def fill(self, template: str, *, exact: bool) -> str:
        """The statement of a template; see templates.py for its fields. ``exact``: it may look at exact values only."""
        text = _SEPARATOR.sub("\n", template)
        filled = string.Template(text).substitute(Fields(self, exact))
        if filled.startswith("!"):
            return filled[1:]
        return filled if text.startswith("$v = ") else f"{self.new()} = {filled}"


def _is_integer(tensor: torch.Tensor) -> bool:
    return not tensor.is_floating_point() and not tensor.is_complex() and tensor.dtype != torch.bool


def _storage(tensor: torch.Tensor) -> int:
    try:
        return tensor.untyped_storage().data_ptr()
    except Exception:  # tensors without a storage of their own share none
        return 0


_FOREACH: Final = (
    "abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2 neg reciprocal round rsqrt sigmoid sign "
    "sin sinh sqrt tan tanh trunc"
).split()


class Fields(dict[str, Any]):
    """The fields of one template, each drawn when it is first asked for."""

    def __init__(self, script: Script, exact: bool) -> None:
        super().__init__()
        self.s, self.rng, self.exact = script, script.rng, exact

    def __missing__(self, key: str) -> str:
        text: str = getattr(self, "_" + key.rstrip("0123456789"))()
        self[key] = text
        return text

    def _pick(self, wanted: Any, fresh: str) -> str:
        usable = [t for t in self.s.among(wanted) if not self.exact or self.s.is_exact(t)]
        if usable and self.rng.random() < 0.93:
            return self.rng.choice(usable[-6:])
        return fresh.replace("SEED", str(self.rng.randrange(99))).replace("SHAPE", str(self.shape()))

    def shape(self) -> tuple[int, ...]:
        rng = self.rng
        usual, wide = self.s.sizes
        sizes = wide if rng.random() < 0.25 else usual
        return tuple(rng.choice(sizes) for _ in range(rng.choice((0, 1, 1, 2, 2, 3))))

    # tensors
    def _x(self) -> str:
        return self._pick(lambda t: True, f"make(SEED, SHAPE, {self.rng.choice(self.s.dtypes)!r}, dev)")

    _z = _x

    def _f(self) -> str:
        """A floating tensor."""
        dtype = next(d for d in self.s.dtypes if d in FLOATS)
        return self._pick(lambda t: t.is_floating_point(), f"{'make' if self.exact else 'rand'}(SEED, SHAPE, {dtype!r}, dev)")

    def _r(self) -> str:
        """A floating tensor that may be rounded (exact ones among them), of float32 or float64."""
        return self._pick(lambda t: t.dtype in (torch.float32, torch.float64), "rand(SEED, SHAPE, 'float32', dev)")

    def _l(self) -> str:
        return self._pick(_is_integer, "make(SEED, SHAPE, 'int64', dev)")

    def _b(self) -> str:
        return self._pick(lambda t: t.dtype == torch.bool, "make(SEED, SHAPE, 'bool', dev)")

    def _c(self) -> str:
        return self._pick(lambda t: t.is_complex(), "make(SEED, SHAPE, 'complex64', dev)")

    def _packed(self) -> str:
        """A tensor without gaps: only of such can torch tell whether they overlap another in part, which it then refuses."""
        return self._pick(lambda t: torch.empty_like(t).stride() == t.stride(), "make(SEED, SHAPE, 'float32', dev)")

    def _apart(self) -> str:
        """The main tensor, or one that shares no memory with it: torch leaves other overlaps undefined where it cannot tell them."""
        main = self._main()
        if main is None:
            return self._x()
        return self._pick(lambda t: t is main or _storage(t) != _storage(main), "make(SEED, SHAPE, 'float32', dev)")

    def _u(self) -> str:
        """Distinct values, of a type that has so many of them."""
        seed, shape, dtype = self.seed(), self.shape() or (3,), self._fdt().split(".")[1]
        fits = math.prod(shape) <= 4 / torch.finfo(getattr(torch, dtype)).eps
        return f"distinct({seed}, {shape}, {dtype if fits else 'float32'!r}, dev)"

    def seed(self) -> int:
        return self.rng.randrange(99)

    def _seed(self) -> str:
        return str(self.seed())

    def _shape(self) -> str:
        return str(self.shape())

    def _main(self) -> torch.Tensor | None:
        for key in ("x", "f", "r", "l", "b", "c"):
            if key in self:
                value = eval(self[key], self.s.names)
                return value if isinstance(value, torch.Tensor) else None
        return None

    def _y(self) -> str:
        """Something that mostly broadcasts with the template's main tensor: a tensor, the same one, a fresh one, a number."""
        main, rng = self._main(), self.rng
        kind = rng.randrange(6)
        if kind == 0 or main is None:
            return self._x()
        if kind == 1:
            return self._n()
        shape = [1 if rng.random() < 0.25 else n for n in main.shape][1 if kind == 2 else 0 :]
        if kind == 3:
            return str(self.get("x") or self.get("f") or self.get("l") or self._x())
        dtype = rng.choice(self.s.dtypes) if rng.random() < 0.4 else str(main.dtype).removeprefix("torch.")
        return f"make({self.seed()}, {tuple(shape)}, {dtype!r}, dev)"

    def _w(self) -> str:
        """A fresh floating tensor of the main tensor's shape and type."""
        main = self._main()
        shape, dtype = ((2, 3), "float32") if main is None else (tuple(main.shape), str(main.dtype).removeprefix("torch."))
        if dtype not in FLOATS:
            dtype = "float32"
        return f"{'make' if self.exact else 'rand'}({self.seed()}, {shape}, {dtype!r}, dev)"

    # numbers
    def _n(self) -> str:
        return self.rng.choice(("2", "-1", "0", "3", "True", "2.0", "-1.0", "0.5", "1", "1.0"))

    def _k(self) -> str:
        return str(self.rng.randint(-2, 2))

    def _p(self) -> str:
        return str(self.rng.randint(1, 3))

    def _a(self) -> str:
        """A positive decimal that rounds."""
        return self.rng.choice(("0.1", "0.3", "0.7", "1.7", "2.5"))

    def _q(self) -> str:
        """A decimal that does not round."""
        return self.rng.choice(("0.25", "0.5", "1.5", "2.5", "-3.5"))

    def _keep(self) -> str:
        return self.rng.choice(("True", "False"))

    _flag = _keep

    def _d(self) -> str:
        main = self._main()
        rank = main.dim() if main is not None else 1
        return str(self.rng.randrange(-rank, rank)) if rank else self.rng.choice(("0", "-1"))

    def _size(self) -> int:
        main = self._main()
        if main is None or not main.dim():
            return 1
        return main.shape[int(self["d"])]

    def _sz(self) -> str:
        return str(max(self._size(), 1))

    def _i(self) -> str:
        """A 1-D index for dimension $$d of the main tensor."""
        return f"index({self.seed()}, {self._size()}, ({self.rng.choice((0, 1, 2, 3, 5))},), dev)"

    def _ui(self) -> str:
        """Distinct indices for dimension $$d."""
        n = self._size()
        drawn = self.rng.sample(range(n), self.rng.randint(0, n)) if n < 9 else [0, n - 1]
        return f"torch.tensor({drawn}, dtype=torch.int64, device=dev)"

    # names of types
    def _dt(self) -> str:
        return "torch." + self.rng.choice(self.s.dtypes)

    def _fdt(self) -> str:
        return "torch." + next(d for d in self.rng.sample(self.s.dtypes, len(self.s.dtypes)) if d in FLOATS)

    def _new(self) -> str:
        return self.s.new()

    def _v(self) -> str:
        return self.s.new("v")

    def _mod(self) -> str:
        return self.s.new("m")

    def _opt(self) -> str:
        return self.s.new("o")

    def _out(self) -> str:
        """A tensor to be written that shares no memory with any other."""
        count = Counter(_storage(self.s.value(t)) for t in self.s.among(lambda t: True))
        used = set(self.values())
        alone = [t for t in self.s.among(lambda t: count[_storage(t)] == 1) if t not in used]
        return self.rng.choice(alone) if alone and self.rng.random() < 0.6 else f"torch.empty(0, dtype={self._dt()}, device=dev)"

    def _str_dt(self) -> str:
        return repr(self.rng.choice(("float32", "float32", "float32", "float64", "float16", "bfloat16")))

    def _half(self) -> str:
        return self.rng.choice(("torch.float16", "torch.bfloat16"))

    def _act(self) -> str:
        return self.rng.choice("Tanh Sigmoid GELU SiLU ReLU ELU Softplus Mish Hardswish LeakyReLU Identity LogSoftmax".split())

    def _loss(self) -> str:
        return self.rng.choice("MSELoss L1Loss SmoothL1Loss HuberLoss BCELoss BCEWithLogitsLoss CrossEntropyLoss SoftMarginLoss".split())

    def _bag(self) -> str:
        return self.rng.choice(("sum", "mean", "max"))

    def _rnn(self) -> str:
        return self.rng.choice(("tanh", "relu"))

    def _up(self) -> str:
        return self.rng.choice(("nearest", "bilinear", "bicubic"))

    def _padded(self) -> str:
        return self.rng.choice(("reflect", "replicate", "circular"))

    def _unary(self) -> str:
        return self.rng.choice(_FOREACH)

    def _cmp(self) -> str:
        return self.rng.choice(("==", "<", ">=", "!=", "<=", ">"))

    def _bit(self) -> str:
        return self.rng.choice("&|^")


# --- whole programs
_EXACT_TABLES: Final = ((exact.VIEWS, 3.0), (exact.EXACT, 4.0), (exact.EXACT_JUMPS, 2.0), (exact.IN_PLACE, 3.0),
    (exact.IN_PLACE_JUMPS, 1.0), (exact.CONSTANTS, 1.5), (templates.READS, 0.6), (templates.CONTROL, 0.6))  # fmt: skip
_ROUNDED_TABLES: Final = ((rounded.ROUNDED, 5.0), (rounded.GRADIENTS, 2.0), (rounded.ROUNDED_JUMPS, 1.0),
    (blocks.AUTOGRAD, 1.5), (blocks.MODULES, 1.0), (blocks.TRAINING, 0.3), (blocks.RANDOM, 0.3))  # fmt: skip
_JUMPS: Final = frozenset(map(id, (exact.EXACT_JUMPS, exact.IN_PLACE_JUMPS, templates.READS, templates.CONTROL)))
_ROUNDS: Final = frozenset(id(table) for table, _ in _ROUNDED_TABLES)

KINDS: Final = {"exact": (1.0, 0.0), "rounded": (0.5, 2.0), "constants": (1.0, 0.3)}
"""Kinds of programs: the weights of the exact tables and of the rounding ones."""


def generate(seed: int) -> Script:
    """The program of a seed, and the names that it leaves on the CPU."""
    return extend(Script(seed))


def extend(script: Script) -> Script:
    """Write the statements of ``script``, which has none."""
    rng = script.rng
    kind = rng.choice(sorted(KINDS))
    of_exact, of_rounded = KINDS[kind]
    tables = [(t, w * of_exact * (5 if kind == "constants" and t is exact.CONSTANTS else 1)) for t, w in _EXACT_TABLES]
    tables += [(t, w * of_rounded) for t, w in _ROUNDED_TABLES if of_rounded]
    n_lines = rng.randint(3, 16)
    for _ in range(3 * n_lines):
        if len(script.program.lines) >= n_lines:
            break
        (table,) = rng.choices([t for t, _ in tables], [w for _, w in tables])
        text = script.fill(rng.choice(table), exact=id(table) in _JUMPS)
        script.write(text, id(table) in _ROUNDS)
    return script
