"""Runs an operator's cases on the CPU and on the device, and classifies each.

A case is *native* when it ran on the device and agreed with the CPU, *fallback* when some operation of it was computed on this machine
(counted by ``wooly.stats()``), *refused* when it raised although the CPU computed it, *wrong* when anything differed: values, shape,
strides, type, device, arguments that were changed, the class of an error, or no error where there is one. Where CUDA does not claim a
type an error is as good as on CUDA. Results are fetched once for all cases of a row; if that fails, the row runs again case by case.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils._pytree import tree_map

from tests.conformance.compare import METHODS, Differs, check, check_metadata, check_strides, fetched
from tests.conformance.draws import ROUNDED_ON_CPU, compare_draws, is_random, is_undefined, unseeded
from tests.conformance.samples import Case, Limits, cases, leaves, raised
from tests.support.rounding import RoundsOtherwise
from wooly.counters import COUNTERS
from wooly.errors import WoolyError

__all__ = ["CLASSES", "DIRECTIONS", "DTYPES", "Outcome", "Row", "SessionLost", "claims", "op_name", "run_row"]

CLASSES = ("native", "fallback", "refused", "wrong")
DEVICE = "cuda"
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
        torch.bool, torch.complex64, torch.complex128,
    )
}  # fmt: skip
DIRECTIONS = ("forward", "backward", "errors")


class SessionLost(Exception):
    """The session does not answer any more: what the process goes on with fails in the same words."""


@dataclass(frozen=True)
class Row:
    """What is classified together: cases of one operator, type and direction ("errors" has no type)."""

    op: OpInfo
    dtype: str
    direction: str


@dataclass
class Outcome:
    """How a row did.

    Attributes:
        name: the operator's.
        dtype, direction: of the row.
        samples: cases run.
        counts: cases by class.
        methods: cases by how they were compared.
        note: the first wrong case, else the first refused one.
        fallbacks: operations computed on this machine.
        seconds: wall-clock time.
    """

    name: str
    dtype: str
    direction: str
    samples: int = 0
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CLASSES, 0))
    methods: dict[str, int] = field(default_factory=lambda: dict.fromkeys(METHODS, 0))
    note: str = ""
    fallbacks: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def result(self) -> str:
        """The worst of the cases; a row without any is ``skipped``."""
        return next((c for c in reversed(CLASSES) if self.counts[c]), "skipped")

    def plain(self) -> dict[str, Any]:
        return asdict(self)

    def add(self, verdict: str, method: str, note: str, used: set[str]) -> None:
        self.samples += 1
        self.counts[verdict] += 1
        if method:
            self.methods[method] += 1
        self.fallbacks = sorted({*self.fallbacks, *used})
        if verdict in ("refused", "wrong") and (not self.note or (verdict == "wrong" and self.counts["wrong"] == 1)):
            self.note = note[:400]


def op_name(op: OpInfo) -> str:
    return op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")


def claims(op: OpInfo, dtype: torch.dtype, *, grad: bool = False) -> bool:
    """Does torch claim this type for the operator, on the CPU or on CUDA?"""
    if grad:
        if not (dtype.is_floating_point or dtype.is_complex):
            return False  # integers have no gradients, whatever the list says
        return op.supports_autograd and dtype in {*op.backward_dtypes, *op.backward_dtypesIfCUDA}
    return dtype in {*op.dtypes, *op.dtypesIfCUDA}


def run_row(row: Row, limits: Limits) -> Outcome:
    """Run every case of a row. Raises SessionLost; its outcome so far is the exception's argument."""
    outcome = Outcome(op_name(row.op), row.dtype, row.direction)
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if row.direction == "errors":
            _run_errors(row.op, outcome)
        else:
            _run_cases(row, limits, outcome)
    outcome.seconds = round(time.perf_counter() - start, 3)
    return outcome


# --- cases that compute


@dataclass
class _Tried:
    """One side of a case: what it returned and what its arguments are afterwards, or what it raised."""

    values: list[Any] = field(default_factory=list)
    after: list[Any] = field(default_factory=list)
    error: Exception | None = None
    fallbacks: set[str] = field(default_factory=set)


def _run_cases(row: Row, limits: Limits, outcome: Outcome) -> None:
    dtype, grad = DTYPES[row.dtype], row.direction == "backward"
    try:
        listed = list(cases(row.op, dtype, limits, grad=grad))
    except Exception as error:  # torch's own sample generator does not know the type on this build
        outcome.note = f"no samples: {type(error).__name__}: {' '.join(str(error).split())}"[:200]
        return
    judge = _Judge(row, dtype, grad)
    drawn = [case for case in listed if is_random(row.op.name, *case.arguments[1:])]
    compared = [case for case in listed if not is_random(row.op.name, *case.arguments[1:])]
    tried = []
    try:
        for case in compared:
            tried.append((case, judge.attempt(case, "cpu"), judge.attempt(case, DEVICE)))
            if isinstance(tried[-1][2].error, WoolyError):
                raise tried[-1][2].error
        here = _fetch_sides([there for _, _, there in tried])
    except (WoolyError, torch.AcceleratorError):
        tried.clear()
        _settle(outcome)
        for case in compared:
            outcome.add(*judge.alone(case, outcome))
    else:
        for (case, cpu, there), (values, after) in zip(tried, here, strict=True):
            outcome.add(*judge.verdict(case, cpu, there, values, after))
    for case in drawn:
        outcome.add(*judge.draws(case, outcome))


def _fetch_sides(sides: list[_Tried]) -> list[tuple[list[Any], list[Any]]]:
    """Values and arguments of every side, with one wait."""
    flat = fetched([v for side in sides for v in (*side.values, *side.after)])
    out, at = [], 0
    for side in sides:
        n, m = len(side.values), len(side.after)
        out.append((flat[at : at + n], flat[at + n : at + n + m]))
        at += n + m
    return out


def _settle(outcome: Outcome) -> None:
    """Collect what failed on the node, so that the next case starts clean. Raises SessionLost when the session does not answer."""
    error: Exception | None = None
    for _ in range(3):
        try:
            if float(torch.ones(2, device=DEVICE).sum()) == 2.0:
                return
        except Exception as met:  # an earlier case's own error, met again
            error = met
    outcome.note = f"session lost: {type(error).__name__}: {' '.join(str(error).split())}"[:400]
    raise SessionLost(outcome)


class _Once:
    """A function of no arguments that is called at most once."""

    def __init__(self, function: Callable[[], list[Any]]) -> None:
        self._function = function
        self._result: list[Any] | None = None

    def __call__(self) -> list[Any]:
        if self._result is None:
            self._result = self._function()
        return self._result


@dataclass
class _Judge:
    row: Row
    dtype: torch.dtype
    grad: bool

    @property
    def cpu_claims(self) -> bool:
        op = self.row.op
        return self.dtype in (op.backward_dtypes if self.grad else op.dtypes)

    @property
    def cuda_claims(self) -> bool:
        op = self.row.op
        return self.dtype in (op.backward_dtypesIfCUDA if self.grad else op.dtypesIfCUDA)

    def attempt(self, case: Case, device: str, *, wide: bool = False) -> _Tried:
        """Make the call on a device, without waiting for it. ``wide``: in the widest type."""
        tried = _Tried()
        before = dict(COUNTERS.fallbacks)
        try:
            given, args, kwargs = raised(case.on(device, grad=self.grad), self.dtype) if wide else case.on(device, grad=self.grad)
            inputs = [leaf for leaf in leaves((given, args, kwargs)) if isinstance(leaf, torch.Tensor)]
            torch.manual_seed(0)
            out = case.call(device, (given, args, kwargs))
            tried.values = _gradients(out, inputs, device) if self.grad else leaves(out)
            tried.after = [] if self.grad else inputs
        except Exception as error:  # whatever it is, the other side must raise the same
            tried.error = error
        if device == DEVICE:
            tried.fallbacks = {name for name, count in COUNTERS.fallbacks.items() if count != before.get(name, 0)}
        return tried

    def _truth(self, case: Case) -> _Tried:
        torch._C._set_default_dtype(torch.float64)  # not torch.set_default_dtype: the device's plans are to stay
        try:
            return self.attempt(case, "cpu", wide=True)
        finally:
            torch._C._set_default_dtype(torch.float32)

    def _shifted(self, case: Case) -> _Once | None:
        """Of an operator that is badly conditioned for some samples: the truth for arguments that differ by their own rounding; of one
        whose formula is unstable: the CPU's results where every operation within rounds in another way."""
        if self.grad and self.row.op.name in _UNSTABLE_GRADIENTS:
            return _Once(lambda: self._rounded_otherwise(case))
        if self.row.op.name not in _ILL_CONDITIONED:
            return None

        def nudged(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor) or not (leaf.is_floating_point() or leaf.is_complex()):
                return leaf
            signs = 1 - 2 * (torch.arange(leaf.numel()) % 2).view(leaf.size())
            return (leaf.detach() * (1 + torch.finfo(leaf.dtype).eps * signs)).requires_grad_(leaf.requires_grad)

        return _Once(lambda: self._truth(replace(case, arguments=tree_map(nudged, case.arguments))).values)

    def _rounded_otherwise(self, case: Case) -> list[Any]:
        """The truth, moved by the largest error of six results of the CPU whose operations each end a unit aside at random."""
        truth = self._truth(case).values
        spread = [0.0] * len(truth)
        for seed in range(6):
            with RoundsOtherwise(seed):
                values = self.attempt(case, "cpu").values
            errors = [
                float((a.to(b.dtype) - b).abs().max()) if isinstance(b, torch.Tensor) else 0.0 for a, b in zip(values, truth, strict=True)
            ]
            spread = [max(old, new) for old, new in zip(spread, errors, strict=True)]
        offset = [s * (1 + 1j) if b.is_complex() else s for s, b in zip(spread, truth, strict=True)]
        return [b + s for s, b in zip(offset, truth, strict=True)]

    def verdict(self, case: Case, cpu: _Tried, there: _Tried, values: list[Any], after: list[Any]) -> tuple[str, str, str, set[str]]:
        """(class, method, note, fallbacks) of a case that ran on both sides."""
        used = there.fallbacks
        try:
            method = self._compare(case, cpu, there, values, after)
        except Differs as error:
            return "wrong", "", f"{case.kind} sample {case.index}: {error}", used
        if method == "refused":
            return "refused", "", f"{case.kind} sample {case.index}: {_words(there.error)}", used
        return ("fallback" if used else "native"), method, "", used

    def _compare(self, case: Case, cpu: _Tried, there: _Tried, values: list[Any], after: list[Any]) -> str:
        cast = False
        if cpu.error is not None and self._lacks(cpu.error):
            cpu, cast = self._truth(case), True
            if cpu.error is not None and there.error is None:
                return "metadata"  # the CPU computes this type in no precision, and the device does
        if cpu.error is not None:
            if there.error is None:
                raise Differs(f"no error where the CPU raises {_words(cpu.error)}")
            if not isinstance(there.error, type(cpu.error)) and (self.cuda_claims or not isinstance(there.error, NotImplementedError)):
                raise Differs(f"{_words(there.error)} where the CPU raises {_words(cpu.error)}")
            return "raised"
        if there.error is not None:
            return "refused" if self.cuda_claims else "raised"
        if len(there.values) != len(cpu.values):
            raise Differs(f"{len(there.values)} results instead of {len(cpu.values)}")
        promised = _Once(lambda: self.attempt(case, "meta").values)
        for i, (have, want) in enumerate(zip(there.values, cpu.values, strict=True)):
            if isinstance(want, torch.Tensor) and want.dtype != have.dtype and [t.dtype for t in promised()[i : i + 1]] == [have.dtype]:
                cpu.values[i] = want.to(have.dtype)  # statistics of half types: CUDA saves them in float32, as torch's meta kernels say
            check_metadata(have, cpu.values[i], cast=cast)
        check_strides(there.values, cpu.values, promised)
        if is_undefined(self.row.op.name, case.kind, case.arguments[2], grad=self.grad):
            return "metadata"
        try:
            method = check(values, cpu.values, _Once(lambda: self._truth(case).values), cast=cast, shifted=self._shifted(case))
        except Differs:
            if cast or not _points_at_the_same(cpu.after[:1], values, cpu.values):
                raise
            method = "exact"
        if not cast and case.kind not in ("inplace", "out"):
            try:
                check(after, cpu.after, list)
            except Differs as error:
                raise Differs(f"an argument was changed: {error}") from None
        return method

    def _lacks(self, error: Exception) -> bool:
        """Does the CPU refuse only because it has no kernel for the type?"""
        return "not implemented for" in str(error) or "on CPU does not support" in str(error) or (self.cuda_claims and not self.cpu_claims)

    def alone(self, case: Case, outcome: Outcome) -> tuple[str, str, str, set[str]]:
        """One case with a wait of its own: what the node refuses belongs to it. Raises SessionLost."""
        cpu, there = self.attempt(case, "cpu"), self.attempt(case, DEVICE)
        values: list[Any] = []
        after: list[Any] = []
        if there.error is None:
            try:
                ((values, after),) = _fetch_sides([there])
            except Exception as error:  # found while executing
                there = _Tried(error=error, fallbacks=there.fallbacks)
        if isinstance(there.error, WoolyError | torch.AcceleratorError):
            kept = there.error
            there = _Tried(error=kept, fallbacks=there.fallbacks)
            try:
                _settle(outcome)
            except SessionLost:
                outcome.note = f"{case.kind} sample {case.index}: {outcome.note}; first {_words(kept)}"[:400]
                raise
        return self.verdict(case, cpu, there, values, after)

    def draws(self, case: Case, outcome: Outcome) -> tuple[str, str, str, set[str]]:
        """A case that draws numbers."""
        before = dict(COUNTERS.fallbacks)
        cpu = self.attempt(case, "cpu")
        wide = (self.row.op.name in ROUNDED_ON_CPU and self.dtype.itemsize == 2) or (cpu.error is not None and self._lacks(cpu.error))
        cpu = self._truth(case) if wide else cpu
        if cpu.error is not None:
            return self.alone(case, outcome)
        shapes: list[Any] = []

        def draw(device: str, seed: int) -> list[torch.Tensor]:
            given, args, kwargs = case.on(device, grad=self.grad)
            if wide and device == "cpu":
                given, args, kwargs = raised((given, args, kwargs), self.dtype)
            inputs = [leaf for leaf in leaves((given, args, kwargs)) if isinstance(leaf, torch.Tensor)]
            torch.manual_seed(seed)
            out = case.call(device, (given, args, kwargs))
            result = _gradients(out, inputs, device) if self.grad else leaves(out)
            shapes[:] = result if device != "cpu" else shapes
            return [t for t in result if isinstance(t, torch.Tensor)]

        try:
            with unseeded():
                compare_draws(draw, fetched)
            for have, want in zip(shapes, cpu.values, strict=True):
                check_metadata(have, want, cast=wide)
            check_strides(shapes, cpu.values, lambda: self.attempt(case, "meta").values)
        except Differs as error:
            return "wrong", "", f"{case.kind} sample {case.index}: {error}", set()
        except Exception as error:
            _settle(outcome)
            verdict = "refused" if self.cuda_claims else "native"
            return verdict, "" if self.cuda_claims else "raised", f"{case.kind} sample {case.index}: {_words(error)}", set()
        used = {name for name, count in COUNTERS.fallbacks.items() if count != before.get(name, 0)}
        return ("fallback" if used else "native"), "property", "", used


def _points_at_the_same(given: list[torch.Tensor], have: list[Any], want: list[Any]) -> bool:
    """Do two results that are indices, or (values, indices) with equal values, point at equal elements? torch does not say at which of
    several equal elements they point."""
    results = [*have, *want]
    if not given or len(have) != len(want) or not all(isinstance(t, torch.Tensor) for t in results) or have[-1].dtype != torch.int64:
        return False
    if len(have) > 2 or (len(have) == 2 and not torch.equal(have[0].nan_to_num(), want[0].nan_to_num())):
        return False
    source = given[0].resolve_conj().resolve_neg()
    return any(_chosen_alike(source, dim, have[-1], want[-1]) for dim in range(source.dim()))


def _chosen_alike(source: torch.Tensor, dim: int, have: torch.Tensor, want: torch.Tensor) -> bool:
    """Do the indices name elements along ``dim`` that are equal, each as often as the other names it?"""
    if have.dim() == source.dim() - 1:
        have, want = have.unsqueeze(dim), want.unsqueeze(dim)
    if have.dim() != source.dim() or not have.numel() or max(int(have.max()), int(want.max())) >= source.size(dim):
        return False
    if any(n > m for d, (n, m) in enumerate(zip(have.shape, source.shape, strict=True)) if d != dim):
        return False
    if have.size(dim) == source.size(dim) and not torch.equal(have.sort(dim)[0], want.sort(dim)[0]):
        return False
    return torch.equal(source.gather(dim, have).nan_to_num(), source.gather(dim, want).nan_to_num())


def _words(error: Exception | None) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


def _gradients(out: Any, inputs: list[torch.Tensor], device: str) -> list[Any]:
    """Gradients of the inputs for random cotangents of every differentiable result."""
    outs = [t for t in leaves(out) if isinstance(t, torch.Tensor) and t.requires_grad]
    wanted = [t for t in inputs if t.requires_grad]
    if not outs or not wanted:
        return []
    draws = torch.Generator().manual_seed(7)
    cotangents = [_cotangent(t, draws).to(device) for t in outs]
    return list(torch.autograd.grad(outs, wanted, cotangents, allow_unused=True))


def _cotangent(like: torch.Tensor, draws: torch.Generator) -> torch.Tensor:
    """The same numbers for every precision: such as bfloat16 holds."""
    if like.is_complex():
        return torch.randn(like.size(), dtype=torch.complex64, generator=draws).to(like.dtype)
    return torch.randn(like.size(), dtype=torch.float32, generator=draws).to(torch.bfloat16).to(like.dtype)


_ILL_CONDITIONED = {"cov", "nn.functional.multi_head_attention_forward"}
"""Operators with samples whose rounded arguments decide the leading digits: weights that all but cancel in the divisor, a softmax of sums
of thousands."""


_UNSTABLE_GRADIENTS = {"linalg.householder_product"}
"""Operators whose gradient torch computes by divisions that all but cancel: its error is a matter of luck, on the CPU as on the device."""


# --- cases that raise


_CUDA_RANK = "CUDA Tensors cannot have more than 25 dimensions"
"""A limit of CUDA's kernels that this device does not have."""


def _run_errors(op: OpInfo, outcome: Outcome) -> None:
    """torch's own list of calls that raise on CUDA: the class of the error is compared."""
    for index, (listed, same) in enumerate(_error_inputs(op)):
        error = _error_of(op, listed)
        what = f"sample {index}: {_words(error) if error else 'no error'} where CUDA raises {listed.error_type}: {listed.error_regex}"
        if isinstance(error, listed.error_type):
            outcome.add("native", "raised", "", set())
        elif error is None and _CUDA_RANK in listed.error_regex:
            outcome.add("native", "metadata", "", set())
        elif error is None and same is not None and _error_of(op, same) is None:
            outcome.add("native", "exact", "", set())  # the list is wrong: the CPU does not raise either
        else:
            outcome.add("wrong", "", what, set())
        if isinstance(error, WoolyError):
            _settle(outcome)


def _error_of(op: OpInfo, listed: Any) -> Exception | None:
    sample = listed.sample_input
    try:
        result = op(sample.input, *sample.args, **sample.kwargs)
        fetched([t for t in leaves(result) if isinstance(t, torch.Tensor)])
    except Exception as error:
        return error
    return None


def _error_inputs(op: OpInfo) -> Iterator[tuple[Any, Any]]:
    """Each of torch's calls that raise, on the device, with its counterpart on the CPU where both lists are equally long."""
    listed: Callable[..., Any] = op.error_inputs
    there, here = list(listed(DEVICE)), list(listed("cpu"))
    yield from zip(there, here if len(here) == len(there) else [None] * len(there), strict=True)
