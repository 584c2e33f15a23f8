"""Runs a program on the device and compares everything that it leaves with what the CPU left.

Exact values must be equal, bit by bit. Rounded ones are first compared by a tolerance of some units in the last place. When they differ by
more, the program runs on the CPU again, several times, with every result of every operation changed by a unit in its last place at random:
the spread of these runs says how far a right result may be away. What even then branches differently says nothing, and is counted as
undecided.
"""

from __future__ import annotations

import contextlib
import math
import re
from dataclasses import dataclass
from typing import Any, Final

import torch

from tests.programs import leaves
from tests.programs.script import NAME, Line, Namespace, Program, Script, execute_line, namespace
from tests.support.rounding import RoundsOtherwise

__all__ = ["Verdict", "check", "rerun"]

RUNS_PERTURBED: Final = 6
SLACK: Final = 32.0
"""How many times the spread of the perturbed runs a right result may be away."""
NEARNESS: Final = 16.0
"""How many times the CPU's own distance from the values in double precision a right result may be away from them."""
_ZERO: Final = re.compile(r"-(?=0\.?0*(e[+-]\d+)?(?![\d.]))")
_HALVES: Final = re.compile(r"\b(float32|float16|bfloat16)\b")
_CASTS: Final = re.compile(r"\b(float|half|bfloat16)\(\)")
_ULPS: Final = {torch.float64: 2e-13, torch.float32: 1e-5, torch.float16: 8e-3, torch.bfloat16: 6e-2}
_EPS: Final = {torch.float64: 2.3e-16, torch.float32: 1.2e-7, torch.float16: 9.8e-4, torch.bfloat16: 7.9e-3}
_SESSION_ENDS: Final = frozenset(
    ("SessionLostError", "NodeLostError", "RefusedError", "DeviceAssertError", "AcceleratorError", "OutOfFuelError", "MalformedBatch")
)

Leaves = dict[str, Any]


@dataclass
class Verdict:
    """``kind``: "", "wrong", "raised", "silent" (the CPU raised, the device did not), "lost" (session), "refused" (a batch, by a
    node), "undecided". ``n_lines``: how many lines of the program matter."""

    kind: str = ""
    text: str = ""
    n_lines: int = 0

    @property
    def failed(self) -> bool:
        return self.kind not in ("", "undecided")

    @property
    def ends(self) -> bool:
        """The session cannot be used for other programs."""
        return self.kind in ("lost", "refused")


def leaves_of(names: Namespace) -> Leaves:
    """Everything that a program's names hold, by path: tensors, gradients, states of modules and optimisers, plain values."""
    found: Leaves = {}
    for name in sorted(n for n in names if NAME.fullmatch(n)):
        _collect(name, names[name], found)
    return found


def _collect(path: str, value: Any, found: Leaves) -> None:
    if isinstance(value, torch.Tensor):
        try:
            is_leaf = value.is_leaf
        except RuntimeError as error:  # a view that autograd took away: its base has been changed in a way that it cannot follow
            found[path] = type(error).__name__
            return
        found[path] = value
        if is_leaf and value.grad is not None:
            found[path + ".grad"] = value.grad
    elif isinstance(value, torch.nn.Module):
        for key, tensor in (*value.named_parameters(), *value.named_buffers()):
            _collect(f"{path}.{key}", tensor, found)
    elif isinstance(value, torch.optim.Optimizer):
        for i, state in enumerate(value.state.values()):
            _collect(f"{path}[{i}]", state, found)
    elif isinstance(value, dict):
        for key, item in value.items():
            _collect(f"{path}[{key!r}]", item, found)
    elif isinstance(value, list | tuple):
        found[path + ".length"] = len(value)
        for i, item in enumerate(value):
            _collect(f"{path}[{i}]", item, found)
    elif not callable(value):
        found[path] = value


def check(script: Script, device: str = "cuda") -> Verdict:
    """Run the program of a script, which has run on the CPU, on the device."""
    return _check(script.program, script.names, device)


def rerun(program: Program, device: str = "cuda") -> Verdict:
    """Run a program on the CPU, then on the device; what each line raises is taken from the first run."""
    names = namespace("cpu")
    torch.manual_seed(program.seed % (1 << 32))
    for line in program.lines:
        error = execute_line(line.text, names)
        line.set_error(error)
    return _check(program, names, device)


def _check(program: Program, cpu: Namespace, device: str) -> Verdict:
    ours = namespace(device)
    torch.manual_seed(program.seed % (1 << 32))
    for number, line in enumerate(program.lines, 1):
        error = execute_line(line.text, ours)
        verdict = _judge_error(line, error)
        if verdict is not None:
            verdict.n_lines = number
            return verdict
    try:
        fetched = _fetch(leaves_of(ours))
    except Exception as error:  # reading is where a device reports what went wrong before
        return Verdict("lost", f"reading raised {_described(error)}", len(program.lines))
    verdict = _compare(program, leaves_of(cpu), fetched, device)
    verdict.n_lines = len(program.lines)
    return verdict


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error)[:300]}"


def _judge_error(line: Line, error: BaseException | None) -> Verdict | None:
    wanted, text = line.error, line.text
    if error is not None and any(kind.__name__ in _SESSION_ENDS for kind in type(error).__mro__):
        return Verdict("lost", f"{text!r} raised {_described(error)}")
    if error is not None and "single memory location" in str(error):  # refused on a device, left open by torch's CPU kernels
        return Verdict()
    if error is None and line.by_layout:
        return Verdict()
    if error is None:
        return Verdict("silent", f"{text!r} raised nothing, expected {wanted}") if wanted else None
    if wanted in {kind.__name__ for kind in type(error).__mro__}:
        return None
    return Verdict("raised", f"{text!r} raised {_described(error)}, expected {wanted or 'nothing'}")


def _fetch(leaves: Leaves) -> Leaves:
    """Tensors of the device as (where it was, copy), in one wait."""
    from wooly.device import transfer

    paths = [path for path, value in leaves.items() if isinstance(value, torch.Tensor)]
    copies = transfer.fetch_all([leaves[path].detach() for path in paths])
    fetched = dict(leaves)
    fetched.update({path: _Copy(leaves[path], copy) for path, copy in zip(paths, copies, strict=True)})
    return fetched


class _Copy:
    """A device tensor's metadata, and its values here."""

    def __init__(self, ours: torch.Tensor, copy: torch.Tensor) -> None:
        self.ours, self.copy = ours, copy


def _compare(program: Program, want: Leaves, got: Leaves, device: str) -> Verdict:
    if want.keys() != got.keys():
        return Verdict("wrong", f"values that only one has: {sorted(want.keys() ^ got.keys())}")
    doubtful: list[tuple[str, str]] = []
    for path, value in want.items():
        rounded = _root(path) in program.rounded
        other = got[path]
        if isinstance(value, torch.Tensor):
            problem = _metadata(value, other, device)
            if problem:
                return Verdict("wrong", f"{path} {problem}")
            problem = _values(value.detach(), other.copy, rounded)
        else:
            problem = _plain(value, other, rounded)
        if problem and not rounded:
            return Verdict("wrong", f"{path} {problem}")
        if problem:
            doubtful.append((path, problem))
    return _decide(program, want, got, doubtful) if doubtful else Verdict()


def _root(path: str) -> str:
    found = NAME.match(path)
    assert found is not None
    return found.group()


def _metadata(want: torch.Tensor, got: Any, device: str) -> str:
    if not isinstance(got, _Copy):
        return f"is a {type(got).__name__}"
    ours = got.ours
    if ours.dtype != want.dtype or ours.shape != want.shape:
        return f"is {ours.dtype} {tuple(ours.shape)}, expected {want.dtype} {tuple(want.shape)}"
    if _strides(ours) != _strides(want):
        return f"has strides {ours.stride()}, expected {want.stride()}"
    if ours.device.type != device and want.dim():
        return f"is on {ours.device}"
    differentiable = want.is_floating_point() or want.is_complex()  # an integer that a graph's value was written to may be either
    if differentiable and (ours.requires_grad, ours.is_leaf) != (want.requires_grad, want.is_leaf):
        return f"requires_grad, is_leaf is {ours.requires_grad}, {ours.is_leaf}, expected {want.requires_grad}, {want.is_leaf}"
    return ""


def _strides(x: torch.Tensor) -> list[int]:
    """The strides that mean something."""
    return [stride for size, stride in zip(x.size(), x.stride(), strict=True) if size > 1] if x.numel() else []


def _values(want: torch.Tensor, got: torch.Tensor, rounded: bool) -> str:
    if want.dtype == torch.complex32:  # not comparable itself
        got, want = got.to(torch.complex64), want.to(torch.complex64)
    if torch.equal(got, want):
        return ""
    tolerance = _ULPS.get(want.real.dtype if want.is_complex() else want.dtype, 0.0) if rounded else 0.0
    largest = _largest(want) if tolerance else 0.0
    least = _OF_WHAT_CANCELS.get(want.dtype, 0.0) if tolerance else 0.0
    if torch.allclose(got, want, rtol=tolerance, atol=max(tolerance * min(largest, 1.0), least), equal_nan=True):
        return ""
    return f"is {_shown(got)}, expected {_shown(want)}"


_OF_WHAT_CANCELS: Final = {torch.float64: 1e-15, torch.float32: 1e-7}
"""The rounding of what would be 0 and is made of numbers around 1: 1 - tanh(x) ** 2, the gradient of the norm of what is normalised."""


def _largest(x: torch.Tensor) -> float:
    finite = x[torch.isfinite(x)] if x.numel() else x
    return float(finite.abs().max()) if finite.numel() else 0.0


def _shown(x: torch.Tensor) -> str:
    return str(x.tolist()) if x.numel() <= 32 else f"{str(x.flatten()[:32].tolist())[:-1]}, ...]"


def _plain(want: Any, got: Any, rounded: bool) -> str:
    if type(want) is not type(got):
        return f"is a {type(got).__name__}, expected a {type(want).__name__}"
    if want == got or (want != want and got != got):
        return ""
    if rounded and isinstance(want, float | complex):
        return "" if abs(want - got) <= 1e-5 * max(abs(want), 1) else f"is {got}, expected {want}"
    if isinstance(want, str):
        moved = want.replace("cpu", "cuda:0")
        if moved == got or (_ZERO.search(moved + got) and _unsigned_zeros(moved) == _unsigned_zeros(got)):
            return ""
    return f"is {got!r}, expected {want!r}"


def _unsigned_zeros(text: str) -> str:
    """A tensor's text without the signs of its zeros (which one ``relu`` gives is not specified), and without the spaces for alignment."""
    return _ZERO.sub("", text).replace(" ", "")


# --- how far a right result may be away
def _decide(program: Program, want: Leaves, got: Leaves, doubtful: list[tuple[str, str]]) -> Verdict:
    """Judge rounded values by runs on the CPU whose results are perturbed, and by one in double precision."""
    runs, truth = [_perturbed(program, seed) for seed in range(RUNS_PERTURBED)], _in_double(program)
    for path, problem in doubtful:
        base = want[path]
        values: list[Any] = [run.get(path) for run in runs]
        if not isinstance(base, torch.Tensor):
            alike = _plainly_within(base, got[path], values)
        elif all(isinstance(v, torch.Tensor) and v.shape == base.shape and v.dtype == base.dtype for v in values):
            copy = got[path].copy
            alike = _within(base.detach(), copy, values) or _as_near(base.detach(), copy, truth.get(path))
        else:
            alike = None
        if not alike:
            return Verdict("undecided" if alike is None else "wrong", f"{path} {problem}")
    return Verdict()


def _plainly_within(base: Any, got: Any, runs: list[Any]) -> bool | None:
    """The same of a number; None when the perturbed runs have other values of a kind that has no distance."""
    if isinstance(base, float | complex):
        return bool(abs(got - base) <= SLACK * max(abs(base - v) if isinstance(v, float | complex) else math.inf for v in runs))
    return None if any(v != base for v in runs) else False


def _within(base: torch.Tensor, got: torch.Tensor, runs: list[torch.Tensor]) -> bool:
    """Whether ``got`` is as near to ``base`` as runs with perturbed values are."""
    wide = torch.complex128 if base.is_complex() else torch.float64
    if not (base.is_floating_point() or base.is_complex()):
        return any(not torch.equal(run, base) for run in runs)
    here, there = base.to(wide), got.to(wide)
    spread = torch.stack([(run.detach().to(wide) - here).abs() for run in runs])
    unsure = ~torch.isfinite(spread).all(0) & ~(torch.isnan(here) & torch.isnan(there))
    spread = spread.nan_to_num(0.0, 0.0).amax(0)
    spread = spread + 0.5 * (spread.mean() if spread.numel() else 0.0)
    eps = _EPS.get(base.real.dtype if base.is_complex() else base.dtype, 0.0)
    # What cancels leaves 0, or a part of a unit in the last place of what was subtracted.
    near = (there - here).abs() <= SLACK * spread + 8 * eps * here.abs() + 0.05 * eps
    same = (there == here) | (torch.isnan(there) & torch.isnan(here))
    return bool((near | same | unsure).all())


def _as_near(cpu: torch.Tensor, ours: torch.Tensor, truth: Any) -> bool:
    """Whether ``ours`` is about as near to the values in double precision as the CPU's own result is."""
    if (
        not isinstance(truth, torch.Tensor)
        or truth.shape != cpu.shape
        or not (cpu.is_floating_point() or cpu.is_complex())
        or not cpu.numel()
    ):
        return False
    wide = torch.complex128 if cpu.is_complex() or truth.is_complex() else torch.float64
    right = truth.detach().to(wide)
    error, cpu_error = (ours.to(wide) - right).abs().max(), (cpu.to(wide) - right).abs().max()
    return bool(error <= NEARNESS * cpu_error)


def _in_double(program: Program) -> Leaves:
    """What the program leaves on the CPU with every floating type replaced by double precision."""
    names = namespace("cpu")
    names["module"] = lambda seed, build, device: leaves.module(seed, build, device)
    torch.manual_seed(program.seed % (1 << 32))
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        for line in program.lines:
            execute_line(_HALVES.sub("float64", _CASTS.sub("double()", line.text)).replace("complex64", "complex128"), names)
    finally:
        torch.set_default_dtype(default)
    return leaves_of(names)


def _perturbed(program: Program, seed: int) -> Leaves:
    """What the program leaves on the CPU when every floating result is changed by about a unit in its last place."""
    names = namespace("cpu")
    torch.manual_seed(program.seed % (1 << 32))
    noise = torch.Generator().manual_seed(seed)
    for line in program.lines:
        rounded = program.rounded.intersection(NAME.findall(line.text))
        with RoundsOtherwise(seed) if rounded else contextlib.nullcontext():
            execute_line(line.text, names)
        for name in rounded:
            value = names.get(name)
            if value is not None:
                for path, leaf in _one(name, value).items():
                    if isinstance(leaf, torch.Tensor) and "step" not in path:
                        _disturb(leaf, noise)
    return leaves_of(names)


def _one(name: str, value: Any) -> Leaves:
    found: Leaves = {}
    _collect(name, value, found)
    return found


def _disturb(x: torch.Tensor, noise: torch.Generator) -> None:
    plain = x.detach()
    if plain.is_conj() or plain.is_neg() or not (plain.is_floating_point() or plain.is_complex()):
        return
    eps = _EPS.get(plain.real.dtype if plain.is_complex() else plain.dtype, 0.0)
    factor = 1 + eps * (2 * torch.rand(plain.shape, generator=noise, dtype=torch.float64) - 1)
    try:
        plain.data.copy_(plain * factor)
    except RuntimeError:  # elements that share memory
        return
