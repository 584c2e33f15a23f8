"""Half types: what CUDA computes in f32 and rounds once is computed so here, compared with the truth in f64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

HALF = [torch.bfloat16, torch.float16]


def ulps(ours: torch.Tensor, truth: torch.Tensor) -> float:
    """The greatest error in units of the last place of the greatest magnitude around."""
    scale = truth.abs().clamp(min=max(float(truth.abs().max()) / 8, 1e-30))
    return float(((ours.cpu().double() - truth).abs() / scale).max()) / torch.finfo(ours.dtype).eps


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_grid_sample_computes_coordinates_in_f32(dtype: torch.dtype, mode: str, padding: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 40, 50).to(dtype)
    grid = (torch.rand(2, 20, 20, 2) * 2.2 - 1.1).to(dtype)

    def sample(x: torch.Tensor, grid: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x, grid = x.detach().requires_grad_(), grid.detach().requires_grad_()
        out = F.grid_sample(x, grid, mode, padding, align_corners=False)
        return (out.detach(), *torch.autograd.grad(out.sum(), [x, grid], allow_unused=True))

    ours, expected = sample(x.cuda(), grid.cuda()), sample(x.float(), grid.float())
    for a, b in zip(ours, expected, strict=True):
        assert a.dtype == dtype and ulps(a, b.double()) <= 1


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
@pytest.mark.parametrize("padding", ["border", "reflection"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_coordinates_that_are_no_numbers_are_clipped_as_torch_clips_them(value: float, mode: str, padding: str) -> None:
    def sample(device: str) -> torch.Tensor:
        x = torch.arange(1.0, 7.0, device=device).view(1, 1, 2, 3)
        grid = torch.tensor([[[[value, 0.0], [0.5, value], [value, value]]]], device=device)
        return torch.cat([F.grid_sample(x, grid, mode, padding, align_corners=corners) for corners in (False, True)])

    torch.testing.assert_close(sample("cuda").cpu(), sample("cpu"))


def test_grid_sample_of_volumes_in_half_is_that_of_f32_rounded() -> None:
    torch.manual_seed(0)
    x, grid = torch.randn(1, 2, 9, 8, 7).bfloat16(), (torch.rand(1, 4, 4, 4, 3) * 2 - 1).bfloat16()
    ours = F.grid_sample(x.cuda(), grid.cuda(), align_corners=True)
    assert torch.equal(ours.cpu(), F.grid_sample(x.float(), grid.float(), align_corners=True).bfloat16())


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_products_with_an_output_type_of_their_own_are_not_rounded(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    a, b, x = torch.randn(3, 7, 33).to(dtype), torch.randn(3, 33, 5).to(dtype), torch.randn(3, 7, 5)
    a2, b2, x2 = a.cuda(), b.cuda(), x.cuda()
    products = {
        "mm": (torch.mm(a2[0], b2[0], out_dtype=torch.float32), a[0].double() @ b[0].double()),
        "bmm": (torch.bmm(a2, b2, out_dtype=torch.float32), a.double() @ b.double()),
        "addmm": (torch.addmm(x2[0], a2[0], b2[0], out_dtype=torch.float32), x[0].double() + a[0].double() @ b[0].double()),
        "baddbmm": (torch.baddbmm(x2, a2, b2, beta=2, out_dtype=torch.float32), 2 * x.double() + a.double() @ b.double()),
    }
    for name, (ours, truth) in products.items():
        assert ours.dtype == torch.float32, name
        torch.testing.assert_close(ours.cpu().double(), truth, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_group_norm_rounds_once(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, weight, bias = torch.randn(2, 6, 5, 5).to(dtype), torch.randn(6).to(dtype), torch.randn(6).to(dtype)
    ours = F.group_norm(x.cuda(), 3, weight.cuda(), bias.cuda())
    assert ulps(ours, F.group_norm(x.double(), 3, weight.double(), bias.double())) <= 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_rms_norm_without_an_epsilon_takes_that_of_the_type_it_computes_in(dtype: torch.dtype) -> None:
    """Values so small that the epsilon of a half type would decide the result."""
    x = torch.full((2, 4), 1e-3, dtype=dtype)
    ours, cpu = torch.nn.functional.rms_norm(x.cuda(), (4,)), torch.nn.functional.rms_norm(x, (4,))
    assert torch.allclose(ours.cpu(), cpu, rtol=1e-2)


def test_softshrink_at_its_threshold_has_the_sign_that_torch_gives_it() -> None:
    x = torch.tensor([-1.0, -0.5, 0.5, 1.0])
    ours, cpu = torch.nn.functional.softshrink(x.cuda(), 1.0).cpu(), torch.nn.functional.softshrink(x, 1.0)
    assert torch.equal(torch.signbit(ours), torch.signbit(cpu)) and torch.equal(ours, cpu)


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("op", ["multilabel_margin_loss", "multi_margin_loss"])
def test_losses_whose_cpu_kernels_lack_half_types(op: str, dtype: torch.dtype) -> None:
    """CUDA has them: the CPU's f32 kernel computes them, and the result is rounded."""
    targets = torch.tensor([[0, 2, -1], [1, -1, 0]]) if op.startswith("multilabel") else torch.tensor([0, 2])
    x = torch.tensor([[0.25, -1.5, 2.0], [0.5, 1.25, -0.75]], dtype=dtype)
    wide, ours = x.double().requires_grad_(), x.cuda().requires_grad_()
    loss = getattr(F, op)(ours, targets.cuda())
    truth = getattr(F, op)(wide, targets)
    (gradient,), (expected,) = torch.autograd.grad(loss, ours), torch.autograd.grad(truth, wide)
    assert loss.dtype == gradient.dtype == dtype
    assert ulps(loss.detach(), truth.detach()) <= 1 and ulps(gradient, expected) <= 1


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_smoothed_resizing_in_half_types(dtype: torch.dtype) -> None:
    x = torch.linspace(-3, 3, 2 * 8 * 9).reshape(1, 2, 8, 9).to(dtype)
    ours = F.interpolate(x.cuda(), (5, 4), mode="bilinear", antialias=True)
    assert ours.dtype == dtype and ulps(ours, F.interpolate(x.double(), (5, 4), mode="bilinear", antialias=True)) <= 1


def test_positions_of_fractional_windows_are_not_rounded() -> None:
    """0.9995 is the greatest sample in f16: 3.9995 windows further on it would be 4."""
    x = torch.arange(81.0).reshape(1, 1, 9, 9)
    samples = torch.full((1, 1, 2), 0.99951171875)
    ours = F.fractional_max_pool2d(x.half().cuda(), 6, output_ratio=(0.5, 0.5), _random_samples=samples.half().cuda())
    assert torch.equal(ours.cpu().float(), F.fractional_max_pool2d(x, 6, output_ratio=(0.5, 0.5), _random_samples=samples))


_TRANSFORMS = [f"{kind}{dims}" for dims in ("", "2", "n") for kind in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")]


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("name", _TRANSFORMS)
def test_fourier_transforms_of_float16_are_those_of_f32_rounded_once(name: str) -> None:
    transform = getattr(torch.fft, name)
    torch.manual_seed(0)
    source = torch.randn(3, 6, dtype=torch.float16)  # 6: cuFFT takes powers of two only
    x, exact = source.cuda().requires_grad_(), source.float().requires_grad_()
    ours, expected = transform(x), transform(exact)
    rounded = expected.detach().to(torch.complex32 if expected.is_complex() else torch.float16)
    assert ours.dtype == rounded.dtype and ours.shape == rounded.shape
    torch.testing.assert_close(ours.detach().cpu().to(expected.dtype), rounded.to(expected.dtype), rtol=1e-3, atol=1e-4)
    (gradient,) = torch.autograd.grad(ours.abs().sum(), x)
    (true,) = torch.autograd.grad(expected.abs().sum(), exact)
    assert gradient.dtype == torch.float16
    torch.testing.assert_close(gradient.cpu().float(), true, rtol=4e-3, atol=8e-3)


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_fourier_transforms_of_float16_take_complex32_out_tensors_and_batches_of_vmap() -> None:
    x = torch.randn(3, 5, device="cuda", dtype=torch.float16)
    once = torch.fft.fft(x)
    assert torch.fft.ifft(once).dtype == torch.complex32
    assert torch.fft.irfft(once[:, :3], 5).dtype == torch.float16
    torch.testing.assert_close(torch.vmap(torch.fft.fft)(x).to(torch.complex64), once.to(torch.complex64))
    out = torch.empty(0, dtype=torch.complex32, device="cuda")
    assert torch.fft.fft(x, out=out) is out and out.shape == once.shape
    torch.testing.assert_close(out.to(torch.complex64), once.to(torch.complex64))
    with pytest.raises(RuntimeError, match=r"expected an out tensor of torch\.complex32"):
        torch.fft.fft(x, out=torch.empty(3, 5, dtype=torch.complex64, device="cuda"))
    with pytest.raises(RuntimeError, match="Unsupported dtype BFloat16"):
        torch.fft.fft(x.bfloat16())
