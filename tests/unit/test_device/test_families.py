"""Calls that differ in sizes only: their plans come from one trace with symbols, and are those that the lowering makes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.unit.test_device.test_special import check
from wooly.counters import COUNTERS
from wooly.device import families
from wooly.device.symbolic import Concrete, Conditions, Size, compiled

Sizes = list[int]


def _tensor(*shape: int, kind: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape).remainder(7).sub(3).to(kind)


def _loss(n: int, m: int) -> tuple[Callable[..., Any], list[torch.Tensor]]:
    def gradient(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        F.cross_entropy(x, y).backward()
        assert x.grad is not None
        return x.grad

    return gradient, [_tensor(n, m), _tensor(n, kind=torch.int64).abs().clamp(max=m - 1)]


def _normed(n: int, m: int) -> tuple[Callable[..., Any], list[torch.Tensor]]:
    def gradient(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        F.layer_norm(x, (5,), weight).sin().sum().backward()
        assert x.grad is not None
        return x.grad

    return gradient, [_tensor(n, m, 5), _tensor(5)]


def _repeated(x: torch.Tensor) -> torch.Tensor:
    return x.unsqueeze(1).expand(-1, 3, -1, -1).reshape(-1, *x.shape[-2:])


CALLS: dict[str, Callable[[int, int], tuple[Callable[..., Any], list[torch.Tensor]]]] = {
    "add": lambda n, m: (torch.add, [_tensor(n, m), _tensor(m)]),
    "add in columns": lambda n, m: (torch.add, [_tensor(n, m).t(), _tensor(m, 1)]),
    "mul of a slice": lambda n, m: (lambda x, y: x[:, 1:] * y, [_tensor(n, m + 1), _tensor(n, m)]),
    "where": lambda n, m: (lambda x: torch.where(x > 0, x, 0.5), [_tensor(n, m)]),
    "cat": lambda n, m: (lambda x, y: torch.cat([x, y], 1), [_tensor(2, n, 3), _tensor(2, m, 3)]),
    "cat of heads": lambda n, m: (
        lambda x, y: torch.cat([x, y.transpose(1, 2)], -2), [_tensor(1, 2, n, 4), _tensor(1, m, 2, 4)],
    ),
    "attention": lambda n, m: (
        F.scaled_dot_product_attention, [_tensor(1, 2, n, 4) / 4, _tensor(1, 2, m, 4) / 4, _tensor(1, 2, m, 4)],
    ),
    "mm": lambda n, m: (torch.mm, [_tensor(n, 3), _tensor(3, m)]),
    "linear": lambda n, m: (F.linear, [_tensor(n, m, 3), _tensor(4, 3), _tensor(4)]),
    "bmm": lambda n, m: (torch.bmm, [_tensor(2, n, 3), _tensor(2, 3, m)]),
    "softmax": lambda n, m: (lambda x: torch.softmax(x, -1), [_tensor(n, m)]),
    "sum": lambda n, m: (lambda x: x.sum(0), [_tensor(n, m)]),
    "max": lambda n, m: (lambda x: x.max(1).values, [_tensor(n, m)]),
    "embedding": lambda n, m: (lambda w, i: F.embedding(i, w), [_tensor(5, 3), _tensor(n, m, kind=torch.int64).abs()]),
    "layer norm": _normed,
    "cross entropy": _loss,
    "convolution": lambda n, m: (lambda x, w: F.conv2d(x, w, stride=2, padding=1), [_tensor(2, 3, n + 3, m + 3), _tensor(4, 3, 3, 3)]),
    "repeated heads": lambda n, m: (_repeated, [_tensor(2, n, m)]),
    "cumsum": lambda n, m: (lambda x: x.cumsum(1), [_tensor(n, m)]),
    "ones": lambda n, m: (lambda x: x + torch.ones(n, m, device=x.device), [_tensor(m)]),
    "arange": lambda n, m: (lambda x: x + torch.arange(n, n + m, device=x.device), [_tensor(m)]),
    "pad": lambda n, m: (lambda x: F.pad(x, (1, m)), [_tensor(n, 3)]),
}  # fmt: skip


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The operators whose plans came from a symbolic plan, each compared with what the lowering makes; symbolic plans are made at once, and
    what other tests called is forgotten."""
    monkeypatch.setattr(families, "_MET_MIN", 1)
    names, forgotten = list[str](), set[families.Families]()
    at = families._SymbolicPlan.at
    plan = families.Families.plan

    def planned(self: families.Families, key: Any, values: Any) -> Any:
        if self not in forgotten:
            forgotten.add(self)
            self.families.clear()
        found = plan(self, key, values)
        if found.stencil is not None:
            before = COUNTERS.templates
            assert families._same(found, families.make_plan(self._info, values)), self._info.name
            COUNTERS.templates = before
        return found

    def made(self: families._SymbolicPlan, sizes: tuple[int, ...]) -> Any:
        found = at(self, sizes)
        if found is not None and self.proved:
            names.append(found.stencil.name)
        return found

    monkeypatch.setattr(families._SymbolicPlan, "at", made)
    monkeypatch.setattr(families.Families, "plan", planned)
    yield names


@pytest.mark.parametrize("name", CALLS)
def test_plans_for_other_sizes_are_those_of_the_lowering(name: str, compared: list[str]) -> None:
    draw = random.Random(name)
    for n, m in [(2, 3), (4, 5), (6, 7), (8, 9), *[(draw.randint(1, 12), draw.randint(1, 12)) for _ in range(12)]]:
        function, inputs = CALLS[name](n, m)
        check(function, *inputs)
    assert compared, "no size got its plan from others"


def test_a_growing_cache_is_lowered_some_times_and_then_no_more() -> None:
    def token(length: int) -> None:
        past, query = torch.empty(1, 2, length, 4, device="cuda"), torch.empty(1, 1, 2, 4, device="cuda").transpose(1, 2)
        keys = torch.cat([past, query], dim=-2)
        F.scaled_dot_product_attention(query, keys, keys)

    for length in range(50, 60):
        token(length)
    lowered, resized = COUNTERS.templates, COUNTERS.resized
    for length in range(60, 160):
        token(length)
    assert COUNTERS.templates == lowered
    assert COUNTERS.resized == resized + 200


WRONG: dict[str, tuple[Callable[[int, int], Any], type[Exception]]] = {
    "cat": (lambda n, m: torch.cat([torch.ones(n, 2, device="cuda"), torch.ones(2 * n, m, device="cuda")], 1), RuntimeError),
    "mm": (lambda n, m: torch.ones(3, n, device="cuda") @ torch.ones(m, 2, device="cuda"), RuntimeError),
    "add": (lambda n, m: torch.ones(n, device="cuda") + torch.ones(m, device="cuda"), RuntimeError),
    "loss": (
        lambda n, m: F.nll_loss(torch.ones(n, 4, device="cuda"), torch.zeros(m, dtype=torch.int64, device="cuda")), ValueError,
    ),
    "convolution": (lambda n, m: F.conv1d(torch.ones(1, n, 9, device="cuda"), torch.ones(2, m, 3, device="cuda")), RuntimeError),
    "loss of pairs": (
        lambda n, m: F.mse_loss(torch.ones(n, device="cuda"), torch.ones(m, device="cuda"), reduction="none"), RuntimeError,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.filterwarnings("ignore:Using a target size")
def test_sizes_that_do_not_fit_are_refused_as_ever(name: str) -> None:
    call, error = WRONG[name]
    if name == "cat":
        for n in range(2, 12):
            torch.cat([torch.ones(n, 2, device="cuda"), torch.ones(n, 3, device="cuda")], 1)
    else:
        for n in range(2, 12):
            call(n, n)
    with pytest.raises(error):
        call(20, 21)


def _size(value: int, text: str = "s0") -> Any:
    return Size(value, text, Conditions())


def test_a_symbol_computes_as_an_integer() -> None:
    x = _size(7)
    assert [(made.value, made.text) for made in (x + 2, 2 + x, x - 1, 9 - x, x * 3, 3 * x, x // 2, 20 // x, x % 4, 9 % x)] == [
        (9, "(s0 + 2)"), (9, "(2 + s0)"), (6, "(s0 - 1)"), (2, "(9 - s0)"), (21, "(s0 * 3)"), (21, "(3 * s0)"), (3, "(s0 // 2)"),
        (2, "(20 // s0)"), (3, "(s0 % 4)"), (2, "(9 % s0)"),
    ]  # fmt: skip
    assert x + 0 is x and 0 + x is x and x * 1 is x and x // 1 is x
    assert x * 0 == 0 and type(x * 0) is int


def test_what_is_asked_of_a_symbol_is_noted() -> None:
    conditions = Conditions()
    x, y = Size(7, "s0", conditions), Size(7, "s1", conditions)
    assert x == 7 and x != 8 and x > 3 and not x < 3 and x == y and bool(x) and max(x, 1) is x and (2, x) == (2, y)
    assert x == x and not conditions.texts.get("s0 == s0", False)
    assert list(conditions.texts) == ["s0 == 7", "s0 != 8", "s0 > 3", "not s0 < 3", "s0 == s1", "s0 != 0", "not s0 < 1"]
    function = compiled(["s0", "s1"], [], conditions, (x + y, [x, 4], None))
    assert function(7, 7) == (14, [7, 4], None)
    assert function(7, 8) is None


USES: dict[str, Callable[[Any], Any]] = {
    **{function.__name__: function for function in (hash, int, float, str, range)},
    "format": "{}".format,
    "index": lambda x: [1, 2][x],
    "repeat": lambda x: [0] * x,
    "quotient": lambda x: x / 2,
    "power": lambda x: 2**x,
    "set": lambda x: {x},
}


@pytest.mark.parametrize("name", USES)
def test_what_needs_the_value_of_a_symbol_is_refused(name: str) -> None:
    with pytest.raises(Concrete):
        USES[name](_size(1))


def test_unknown_symbols_follow_from_what_they_were_equal_to() -> None:
    conditions = Conditions()
    x, rows, half = (Size(value, text, conditions) for value, text in ((8, "s0"), (9, "o0"), (4, "o1")))
    assert (half * 2 + 1) == rows and not half != x // 2
    assert compiled(["s0"], ["o0", "o1"], conditions, (rows, half))(20) == (21, 10)
    with pytest.raises(Concrete):
        compiled(["s0"], ["o0", "o2"], conditions, (rows,))
