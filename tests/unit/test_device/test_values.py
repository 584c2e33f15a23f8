"""Values that are easily wrong without an error: NaN in losses, bags and images, factors of 0, long sums, ends of special functions."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest
import torch
import torch.nn.functional as F

LINES = {
    "linear that keeps its size": "F.interpolate(x(1, 4, 4), scale_factor=1.1, mode='linear')",
    "bilinear that keeps its width": "F.interpolate(x(1, 1, 4, 4), scale_factor=(2, 1.1), mode='bilinear')",
    "trilinear that keeps two sizes": "F.interpolate(x(1, 1, 4, 4, 4), scale_factor=(1.1, 2, 1.2), mode='trilinear')",
    "its gradient": "grad(lambda x: F.interpolate(x, scale_factor=(1.1, 2.0), mode='bilinear').square(), x(1, 1, 4, 4))",
    "nansum over an empty list": "torch.nansum(odd, dim=[])",
    "nansum that keeps dimensions": "torch.nansum(odd, dim=[], keepdim=True)",
    "nanmean over an empty tuple": "torch.nanmean(odd, dim=())",
    "gradient of huber_loss": "grad(lambda x: F.huber_loss(x, torch.zeros_like(x)), odd)",
    "gradient of smooth_l1_loss": "grad(lambda x: F.smooth_l1_loss(x, torch.zeros_like(x)), odd)",
    "greatest of bags": "F.embedding_bag(bags, odd, mode='max')",
    "its gradient by rows": "grad(lambda w: F.embedding_bag(bags, w, mode='max').nan_to_num(), odd)",
    "greatest of bags with padding": "grad(lambda w: F.embedding_bag(bags, w, mode='max', padding_idx=0).nan_to_num(), odd)",
    "isin of no elements, whose type torch does not look at": "torch.isin(x(0).to(torch.uint16), torch.tensor([1], device=device))",
    "multi_margin_loss": "F.multi_margin_loss(odd, torch.tensor([1, 0, 1], device=device))",
    **{
        f"{name} without its product, beta {beta}": f"torch.{name}(x({rows}), {first}, {second}, alpha=0, beta={beta})"
        for name, rows, first, second in (
            ("addmm", "3, 2", "odd[:, :2]", "x(2, 2)"),
            ("addmv", "3", "odd[:, :2]", "x(2)"),
            ("addbmm", "3, 2", "odd[None, :, :2]", "x(1, 2, 2)"),
        )
        for beta in (1, 0, 2)
    },
}


SPECIAL = {
    "ndtri": [0.0, 1e-300, 1e-12, 1e-3, 0.07, 0.08, 0.3, 0.5, 0.6, 0.95, 0.999, 1 - 1e-12, 1.0, -1e-9, 1.5, nan],
    "erfcx": [-26.0, -1.0, 0.0, 3.0, 24.9, 25.1, 26.0, 40.0, 1e10, inf, nan],
    "log_ndtr": [-1e5, -36.0, -35.3, -5.0, 0.0, 3.0, inf],
    "i0e": [-1.7e308, -30.0, 0.0, 19.9, 20.1, 700.0, 1.7e308],
    "i1e": [-1.7e308, -30.0, 0.0, 19.9, 20.1, 700.0, 1.7e308],
    "i0": [-1.7e308, 1.0, 300.0, 1.7e308],
}


@pytest.mark.parametrize("name", SPECIAL)
def test_special_functions_at_their_ends(name: str) -> None:
    x = torch.tensor(SPECIAL[name], dtype=torch.float64)
    function = getattr(torch.special, name)
    torch.testing.assert_close(function(x.cuda()).cpu(), function(x), rtol=1e-13, atol=0, equal_nan=True)


@pytest.mark.parametrize("dim", [0, 1, None])
def test_the_variance_of_values_far_from_zero(dim: int | None) -> None:
    """The mean of such values rounds to a third of their deviation."""
    torch.manual_seed(0)
    x = torch.randn(64, 100) * 0.01 + 1e4
    spread = x.cuda().var(dim)
    torch.testing.assert_close(spread.cpu().double(), x.double().var(dim), rtol=2e-6, atol=0)
    assert torch.full((3, 7), 0.1).cuda().std(1).tolist() == [0.0] * 3
    assert torch.tensor([3e38, -3e38, 1.0]).cuda().var().item() == inf


@pytest.mark.parametrize("length", [0, 1, 2, 9])
@pytest.mark.parametrize("periodic", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_kaiser_windows(length: int, periodic: bool, dtype: torch.dtype) -> None:
    for beta in (12.0, 0.0, -3.0):
        ours = torch.kaiser_window(length, periodic, beta, dtype=dtype, device="cuda")
        torch.testing.assert_close(ours.cpu(), torch.kaiser_window(length, periodic, beta, dtype=dtype))


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align_corners", [False, True])
def test_samples_of_images_hold_only_what_they_touch(mode: str, padding: str, align_corners: bool) -> None:
    """A pixel without data, and positions hundreds of images away, each at the border or reflected there."""
    torch.manual_seed(0)
    image = torch.randn(2, 2, 5, 7)
    image[0, :, 0, 0], image[1, 1, 4, 6] = nan, inf
    grid = torch.cat([torch.rand(2, 6, 8, 2) * 2.6 - 1.3, torch.randn(2, 6, 8, 2) * 300], 1)
    want = F.grid_sample(image, grid, mode, padding, align_corners)
    have = F.grid_sample(image.cuda(), grid.cuda(), mode, padding, align_corners).cpu()
    torch.testing.assert_close(have, want, rtol=1e-3, atol=1e-3, equal_nan=True)
    assert have.isfinite().sum() > 200


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_samples_of_volumes(mode: str, padding: str) -> None:
    torch.manual_seed(0)
    volume, grid = torch.randn(2, 3, 4, 1, 6), torch.rand(2, 3, 4, 5, 3) * 2.6 - 1.3
    for align_corners in (False, True):
        want = F.grid_sample(volume, grid, mode, padding, align_corners)
        have = F.grid_sample(volume.cuda(), grid.cuda(), mode, padding, align_corners).cpu()
        torch.testing.assert_close(have, want, rtol=1e-4, atol=1e-5)


def test_values() -> None:
    """All lines, each with its name in the failure."""
    wrong = []
    for name, line in LINES.items():
        expected, ours = (_evaluated(line, device) for device in ("cpu", "cuda"))
        if not torch.allclose(ours, expected, equal_nan=True) or ours.shape != expected.shape:
            wrong.append(f"{name}: {ours.tolist()}, expected {expected.tolist()}")
    assert not wrong


def _evaluated(line: str, device: str) -> torch.Tensor:
    def x(*shape: int) -> torch.Tensor:
        return torch.arange(1.0, torch.Size(shape).numel() + 1, device=device).reshape(shape) ** 2

    def grad(fn: Any, given: torch.Tensor) -> torch.Tensor:
        leaf = given.clone().requires_grad_()
        return torch.autograd.grad(fn(leaf).sum(), leaf)[0]

    names = {
        "odd": torch.tensor([[1.0, nan, 2.0], [nan, 0.25, -inf], [0.5, nan, 3.0]], device=device),
        "bags": torch.tensor([[0, 1], [1, 2], [2, 2], [1, 1]], device=device),
    }
    result: torch.Tensor = eval(line, {"torch": torch, "F": F, "x": x, "grad": grad, "device": device} | names)
    return result.detach().cpu()


@pytest.mark.parametrize("count", [16_385, 100_003, 1_000_000])
@pytest.mark.parametrize(
    "line",
    [
        "x.sum()",
        "x.mean()",
        "x @ x",
        "torch.vdot(x, x)",
        "x.cumsum(0)[-1]",
        "x.norm()",
        "x[::2].sum()",
        "x[: len(x) // 6 * 6].view(2, -1, 3).sum((0, 2)).sum()",
        "x[: len(x) // 2 * 2].view(-1, 2).sum(0)",
        "(x * (1 + 2j)).sum().imag",
        "x[:, None].mean()",
        "x[:, None, None].sum((0, 2))",
        "x[: len(x) // 3 * 3].view(-1, 3).sum()",
        "x[: len(x) // 6 * 6].view(3, 1, -1, 1, 2).sum((0, 1, 2, 3))",
    ],
)
def test_long_sums_are_as_exact_as_short_ones(line: str, count: int) -> None:
    """Equal values show it most: every addition errs to the same side."""
    names = {"torch": torch}
    ours = eval(line, names | {"x": torch.full((count,), 0.1, device="cuda")}).cpu().double()
    truth = eval(line, names | {"x": torch.full((count,), 0.1).double()})
    assert float(((ours - truth) / truth).abs().max()) < 5e-6


_TYPES = "bool uint8 int8 int16 int32 int64 uint16 float16 float32 complex64".split()
_CALLS = {
    "index_put_": "ones.index_put_((index,), torch.tensor([7.0, 7.0, 7.0], device=device))",
    "x[index] = ": "ones.__setitem__(index, torch.tensor([7.0, 7.0, 7.0], device=device)) or ones",
    "x[index]": "ones[index]",
    "index_copy": "ones.index_copy(0, index[:2], ones[:2])",
    "index_fill": "ones.index_fill(0, index[:2], 7)",
    "index_add": "ones.index_add(0, index[:2], ones[:2])",
    "index_reduce": "ones.index_reduce(0, index[:2], ones[:2], 'prod')",
    "masked_select": "ones.masked_select(index)",
    "masked_fill": "ones.masked_fill(index, 2)",
    "searchsorted": "torch.searchsorted(ones, ones[:1], sorter=torch.arange(3, device=device).to(index.dtype))",
    "nll_loss": "torch.nn.functional.nll_loss(ones.expand(3, 3), index)",
    "multi_margin_loss": "torch.nn.functional.multi_margin_loss(ones.expand(3, 3), index)",
    "take": "ones.take(index)",
    "gather": "ones.gather(0, index)",
    "scatter_add": "ones.scatter_add(0, index[:2], ones[:2])",
    "index_select": "ones.index_select(0, index)",
    "softmax(2)": "ones.expand(3, 3).softmax(2)",
    "sort(-3)": "ones.expand(3, 3).sort(-3)[0]",
    "argsort(2)": "ones.expand(3, 3).argsort(2)",
    "index_reduce(2)": "ones.expand(3, 3).index_reduce(2, index[:1].long(), ones.expand(3, 3)[:, :1], 'prod')",
    **{
        f"randperm({n})": f"torch.randperm({n}, dtype=index.dtype, device=device).numel() * ones" for n in (128, 129, 256, 257, 2050, 40000)
    },
}


@pytest.mark.parametrize("dtype", _TYPES)
@pytest.mark.parametrize("call", _CALLS.values(), ids=_CALLS)
def test_indices_are_of_the_types_and_dimensions_that_torch_takes(call: str, dtype: str) -> None:
    def outcome(device: str) -> Any:
        index = torch.tensor([1, 1, 1], device=device).to(getattr(torch, dtype))
        try:
            return eval(call, {"torch": torch, "index": index, "ones": torch.ones(3, device=device), "device": device}).tolist()
        except Exception as error:
            return type(error)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("warnings.warn", lambda *args, **kwargs: None)
        expected, ours = outcome("cpu"), outcome("cuda")
    assert ours == expected or (ours is NotImplementedError and expected is RuntimeError)
