"""Random torch scripts on the device and on the CPU: ``python -m tests.property.fuzz_torch --seconds N [--seed S]``.

Every round writes a short script of views, in-place changes, aliasing, indexing, reductions and type promotion, and runs it twice. Values
are small integers (in every type) and the operations keep them exact, so the two runs must agree bit by bit, in type and shape as well;
what the CPU computes the device must, too. All tensors are compared at the end, some in between. A failure prints its seed and script.

May live here: the generator and the comparison. May not: operations whose results torch leaves open (duplicate writes, rounding).
"""

from __future__ import annotations

import argparse
import random
import time
import warnings
from collections.abc import Callable
from typing import Any, Final

import torch

from jit.engine import create_engine
from tests.support.loopback import LoopbackLink
from wooly.activation import activate
from wooly.config import Config

__all__ = ["Script", "one_round"]

FLOATS: Final = ("float32", "float64", "float16", "bfloat16")
INTS: Final = ("int64", "int32", "int16", "int8", "uint8")
DTYPES: Final = (*FLOATS, *INTS, "bool", "complex64")
N_TENSORS_MAX: Final = 12

_OPEN: Final = (
    "ZeroDivisionError",
    "out of bounds",
    "out of range",
    "ones in mask",
    "Index to scalar",
    "without overflow",
    "bool dtypes",
    "median()",
)
"""Errors of the CPU that are none on a device, or end its session (an assertion there)."""

Namespace = dict[str, Any]


def make(seed: int, shape: tuple[int, ...], dtype: str, device: str) -> torch.Tensor:
    """A tensor of integers in [-4, 4] (unsigned: [0, 4])."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(0 if dtype == "uint8" else -4, 5, shape, generator=generator)
    if dtype == "complex64":
        values = torch.complex(values.float(), torch.randint(-4, 5, shape, generator=generator).float())
    return (values > 0 if dtype == "bool" else values.to(getattr(torch, dtype))).to(device)


class Script:
    """A script in the making. It runs on the CPU as it is written, because the next line depends on the shapes so far."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.lines: list[str] = []
        self.names: Namespace = {"torch": torch, "make": make, "dev": "cpu", "F": torch.nn.functional}
        self.tensors: list[str] = []

    def write(self, line: str) -> bool:
        """Run a line and append it, unless it raised what need not be the same elsewhere: False, and the script ends before it."""
        error = _execute(line, self.names)
        if error and (line.count("out=") or any(word in error for word in _OPEN)):
            return False
        self.lines.append(line)
        name = line.split(" = ")[0]
        if " = " in line and name.isidentifier() and isinstance(self.names.get(name), torch.Tensor) and name not in self.tensors:
            self.tensors.append(name)
            self.tensors = self.tensors[-N_TENSORS_MAX:]
        return True

    def new(self) -> str:
        return f"t{len(self.lines)}"

    def value(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self.names[name]
        return tensor

    def pick(self) -> str:
        return self.rng.choice(self.tensors)

    def dim(self, name: str) -> int:
        rank = self.value(name).dim()
        return self.rng.randrange(-rank, rank) if rank else 0

    def shape(self) -> tuple[int, ...]:
        return tuple(self.rng.choice((0, 1, 2, 3, 3, 4, 5, 17)) for _ in range(self.rng.choice((0, 1, 1, 2, 2, 3))))

    def number(self) -> str:
        return self.rng.choice(("2", "-1", "0", "3", "True", "2.0", "-1.0", "0.5", "1", "1.0"))

    def other(self, name: str) -> str:
        """Something that mostly broadcasts with ``name``."""
        kind = self.rng.randrange(6)
        if kind == 0:
            return self.pick()
        if kind == 1:
            return self.number()
        shape = [1 if self.rng.random() < 0.25 else n for n in self.value(name).shape]
        if kind == 2:
            shape = shape[1:]
        if kind == 3:
            return name
        dtype = self.rng.choice(DTYPES) if self.rng.random() < 0.4 else str(self.value(name).dtype).removeprefix("torch.")
        return f"make({self.rng.randrange(99)}, {tuple(shape)}, {dtype!r}, dev)"


def _execute(line: str, names: Namespace) -> str:
    """Run one line; the error's type, or an empty string."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec(line, names)
    except Exception as error:  # any error is an answer: the other device must give one too
        return f"{type(error).__name__}: {error}"
    return ""


# --- what a script does; every function gives a line


def _fresh(s: Script) -> str:
    return f"{s.new()} = make({s.rng.randrange(99)}, {s.shape()}, {s.rng.choice(DTYPES)!r}, dev)"


def _view(s: Script) -> str:
    x, rng = s.pick(), s.rng
    d, e, size = s.dim(x), s.dim(x), s.value(x)
    n = size.shape[d] if size.dim() else 0
    a = rng.randint(0, n)
    tail = rng.choice(
        (
            f".transpose({d}, {e})",
            f".narrow({d}, {a}, {n - a})",
            f"[{a}:]",
            f"[..., ::{rng.choice((1, 2, 3))}]",
            f"[{rng.randint(-2, 2)}]",
            ".unsqueeze(0)",
            ".unsqueeze(-1)",
            ".squeeze()",
            ".reshape(-1)",
            ".flatten()",
            f".select({d}, {rng.randint(-1, 1)})",
            f".unfold({d}, {rng.choice(('1, 1', '2, 2', '2, 3'))})",
            ".diagonal()",
            f".expand({rng.choice((2, 3))}, *[-1] * {size.dim()})",
            ".mT",
            ".conj()",
            f".view_as(torch.empty_like({x}))",
            f".movedim({d}, {e})",
            ".detach()",
            f".chunk(2, {d})[-1]",
            f".unbind({d})[0]",
            ".real",
            ".imag",
            ".conj().imag",
            ".resolve_conj()",
            ".view(torch.uint8)",
            ".view(torch.int16)",
            ".data",
            f".as_strided((2,), (1,), {rng.randint(0, 2)})",
            ".clone()",
            ".contiguous()",
            ".view(-1)",
        )
    )
    return f"{s.new()} = {x}{tail}"


def _in_place(s: Script) -> str:
    x, rng = s.pick(), s.rng
    y, d = s.other(x), s.dim(x)
    n = s.value(x).shape[d] if s.value(x).dim() else 1
    index = f"torch.tensor({[rng.randrange(n) for _ in range(rng.randint(0, 4))] if n else []}, dtype=torch.int64, device=dev)"
    return rng.choice(
        (
            f"{x}.add_({y})",
            f"{x} += {y}",
            f"{x}.sub_({y}, alpha=2)",
            f"{x}.mul_({y}).clamp_(-8, 8)",
            f"{x}.copy_({s.pick()})",
            f"{x}.copy_({y})" if not y[0].isdigit() and y[0] not in "-T" else f"{x}.fill_({y})",
            f"{x}.zero_()",
            f"{x}.neg_()",
            f"{x}.abs_()",
            f"{x}.clamp_(-2, 3)",
            f"{x}.masked_fill_({x} > 0, {s.number()})",
            f"{x}[{x} > 1] = {rng.choice(('1', '0', 'True'))}",
            f"{x}[1:] = {s.pick()}",
            f"{x}[..., 0] = {s.number()}",
            f"{x}[{x} != 0] *= -1",
            f"{x}.index_add_({d}, {index}, {x}.index_select({d}, {index}))",
            f"{x}.index_put_(({index},), torch.ones((), dtype={x}.dtype, device=dev), accumulate=True)",
            f"{x}.index_fill_({d}, {index}, 2)",
            f"{x}.scatter_add_({d}, ({s.pick()}.long() % {max(n, 1)}), {x}.clone())",
            f"{x}[1:] = {x}[:-1].clone()",
            f"{x}[1:].add_({x}[:-1].clone())",
            f"{x}.transpose_(0, -1)",
            f"{x}.unsqueeze_(0)",
            f"{x}.squeeze_()",
            f"{x}.bitwise_xor_({y})",
            f"{x}.logical_not_()",
            f"{x}.fill_diagonal_(3)",
            f"{x}.tril_()",
            f"{x}.eq_({y})",
            f"torch.maximum({x}, {s.pick()}, out={s.pick()})",
            f"torch.add({x}, {y}, out={s.pick()})",
            f"torch.cat([{x}, {x}], out={s.pick()})",
            f"torch.sum({x}, 0, dtype=torch.float64, out={s.pick()})",
            f"{x}.addcmul_({s.pick()}, {y if y.startswith('make') else s.pick()}, value=1).clamp_(-8, 8)",
            f"{x}.swapdims_(0, -1).copy_({x}.clone())",
            f"{x}.masked_scatter_({x} > 0, make(5, (400,), str({x}.dtype)[6:], dev))",
            f"torch._foreach_add_([{x}, {x}.clone()], 1)",
            f"{x}.view(-1)[::2].add_(1)",
            f"{x}.T.add_({x})",
            f"{x}.add_({x}.T)",
            f"{x}.copy_({x}.flip(0))",
            f"{x}.cumsum_(0).clamp_(-8, 8)" if s.value(x).dtype != torch.bool else f"{x}.zero_()",
            f"{x}.set_({s.pick()})" if rng.random() < 0.2 else f"{x}.mul_({s.number()})",
        )
    )


def _compute(s: Script) -> str:
    x, rng = s.pick(), s.rng
    y, d = s.other(x), s.dim(x)
    keep = rng.choice((True, False))
    n = s.value(x).shape[d] if s.value(x).dim() else 1
    index = f"torch.tensor({[rng.randrange(n) for _ in range(rng.randint(0, 4))] if n else []}, dtype=torch.int64, device=dev)"
    small = ".clamp(-8, 8)"
    expression = rng.choice(
        (
            f"{x} + {y}",
            f"{y} - {x}",
            f"({x} * {y})",
            f"torch.maximum({x}, {s.pick()})",
            f"torch.where({x} > 0, {x}, {y})",
            f"torch.where({x}.bool(), {s.pick()}, {s.number()})",
            f"{x} {rng.choice(('==', '<', '>=', '!='))} {y}",
            f"{x} {rng.choice(('&', '|', '^'))} {y}",
            f"~{x}",
            f"-{x}",
            f"abs({x})",
            f"{x}.sign()",
            f"{x} // {rng.choice(('2', '-3', '2.0'))}",
            f"{x} % {rng.choice(('2', '-3', '3.0'))}",
            f"{x}.fmod({rng.choice(('2', '-3'))})",
            f"{x}.div({rng.choice(('2', '4.0'))})",
            f"torch.div({x}, 2, rounding_mode='trunc')",
            f"{x}.sum({d}, keepdim={keep}){small}",
            f"{x}.sum(){small}",
            f"{x}.sum({d}, dtype=torch.float64){small}",
            f"{x}.amax({d}, keepdim={keep})",
            f"{x}.max({d})[0]",
            f"{x}.min()",
            f"{x}.any({d})",
            f"{x}.all()",
            f"{x}.count_nonzero({d})",
            f"{x}.cumsum({d}){small}",
            f"{x}.sort({d}, stable=True)[{rng.choice((0, 1))}]",
            f"{x}.argsort({d}, descending=True, stable=True)",
            f"{x}.cummax({d})[0]",
            f"{x}.unique()",
            f"{x}.nonzero()",
            f"{x}[{x} > 0]",
            f"{x}[{index}]",
            f"{x}[..., {index}]",
            f"{x}.index_select({d}, {index})",
            f"{x}.gather({d}, {s.pick()}.long() % {max(n, 1)})",
            f"{x}.take({s.pick()}.long() % max({x}.numel(), 1))",
            f"torch.cat([{x}, {s.pick()}], {d})",
            f"torch.stack([{x}, {x}], {d})",
            f"{x}.flip({d})",
            f"{x}.roll({rng.randint(-3, 3)}, {d})",
            f"{x}.repeat_interleave(2, {d})",
            f"{x}.repeat(*[2] * {s.value(x).dim()})[:9]",
            f"{x}.tril({rng.randint(-1, 1)})",
            f"{x}.to(torch.{rng.choice(FLOATS + INTS[:3] + ('bool',))})",
            f"{x}.type_as({s.pick()})" if not s.value(x).is_complex() else f"{x}.abs()",
            f"torch.zeros_like({x}) + {y}",
            f"{x}.new_full((2, 3), 2)",
            f"torch.arange({rng.randint(0, 6)}, device=dev) * {x}.long()[..., :1]",
            f"({x} @ {s.pick()}){small}",
            f"({x}.float() @ {x}.float().mT){small}",
            f"torch.einsum('...i,...i->...', {x}.double(), {x}.double()){small}",
            f"F.pad({x}, (1, 2), value=3)",
            f"{x}.isfinite()",
            f"{x}.nan_to_num()",
            f"{x}.diff(dim={d})",
            f"torch.outer({x}.flatten()[:5], {x}.flatten()[:3]){small}",
            f"F.one_hot({x}.long() % 3, 3)",
            f"torch.bincount({x}.long().flatten() % 4)",
            f"F.relu({x})",
            f"{x}.clamp(min={s.pick()})",
            f"{x}.trunc()",
            f"{x}.round()",
            f"{x}.pow(2){small}",
            f"{x}.square(){small}",
            f"torch.lerp({x}, {x} + 2, 0.5)",
            f"{x}.prod({d}){small}",
            f"torch.bucketize({x}, torch.arange(3, device=dev).to({x}.dtype))",
            f"{x}.topk(1, {d})[0]",
            f"{x}.kthvalue(1, {d})[0]",
            f"{x}.median({d})[0]",
            f"{x}.logical_xor({y})" if not y[0].isdigit() and y[0] not in "-T" else f"{x}.logical_not()",
            f"torch.logical_and({x}, {s.pick()})",
            f"torch.complex({x}.float(), {x}.float())",
            f"{x} + 1j",
            f"torch.tensor({x}.tolist(), device=dev)",
            f"torch.tensor({x}.flatten()[:1].sum().item(), device=dev)",
            f"{x}.rot90() if {x}.dim() > 1 else {x}",
            f"torch.autograd.grad(({x}.double().requires_grad_() * 2 + 1).sum(), []) or {x}",
            f"F.max_pool1d({x}.double().reshape(1, -1), 2)",
            f"F.embedding({x}.long() % 4, make(3, (4, 3), 'float32', dev))",
            f"{x}.mean({d}) * {n}" if n in (1, 2, 4) else f"{x}.argmax()",
            f"torch.vmap(lambda r: r + 1)({x})",
            f"{x}.__array__().sum() if dev == 'cpu' else {x}.cpu().__array__().sum()",
        )
    )
    return f"{s.new()} = {expression}"


_WRITERS: Final[tuple[Callable[[Script], str], ...]] = (
    _fresh,
    _view,
    _view,
    _view,
    _in_place,
    _in_place,
    _in_place,
    _compute,
    _compute,
    _compute,
)


def _write(seed: int, n_lines: int) -> Script:
    script = Script(seed)
    script.write(_fresh(script))
    while len(script.lines) < n_lines and script.write(script.rng.choice(_WRITERS)(script)):
        pass
    return script


def _differs(ours: torch.Tensor, want: torch.Tensor) -> str:
    if ours.dtype != want.dtype or ours.shape != want.shape:
        return f"is {ours.dtype} {tuple(ours.shape)}, expected {want.dtype} {tuple(want.shape)}"
    if ours.device.type != "cuda":
        return f"is on {ours.device}"
    here = ours.cpu()
    if want.dtype == torch.complex32:  # not comparable itself
        here, want = here.to(torch.complex64), want.to(torch.complex64)
    if not torch.allclose(here, want, rtol=0, atol=0, equal_nan=True):
        return f"is {here.tolist()}, expected {want.tolist()}"
    return ""


def one_round(seed: int, n_lines: int = 14) -> str:
    """Write and run the script of ``seed``; what went wrong, or an empty string."""
    script = _write(seed, n_lines)
    names: Namespace = {**{k: script.names[k] for k in ("torch", "make", "F")}, "dev": "cuda"}
    complaint = ""
    # The CPU's run is repeated beside the device's, so that both can be compared in between.
    cpu: Namespace = {**names, "dev": "cpu"}
    for number, line in enumerate(script.lines):
        want, got = _execute(line, cpu), _execute(line, names)
        if want and not got:  # a device may know more types; what it must not do is take what it later refuses
            got = _execute("torch.cuda.synchronize()", names)
            return _report(seed, script.lines[: number + 1], f"line {number + 1} raised {got} later") if got else ""
        if got and not want:
            if "single memory location" in got:  # refused on the device, left open by torch's CPU kernels
                return ""
            complaint = f"raised {got}, expected nothing"
        name = line.split(" = ")[0]
        if not complaint and script.rng.random() < 0.15 and isinstance(cpu.get(name), torch.Tensor):
            complaint = _differs(names[name], cpu[name])
        if complaint:
            return _report(seed, script.lines[: number + 1], f"line {number + 1} {complaint}")
    for name in [n for n, v in cpu.items() if isinstance(v, torch.Tensor)]:
        complaint = _differs(names[name], cpu[name])
        if complaint:
            return _report(seed, script.lines, f"{name} {complaint}")
    return ""


def _report(seed: int, lines: list[str], complaint: str) -> str:
    return "\n".join((f"seed {seed}: {complaint}", *(f"  {line}" for line in lines)))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--seconds", type=float, default=60)
    arguments.add_argument("--rounds", type=int, default=None, help="so many instead of --seconds")
    arguments.add_argument("--seed", type=int, default=None, help="the first round's; without --rounds the only one")
    arguments.add_argument("--lines", type=int, default=14)
    arguments.add_argument("--backend", default="host")
    options = arguments.parse_args()
    torch.set_num_threads(1)
    engine = create_engine(options.backend, cache_dir=None, threads=1, vram_bytes=1 << 30)
    link = LoopbackLink(engine)
    activate(Config(), lambda: link)
    first = options.seed if options.seed is not None else time.time_ns() % (1 << 40)
    rounds = options.rounds or (1 if options.seed is not None else None)
    end, current, failed = time.monotonic() + options.seconds, first, 0
    while (current < first + rounds) if rounds else (time.monotonic() < end):
        try:
            complaint = one_round(current, options.lines)
        except Exception:  # what the node refused ends the session: there is nothing to go on with
            print(_report(current, _write(current, options.lines).lines, "the session ended"))
            raise
        link.forget_fault()
        if complaint:
            failed += 1
            print(complaint, flush=True)
        current += 1
    print(f"{current - first} scripts from seed {first}; {failed} disagree")
    link.close()
    engine.close()
    if failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
