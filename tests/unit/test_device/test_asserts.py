"""Values that CUDA's kernels assert on the device: the same calls raise here, naming operation, index and size, or what was wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.support.device import link
from wooly.device.recorder import RECORDER
from wooly.errors import DeviceAssertError
from wooly.link import Flush

X = torch.arange(12.0).reshape(4, 3)
Call = Callable[[torch.Tensor, Callable[..., torch.Tensor]], Any]


def here(*values: Any) -> torch.Tensor:
    return torch.tensor(list(values), device="cuda")


@pytest.fixture(autouse=True)
def other_session() -> Iterator[None]:
    """A trap ends the session; the next test has another."""
    yield
    link().forget_fault()


OUT_OF_BOUNDS: dict[str, tuple[Call, str]] = {
    "gather, negative": (
        lambda x, i: torch.gather(x, 0, i([-1, 0, 0])),
        "index -1 is out of bounds for dimension 0 with size 4 (aten::gather)",
    ),
    "gather": (
        lambda x, i: torch.gather(x, 1, i([5], [0], [9], [3])),
        "index 3 is out of bounds for dimension 1 with size 3 (aten::gather)",
    ),
    "index_select": (lambda x, i: x.index_select(0, i(0, 7)), "index 7 is out of bounds for dimension 0 with size 4 (aten::index_select)"),
    "index_select, negative": (
        lambda x, i: x.index_select(1, i(-1)),
        "index -1 is out of bounds for dimension 1 with size 3 (aten::index_select)",
    ),
    "index": (lambda x, i: x[:, i(7)], "index 7 is out of bounds for dimension 1 with size 3 (aten::index.Tensor)"),
    "index of two": (lambda x, i: x[i(0, -5), i(1, 1)], "index -5 is out of bounds for dimension 0 with size 4 (aten::index.Tensor)"),
    "index_put": (
        lambda x, i: x.index_put((i(0), i(-4)), x[0, 0]),
        "index -4 is out of bounds for dimension 1 with size 3 (aten::index_put)",
    ),
    "take": (lambda x, i: torch.take(x, i(12)), "index 12 is out of bounds for dimension 0 with size 12 (aten::take)"),
    "put": (lambda x, i: x.put(i(-13), x[0, :1]), "index -13 is out of bounds for dimension 0 with size 12 (aten::put)"),
    "scatter": (
        lambda x, i: x.scatter(0, i([-1, 0, 0]), 1.0),
        "index -1 is out of bounds for dimension 0 with size 4 (aten::scatter.value)",
    ),
    "scatter_": (lambda x, i: x.scatter_(1, i([3]), 1.0), "index 3 is out of bounds for dimension 1 with size 3 (aten::scatter_.value)"),
    "scatter_add": (
        lambda x, i: x.scatter_add(0, i([4, 0, 0]), x),
        "index 4 is out of bounds for dimension 0 with size 4 (aten::scatter_add)",
    ),
    "scatter_reduce": (
        lambda x, i: x.scatter_reduce(0, i([-1, 0, 0]), x, "amax"),
        "index -1 is out of bounds for dimension 0 with size 4 (aten::scatter_reduce.two)",
    ),
    "index_add": (lambda x, i: x.index_add(0, i(-1), x[:1]), "index -1 is out of bounds for dimension 0 with size 4 (aten::index_add)"),
    "index_copy": (lambda x, i: x.index_copy(0, i(4), x[:1]), "index 4 is out of bounds for dimension 0 with size 4 (aten::index_copy)"),
    "index_fill": (
        lambda x, i: x.index_fill(0, i(-5), 1),
        "index -5 is out of bounds for dimension 0 with size 4 (aten::index_fill.int_Scalar)",
    ),
    "index_reduce": (
        lambda x, i: x.index_reduce(0, i(-1), x[:1], "amax"),
        "index -1 is out of bounds for dimension 0 with size 4 (aten::index_reduce)",
    ),
    "embedding": (lambda x, i: F.embedding(i(1, -100), x), "index -100 is out of bounds for dimension 0 with size 4 (aten::embedding)"),
    "embedding of i32": (
        lambda x, i: F.embedding(i(-1).int(), x),
        "index -1 is out of bounds for dimension 0 with size 4 (aten::embedding)",
    ),
    "embedding_bag": (
        lambda x, i: F.embedding_bag(i([4]), x),
        "index 4 is out of bounds for dimension 0 with size 4 (aten::_embedding_bag",
    ),
    "cross_entropy": (
        lambda x, i: F.cross_entropy(x, i(0, 3, 0, 0)),
        "index 3 is out of bounds for dimension 1 with size 3 (aten::nll_loss_forward)",
    ),
    "cross_entropy, negative": (
        lambda x, i: F.cross_entropy(x, i(0, -1, 0, 0)),
        "index -1 is out of bounds for dimension 1 with size 3 (aten::nll_loss_forward)",
    ),
    "nll_loss2d": (
        lambda x, i: F.nll_loss(x.reshape(1, 3, 2, 2), i([[0, 0], [-7, 0]])),
        "index -7 is out of bounds for dimension 1 with size 3 (aten::nll_loss2d_forward)",
    ),
    "one_hot": (lambda x, i: F.one_hot(i(3, 0), 3), "index 3 is out of bounds for dimension 1 with size 3 (aten::scatter_.value)"),
    "multi_margin_loss": (
        lambda x, i: F.multi_margin_loss(x, i(-1, 0, 0, 0)),
        "index -1 is out of bounds for dimension 1 with size 3 (aten::multi_margin_loss)",
    ),
    "max_unpool2d": (
        lambda x, i: F.max_unpool2d(x[:1, :1].reshape(1, 1, 1, 1), i([[[99]]]), 2),
        "index 99 is out of bounds for dimension 2 with size 4 (aten::max_unpool2d)",
    ),
    "far away": (
        lambda x, i: torch.take(x, i(1 << 60)),
        "index 8796093022207 or more is out of bounds for dimension 0 with size 12 (aten::take)",
    ),
}


@pytest.mark.parametrize("name", OUT_OF_BOUNDS)
def test_an_index_out_of_bounds_is_named(name: str) -> None:
    call, text = OUT_OF_BOUNDS[name]
    with pytest.raises(DeviceAssertError) as caught:
        call(X.cuda(), here)
        torch.cuda.synchronize()
    assert f"CUDA error: device-side assert triggered: {text}" in str(caught.value)


def test_negative_indices_count_from_the_end_where_torch_says_so() -> None:
    def run(device: str) -> list[torch.Tensor]:
        x, last = X.to(device), torch.tensor([-1], device=device)
        results = [x[last], x[:, last], torch.take(x, last), x.index_fill(0, last, 5.0), x.put(last, x[0, :1])]
        return [r.cpu() for r in (*results, x.index_put((last,), x[:1]), x.index_put((last, last), x[0, :1], accumulate=True))]

    torch.testing.assert_close(run("cuda"), run("cpu"))


NAN, INF = math.nan, math.inf
WRONG_VALUES: dict[str, tuple[Callable[[], Any], str]] = {
    "bce, input": (
        lambda: F.binary_cross_entropy(here(0.5, 1.5), here(1.0, 1.0)),
        "all elements of input should be between 0 and 1 (aten::binary_cross_entropy)",
    ),
    "bce, nan": (lambda: F.binary_cross_entropy(here(NAN), here(1.0)), "all elements of input should be between 0 and 1"),
    "bce, target": (lambda: F.binary_cross_entropy(here(0.5), here(-0.1)), "all elements of target should be between 0 and 1"),
    "multinomial, negative": (
        lambda: torch.multinomial(here(-1.0, 2.0), 1),
        "probability tensor contains either `inf`, `nan` or element < 0 (aten::multinomial)",
    ),
    "multinomial, nan": (
        lambda: torch.multinomial(here([0.5, 0.5], [NAN, 1.0]), 1),
        "probability tensor contains either `inf`, `nan` or element < 0",
    ),
    "multinomial, inf": (
        lambda: torch.multinomial(here(INF, 1.0), 4, replacement=True),
        "probability tensor contains either `inf`, `nan` or element < 0",
    ),
    "multinomial, zeros": (
        lambda: torch.multinomial(here([1.0, 0.0], [0.0, 0.0]), 1),
        "invalid multinomial distribution (sum of probabilities <= 0)",
    ),
    "multinomial, zeros drawn again": (lambda: torch.multinomial(here(0.0, 0.0), 3, replacement=True), "invalid multinomial distribution"),
    "bernoulli": (lambda: torch.bernoulli(here(0.5, 1.5)), "Expected p_in >= 0 && p_in <= 1 to be true, but got false (aten::bernoulli)"),
    "bernoulli, nan": (lambda: torch.bernoulli(here(NAN)), "Expected p_in >= 0 && p_in <= 1"),
    "bernoulli_": (lambda: torch.zeros(2, device="cuda").bernoulli_(here(-0.5, 1.0)), "Expected p_in >= 0 && p_in <= 1"),
    "normal": (lambda: torch.normal(here(0.0), here(-1.0)), "normal expects all elements of std >= 0.0"),
    "masked_scatter": (
        lambda: here(1.0, 2.0).masked_scatter(here(True, True), here(3.0)),
        "Number of elements of source < number of ones in mask",
    ),
    "x[mask] = values": (
        lambda: here(1.0, 2.0, 3.0).__setitem__(here(True, False, True), here(1.0, 2.0, 3.0)),
        "shape mismatch: value tensor of shape [3]",
    ),
    "repeat_interleave": (lambda: torch.repeat_interleave(here(1.0, 2.0), here(-1, 1)), "repeats can not be negative"),
    "lu_solve": (lambda: torch.linalg.lu_solve(here([1.0]), here(2).int(), here([1.0])), "pivots must be between 1 and LU.size(-2)"),
    "lu_unpack": (lambda: torch.lu_unpack(here([1.0]), here(0).int())[0], "pivots must be between 1 and LU.size(-2)"),
    "_assert_async": (
        lambda: torch._assert_async(here(0).squeeze()),
        "Expected Tensor with single nonzero value, but got zero (aten::_assert_async)",
    ),
    "_assert_async with a message": (lambda: torch._assert_async(here(False).squeeze(), "not so"), "not so (aten::_assert_async.msg)"),
}


@pytest.mark.parametrize("name", WRONG_VALUES)
def test_a_value_that_cuda_asserts_is_refused(name: str) -> None:
    call, text = WRONG_VALUES[name]
    with pytest.raises(DeviceAssertError) as caught:
        call()
        torch.cuda.synchronize()
    assert f"CUDA error: device-side assert triggered: {text}" in str(caught.value)


def test_values_at_the_bounds_are_accepted() -> None:
    bounds = here(0.0, 1.0)
    F.binary_cross_entropy(bounds, bounds)
    assert torch.bernoulli(bounds).tolist() == [0.0, 1.0]
    assert torch.multinomial(here([0.0, 1e-30], [3e38, 0.0]), 1).tolist() == [[1], [0]]
    assert torch.normal(here(2.0), here(0.0)).tolist() == [2.0]
    assert here(1.0, 2.0).masked_scatter(here(True, True), here(3.0, 4.0)).tolist() == [3.0, 4.0]
    torch._assert_async(here(True).squeeze(), "so")
    torch._assert_async(here(NAN).squeeze())
    for empty in (torch.zeros(0, device="cuda"), torch.zeros(0, 3, device="cuda")):
        F.binary_cross_entropy(empty, empty)
        torch.bernoulli(empty)
    torch.cuda.synchronize()


def test_the_operation_that_trapped_is_named_among_others(flushes: list[Flush]) -> None:
    RECORDER.flush()
    x = X.cuda().mul(2).add(1)
    F.embedding(here(0, 1), x)
    F.embedding(here(0, 9), x)
    torch.gather(x, 0, here([8, 0, 0]))
    with pytest.raises(DeviceAssertError, match=r"index 9 is out of bounds for dimension 0 with size 4 \(aten::embedding\)"):
        x.sum().item()
    assert flushes[-1].n_ops >= 5


def test_a_mask_of_another_shape_is_refused() -> None:
    x = torch.zeros(4, 3, device="cuda")
    mask = torch.ones(3, dtype=torch.bool, device="cuda")
    for call in (lambda: x[mask], lambda: x.__setitem__(mask, 1.0), lambda: x.__setitem__(mask, torch.ones(3, device="cuda"))):
        with pytest.raises(IndexError, match=r"shape of the mask \[3\] at index 0 does not match the shape of the indexed tensor \[4, 3\]"):
            call()
