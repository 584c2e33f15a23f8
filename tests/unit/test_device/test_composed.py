"""Sums of flags, losses, distances, segments, pooling and resampling: cases that torch's operator database leaves out, against the CPU."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import wooly
from tests.unit.test_device.test_special import check
from wooly.device.recorder import stats

_aten = torch.ops.aten


def with_gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` and the gradient of a weighted sum of its (first) result by its first argument."""

    def call(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        x = x.detach().requires_grad_()
        y = function(x, *args, **kwargs)
        y = y[0] if isinstance(y, tuple) else y
        weights = torch.linspace(0.5, 1.5, y.numel(), dtype=y.dtype).reshape(y.shape).to(y.device)
        return y.detach(), *torch.autograd.grad((y * weights).sum(), x)

    return call


@pytest.mark.parametrize("include_self", [True, False])
def test_bools_that_are_added_or_multiplied_by_index(include_self: bool) -> None:
    torch.manual_seed(0)
    x, source, index = torch.rand(5, 4) > 0.5, torch.rand(7, 4) > 0.6, torch.randint(0, 5, (7, 4))
    for reduce in ("sum", "prod", "amax", "amin"):
        check(torch.scatter_reduce, x, 0, index, source, reduce, include_self=include_self)
    check(torch.scatter_add, x, 0, index, source)
    for alpha in (True, False, 2):
        check(torch.index_add, x, 0, index[:, 0], source, alpha=alpha)
    check(torch.index_put, x, (index[:, 0],), source, accumulate=True)
    check(torch.index_put, x, (source[:5],), torch.tensor(True), accumulate=True)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_multilabel_margin_loss(reduction: str) -> None:
    torch.manual_seed(0)
    x, target = torch.randn(3, 5), torch.tensor([[1, 2, -1, 0, 3], [-1, 1, 1, 1, 1], [4, 4, 0, 1, 2]])
    check(with_gradient(F.multilabel_margin_loss), x, target, reduction=reduction)
    check(with_gradient(F.multilabel_margin_loss), x[0], target[0], reduction=reduction)
    check(_aten.multilabel_margin_loss_forward, x, target, 1)


@pytest.mark.parametrize("p", [1, 2])
def test_the_gradient_of_multi_margin_loss(p: int) -> None:
    torch.manual_seed(0)
    for weight in (None, torch.rand(5)):
        x, target = torch.randn(3, 5), torch.tensor([0, 4, 2])
        check(with_gradient(F.multi_margin_loss), x, target, p=p, weight=weight)
        half = weight if weight is None else weight.half().cuda()
        _, ours = with_gradient(F.multi_margin_loss)(x.half().cuda(), target.cuda(), p=p, weight=half)
        _, theirs = with_gradient(F.multi_margin_loss)(x.half().float(), target, p=p, weight=half if half is None else half.cpu().float())
        torch.testing.assert_close(ours.cpu(), theirs.half())


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, math.inf])
def test_pdist(p: float) -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 4)
    x[2], x[3, 1] = x[1], x[1, 1]
    check(with_gradient(F.pdist), x, p)
    for empty in (x[:1], x[:0], x[:, :0], x[:1].half()):
        check(F.pdist, empty, p)
    with pytest.raises(NotImplementedError):
        F.pdist(x.half().cuda(), p)


def test_pairs_that_would_fill_the_memory_are_computed_on_the_cpu() -> None:
    x, target = torch.rand(2, 3000), torch.zeros(2, 3000, dtype=torch.int64)
    for function, args in ((F.pdist, (x.t(),)), (F.multilabel_margin_loss, (x, target))):
        before = sum(wooly.stats()["fallbacks"].values())
        torch.testing.assert_close(function(*(arg.cuda() for arg in args)).cpu(), function(*args))
        assert sum(wooly.stats()["fallbacks"].values()) == before + 1


@pytest.mark.parametrize("initial", [None, 2.0])
@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min", "prod"])
def test_segment_reduce(reduce: str, initial: float | None) -> None:
    """With empty segments, and with zeros and NaN in segments."""
    torch.manual_seed(0)
    x = torch.randn(7, 3)
    x[1, 0] = x[2, 1] = x[3, 1] = 0
    x[5, 2], x[6, 1] = math.nan, x[5, 1]
    check(with_gradient(torch.segment_reduce), x, reduce, lengths=torch.tensor([2, 0, 3, 2]), initial=initial)
    check(with_gradient(torch.segment_reduce), x, reduce, offsets=torch.tensor([0, 2, 2, 5, 7]), initial=initial)
    lengths = torch.tensor([[2, 0, 3, 2], [7, 0, 0, 0], [1, 2, 3, 1]])
    check(with_gradient(torch.segment_reduce), x.t().contiguous(), reduce, lengths=lengths, axis=1, initial=initial)
    check(torch.segment_reduce, x, reduce, lengths=torch.tensor([2, 1]), unsafe=True, initial=initial)
    check(with_gradient(torch.segment_reduce), x[:0], reduce, offsets=torch.tensor([0]), initial=initial)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_row_indices_and_row_starts(dtype: torch.dtype) -> None:
    """Also without elements, and with rows at both ends that have none."""
    columns = torch.tensor([3, 0, 1, 2], dtype=dtype)
    for rows, out_int32 in (([1, 1, 3, 4], False), ([1, 1, 3, 4], dtype is torch.int32), ([], False)):
        indices = torch.tensor(rows, dtype=dtype)
        check(_aten._convert_indices_from_coo_to_csr, indices, 6, out_int32=out_int32)
        starts = _aten._convert_indices_from_coo_to_csr(indices, 6, out_int32=dtype is torch.int32)
        for transpose in (False, True):
            check(_aten._convert_indices_from_csr_to_coo, starts, columns[: len(rows)], out_int32=out_int32, transpose=transpose)


@pytest.mark.parametrize("lengths", [[2, 1], [8, -1]])
def test_lengths_that_do_not_fit_are_refused(lengths: list[int]) -> None:
    with pytest.raises(RuntimeError, match="lengths"):
        torch.segment_reduce(torch.ones(7, device="cuda"), "sum", lengths=torch.tensor(lengths, device="cuda"))


@pytest.mark.parametrize("output", [(4, 5, 3), (1, 1, 1), (5, 6, 4)])
def test_fractional_max_pool(output: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x, samples = torch.randn(2, 3, 7, 9, 6), torch.rand(2, 3, 3)
    check(with_gradient(_aten.fractional_max_pool3d.default), x, [2, 3, 2], output, samples)
    check(_aten.fractional_max_pool3d.default, x[0], [2, 3, 2], output, samples[:1])
    check(with_gradient(_aten.fractional_max_pool2d.default), x[..., 0], [2, 3], output[:2], samples[..., :2])
    check(_aten.fractional_max_pool2d.default, x[0, ..., 0], [2, 3], output[:2], samples[:1, :, :2])


def test_windows_that_do_not_fit_are_refused() -> None:
    with pytest.raises(RuntimeError, match="too large"):
        _aten.fractional_max_pool2d(torch.ones(1, 1, 4, 4, device="cuda"), [3, 3], [4, 4], torch.ones(1, 1, 2, device="cuda"))


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("align_corners", [True, False])
@pytest.mark.parametrize("size", [(3, 4), (9, 12), (7, 9), (1, 1), (20, 2)])
def test_resizing_with_a_filter(size: tuple[int, int], align_corners: bool, mode: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 7, 9)
    resize = getattr(_aten, f"_upsample_{mode}2d_aa").default
    check(with_gradient(resize), x, size, align_corners)
    check(resize, x.contiguous(memory_format=torch.channels_last), size, align_corners)
    check(resize, x.double(), (3, 4), align_corners, 0.5, 0.45)


@pytest.mark.parametrize("align_corners", [True, False])
@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_the_gradients_of_grid_sample(mode: str, padding_mode: str, align_corners: bool) -> None:
    """At borders, on elements, far outside, and in images one element high."""

    def gradients(x: torch.Tensor, grid: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x, grid = x.detach().requires_grad_(), grid.detach().requires_grad_()
        y = F.grid_sample(x, grid, mode=mode, padding_mode=padding_mode, align_corners=align_corners)
        weights = torch.linspace(0.5, 1.5, y.numel(), dtype=y.dtype).reshape(y.shape).to(y.device)
        return torch.autograd.grad((y * weights).sum(), (x, grid))

    torch.manual_seed(0)
    x, grid = torch.randn(2, 3, 5, 6, dtype=torch.float64), torch.randn(2, 4, 7, 2, dtype=torch.float64) * 1.2
    grid[0, 0, :, 0] = grid[0, 1, :, 1] = torch.tensor([-1.0, 1.0, 0.0, -3.0, 3.0, 0.5, 2.0])
    grid[1, 1, 1, 1] = 1e5
    check(gradients, x, grid)
    check(gradients, x[:, :, :1], grid)
    if mode != "bicubic":
        check(gradients, torch.randn(2, 3, 4, 5, 6), torch.randn(2, 4, 3, 2, 3) * 1.2)


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_complex_numbers_with_halves_as_parts() -> None:
    x = torch.complex(torch.arange(6.0), -torch.arange(6.0)).reshape(2, 3).to(torch.complex32)
    for number in (2 + 1j, 3, True):
        check(torch.full_like, x, number)
    check(torch.full_like, torch.ones(2), 1 + 2j, dtype=torch.complex32)
    for given in (x, x.t(), x[:, 1:]):
        check(torch.clone, given)
        check(lambda x: x.conj().clone(), given)
    for dim in (0, 1, -1):
        check(torch.cat, [x, x, x], dim)
    check(lambda x: torch.cat([x.conj(), x]), x)


def test_uniform_complex_numbers() -> None:
    x = torch.empty(1000, dtype=torch.complex64, device="cuda").uniform_(2, 3).cpu()
    for part in (x.real, x.imag):
        assert part.min() >= 2 and part.max() < 3 and part.std() > 0.2
    assert not torch.equal(x.real, x.imag)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16], ids=str)
def test_frexp(dtype: torch.dtype) -> None:
    """At every power of two, beside each, and at what has no exponent."""
    powers = torch.exp2(torch.arange(-1074, 1024, dtype=torch.float64))
    x = torch.cat([powers, -powers * 1.5, torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan])]).to(dtype)
    x = torch.cat([x, torch.nextafter(x, torch.zeros_like(x)) if dtype != torch.float16 else x * 0.999])
    check(torch.frexp, x)
    check(torch.frexp, x[:90].reshape(9, 10).t())


_WHOLE = {
    "stride": {"stride": (2, 3)},
    "padding and groups": {"padding": (1, 2), "groups": 2},
    "dilation": {"dilation": (2, 1), "padding": (1, 0), "stride": 2},
}


@pytest.mark.parametrize("name", _WHOLE)
def test_convolutions_of_whole_numbers(name: str) -> None:
    torch.manual_seed(0)
    options = _WHOLE[name]
    groups = options.get("groups", 1)
    x, bias = torch.randint(-9, 9, (2, 4, 7, 8)), torch.tensor([1, -1, 2, 2**62])
    x[0, 0, 3, 3] = 2**62  # products wrap
    weight = torch.randint(-9, 9, (4, 4 // groups, 3, 2))
    check(F.conv2d, x, weight, bias, **options)
    check(F.conv_transpose2d, x, weight, None, output_padding=(1, 0), **options | {"stride": 2, "dilation": 1})
    check(F.conv_transpose2d, x, weight, bias[: weight.size(1) * groups], **options)
    check(F.conv1d, x[0, :, :, 0].t().contiguous().t(), weight[..., 0], bias, groups=groups)
    check(F.conv3d, x.unsqueeze(2), weight.unsqueeze(2), groups=groups)
    check(F.conv2d, x[:0], weight, bias, **options)


@pytest.mark.parametrize("count_include_pad", [True, False])
@pytest.mark.parametrize("divisor", [None, 3])
@pytest.mark.parametrize("ceil_mode", [True, False])
def test_averages_of_whole_numbers(ceil_mode: bool, divisor: int | None, count_include_pad: bool) -> None:
    torch.manual_seed(0)
    x, options = torch.randint(-99, 99, (2, 3, 6, 7, 8)), {"ceil_mode": ceil_mode, "count_include_pad": count_include_pad}
    for size, more in ((2, {}), (3, {"stride": 2, "padding": 1}), ((3, 2, 2), {"stride": (1, 2, 3), "padding": (1, 0, 1)})):
        check(F.avg_pool3d, x, size, divisor_override=divisor, **options, **more)
    check(F.avg_pool2d, x[0], 3, 2, 1, divisor_override=divisor, **options)
    check(F.avg_pool2d, x[0, 0], (2, 3), divisor_override=divisor, **options)
    check(F.avg_pool1d, x[0, 0], 3, 2, 1, **options)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool], ids=str)
def test_hash_tensor(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = (torch.randn(3, 5, 7) * 9).to(dtype)
    for args in ((), (1,), ([0, 2],), ([-1],)):
        for keepdim in (True, False):
            check(torch.hash_tensor, x, *args, keepdim=keepdim)
    for given in (x[0, 0, 0], x[:, :, :1], x.transpose(0, 2)):
        check(torch.hash_tensor, given)
    check(torch.hash_tensor, x[:0], 1)
    for dim, error in (((), RuntimeError), ((0,), IndexError)):
        with pytest.raises(error):
            torch.hash_tensor(x[:0].cuda(), dim)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_running_log_sums_of_complex_numbers(dtype: torch.dtype) -> None:
    """Also of infinities, and of angles beyond a full turn."""
    torch.manual_seed(0)
    x = torch.complex(torch.randn(4, 5) * 5, torch.randn(4, 5) * 9).to(dtype)
    for dim in (0, 1, -1):
        check(with_complex_gradient, x, dim)
    x[0, 0], x[1, 1], x[0, 2], x[2, 3] = complex(-math.inf, 1), complex(-math.inf, 2), complex(math.inf, 1), complex(math.nan, 1)
    check(torch.logcumsumexp, x, 0)
    check(torch.logcumsumexp, x, 1)
    check(torch.logcumsumexp, x[1, 2], 0)
    check(torch.logcumsumexp, x[:0], 0)


def with_complex_gradient(x: torch.Tensor, dim: int) -> Any:
    x = x.detach().requires_grad_()
    y = torch.logcumsumexp(x, dim)
    return y.detach(), *torch.autograd.grad(y.abs().sum(), x)


@pytest.mark.parametrize("dim", [0, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_weight_norm(dim: int, dtype: torch.dtype) -> None:
    """Of half types as near to the truth as the CPU."""
    generator = torch.Generator().manual_seed(0)
    v, dw = (torch.randn(3, 2, 4, generator=generator).to(dtype) for _ in range(2))
    g = torch.randn([n if d == dim else 1 for d, n in enumerate(v.shape)], generator=generator).to(dtype)

    def run(device: str, dtype: torch.dtype) -> list[torch.Tensor]:
        parts = [x.detach().to(device, dtype).requires_grad_() for x in (v, g)]
        out = torch._weight_norm(*parts, dim)
        out.backward(dw.to(device, dtype))
        return [x.detach().cpu() for x in (out, parts[0].grad, parts[1].grad) if x is not None]

    before = wooly.stats()["fallbacks"]
    found = run("cuda", dtype)
    assert wooly.stats()["fallbacks"] == before
    for mine, its, truth in zip(found, run("cpu", dtype), run("cpu", torch.float64), strict=True):
        assert mine.dtype == its.dtype and mine.stride() == its.stride()
        assert (mine - truth).abs().max() <= 2 * (its - truth).abs().max() + 1e-15


def test_products_of_bytes() -> None:
    torch.manual_seed(0)
    a, b = torch.randint(-128, 128, (5, 300), dtype=torch.int8), torch.randint(-128, 128, (300, 4), dtype=torch.int8)
    for left, right in ((a, b), (a.to(torch.uint8), b), (a[:0], b), (a[:, :0], b[:0]), (b.t(), a.t())):
        check(torch._int_mm, left, right)
    for wrong in ((a, a), (a.float(), b), (a, b.float()), (a[0], b)):
        with pytest.raises(RuntimeError, match="int_mm"):
            torch._int_mm(*(x.cuda() for x in wrong))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu], ids=str)
@pytest.mark.parametrize("of", [lambda x: x.clone(), lambda x: x.t().contiguous(), lambda x: x.t().clone(), lambda x: x[::2, 1:].clone()])
def test_float8_is_copied_as_bits(dtype: torch.dtype, of: Callable[[torch.Tensor], torch.Tensor]) -> None:
    before = dict(stats()["fallbacks"])
    host = torch.arange(24, dtype=torch.uint8).view(4, 6).view(dtype)
    found, want = of(host.cuda()), of(host)
    assert (found.stride(), found.dtype) == (want.stride(), dtype)
    assert torch.equal(found.view(torch.uint8).cpu(), want.view(torch.uint8))
    assert stats()["fallbacks"] == before


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_scaled_products_of_eight_bits(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    a, b = torch.randn(16, 32).to(torch.float8_e4m3fn), torch.randn(48, 32).to(torch.float8_e4m3fn).t()
    scales = torch.tensor(0.5), torch.tensor(3.0)
    check(torch._scaled_mm, a, b, *scales, out_dtype=dtype)
    if dtype != torch.float32:
        check(torch._scaled_mm, a, b, *scales, bias=torch.randn(48, dtype=dtype), out_dtype=dtype)
        check(torch._scaled_mm, a, b, torch.rand(16, 1), torch.rand(1, 48), out_dtype=dtype)


@pytest.mark.parametrize("recipe", [F.ScalingType.TensorWise, F.ScalingType.RowWise])
def test_scaled_products_by_recipe(recipe: F.ScalingType) -> None:
    torch.manual_seed(0)
    a, b = torch.randn(16, 32).to(torch.float8_e4m3fn), torch.randn(48, 32).to(torch.float8_e4m3fn).t()
    by_rows = recipe == F.ScalingType.RowWise
    scales = (torch.rand(16, 1), torch.rand(1, 48)) if by_rows else (torch.tensor(0.5), torch.tensor(3.0))

    def product(a: torch.Tensor, b: torch.Tensor, by_a: torch.Tensor, by_b: torch.Tensor) -> torch.Tensor:
        return F.scaled_mm(a, b, by_a, recipe, by_b, recipe)

    check(product, a, b, *scales)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_products_with_weights_of_one_byte(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, weight = torch.randint(-4, 4, (4, 32)).to(dtype), torch.randint(-128, 128, (16, 32), dtype=torch.int8)  # exact in any order
    check(torch._weight_int8pack_mm, x, weight, torch.rand(16, dtype=dtype))
