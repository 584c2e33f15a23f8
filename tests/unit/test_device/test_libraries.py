"""Operators of other libraries that have forms on the device, against their definitions written out element by element.

The libraries are not installed here: operators of their names are registered with these definitions as their kernels for the CPU. The
libraries' own kernels are compared in tests/ecosystem (b18, b19, a19, b21).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import wooly
from tests.unit.test_device.test_special import check, on_both
from wooly.device.install import described
from wooly.device.lowering import COMPOSITES, libraries
from wooly.device.lowering.libraries import torchvision as forms

_ALIGN = "float spatial_scale, SymInt pooled_height, SymInt pooled_width"
_SHAPE = "SymInt batch_size, SymInt channels, SymInt height, SymInt width"
_CONVOLUTION = (
    "Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, SymInt stride_h, SymInt stride_w, SymInt pad_h, SymInt pad_w, "
    "SymInt dilation_h, SymInt dilation_w, SymInt groups, SymInt offset_groups, bool use_mask"
)
_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    f"roi_align(Tensor input, Tensor rois, {_ALIGN}, int sampling_ratio, bool aligned) -> Tensor",
    f"_roi_align_backward(Tensor grad, Tensor rois, {_ALIGN}, {_SHAPE}, int sampling_ratio, bool aligned) -> Tensor",
    f"ps_roi_align(Tensor input, Tensor rois, {_ALIGN}, int sampling_ratio) -> (Tensor, Tensor)",
    f"_ps_roi_align_backward(Tensor grad, Tensor rois, Tensor channel_mapping, {_ALIGN}, int sampling_ratio, {_SHAPE}) -> Tensor",
    f"roi_pool(Tensor input, Tensor rois, {_ALIGN}) -> (Tensor, Tensor)",
    f"_roi_pool_backward(Tensor grad, Tensor rois, Tensor argmax, {_ALIGN}, {_SHAPE}) -> Tensor",
    f"ps_roi_pool(Tensor input, Tensor rois, {_ALIGN}) -> (Tensor, Tensor)",
    f"_ps_roi_pool_backward(Tensor grad, Tensor rois, Tensor channel_mapping, {_ALIGN}, {_SHAPE}) -> Tensor",
    f"deform_conv2d({_CONVOLUTION}) -> Tensor",
    f"_deform_conv2d_backward(Tensor grad, {_CONVOLUTION}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
_vision: Any = torch.ops.torchvision


@pytest.fixture(scope="module", autouse=True)
def operators() -> Iterator[None]:
    library = torch.library.Library("torchvision", "DEF")
    for schema in _SCHEMAS:
        library.define(schema)
    for kernel in (nms, roi_align, ps_roi_align, roi_pool, ps_roi_pool, deform_conv2d):
        library.impl(kernel.__name__, kernel, "CPU")
    yield
    library._destroy()


# --- definitions


def nms(dets: torch.Tensor, scores: torch.Tensor, iou_threshold: float) -> torch.Tensor:
    if dets.dim() != 2:
        raise RuntimeError(f"boxes should be a 2d tensor, got {dets.dim()}D")
    kept: list[int] = []
    x1, y1, x2, y2 = dets.reshape(-1, 4).unbind(1)
    areas = (x2 - x1) * (y2 - y1)
    for j in scores.sort(stable=True, descending=True)[1].tolist():
        width = (x2[kept].minimum(x2[j]) - x1[kept].maximum(x1[j])).clamp_min(0)
        height = (y2[kept].minimum(y2[j]) - y1[kept].maximum(y1[j])).clamp_min(0)
        shared = width * height
        if not (shared / (areas[kept] + areas[j] - shared)).double().gt(iou_threshold).any():
            kept.append(j)
    return torch.tensor(kept, dtype=torch.int64)


def _at(image: torch.Tensor, y: float, x: float) -> Any:
    """Bilinear, with the border repeated one pixel far."""
    height, width = image.shape
    if not (-1 <= y <= height and -1 <= x <= width):
        return 0.0
    y, x = min(max(y, 0.0), height - 1), min(max(x, 0.0), width - 1)
    (top, left), total = (int(y), int(x)), 0.0
    for row, share_y in ((top, 1 - (y - top)), (min(top + 1, height - 1), y - top)):
        for column, share_x in ((left, 1 - (x - left)), (min(left + 1, width - 1), x - left)):
            total = total + image[row, column] * (share_y * share_x)
    return total


def _aligned(
    x: torch.Tensor, rois: torch.Tensor, scale: float, pooled: tuple[int, int], ratio: int, how: tuple[bool, bool]
) -> torch.Tensor:
    aligned, shared = how
    channels = x.size(1) if shared else x.size(1) // math.prod(pooled)
    out = x.new_zeros(rois.size(0), channels, *pooled)
    for k, roi in enumerate(rois.tolist()):
        left, top, right, bottom = (edge * scale - (0.5 if aligned else 0.0) for edge in roi[1:])
        sizes = [bottom - top, right - left]
        steps = [(size if aligned else max(size, 1.0)) / bins for size, bins in zip(sizes, pooled, strict=True)]
        grid = [ratio if ratio > 0 else math.ceil(step) for step in steps]
        for c, i, j in itertools.product(range(channels), *map(range, pooled)):
            image = x[int(roi[0]), c if shared else (c * pooled[0] + i) * pooled[1] + j]
            samples = [
                _at(image, top + (i + (a + 0.5) / grid[0]) * steps[0], left + (j + (b + 0.5) / grid[1]) * steps[1])
                for a, b in itertools.product(*map(range, grid))
            ]
            count = math.prod(grid)
            out[k, c, i, j] = sum(samples) / (max(count, 1) if shared else count or math.nan)
    return out


def roi_align(
    x: torch.Tensor, rois: torch.Tensor, scale: float, height: int, width: int, sampling_ratio: int, aligned: bool
) -> torch.Tensor:
    return _aligned(x, rois, scale, (height, width), sampling_ratio, (aligned, True))


def _mapping(x: torch.Tensor, rois: torch.Tensor, height: int, width: int) -> torch.Tensor:
    return torch.arange(x.size(1), dtype=torch.int32).view(-1, height, width).repeat(rois.size(0), 1, 1, 1)


def ps_roi_align(
    x: torch.Tensor, rois: torch.Tensor, scale: float, height: int, width: int, sampling_ratio: int
) -> tuple[torch.Tensor, torch.Tensor]:
    return _aligned(x, rois, scale, (height, width), sampling_ratio, (True, False)), _mapping(x, rois, height, width)


def _bins(
    roi: list[float], scale: float, pooled: tuple[int, int], ends: tuple[int, int], closed: int
) -> Iterator[tuple[int, int, list[int]]]:
    """Of every bin its place and the first and end of its rows and columns."""
    left, top, right, bottom = (int(math.copysign(math.floor(abs(edge * scale) + 0.5), edge)) for edge in roi[1:])
    steps = [max(n + closed, 1) / bins for n, bins in zip((bottom - top, right - left), pooled, strict=True)]
    for i, j in itertools.product(*map(range, pooled)):
        bounds = []
        for place, step, start, end in zip((i, j), steps, (top, left), ends, strict=True):
            bounds += [min(max(n + start, 0), end) for n in (math.floor(place * step), math.ceil((place + 1) * step))]
        yield i, j, bounds


def roi_pool(x: torch.Tensor, rois: torch.Tensor, scale: float, height: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    out = x.new_zeros(rois.size(0), x.size(1), height, width)
    chosen = torch.full(out.shape, -1, dtype=torch.int32)
    for k, roi in enumerate(rois.tolist()):
        for i, j, (top, bottom, left, right) in _bins(roi, scale, (height, width), (x.size(2), x.size(3)), 1):
            if top >= bottom or left >= right:
                continue
            window = x[int(roi[0]), :, top:bottom, left:right]
            for c in range(x.size(1)):
                pixel = next(p for p in itertools.product(range(bottom - top), range(right - left)) if window[c][p] == window[c].max())
                out[k, c, i, j], chosen[k, c, i, j] = window[c][pixel], (pixel[0] + top) * x.size(3) + pixel[1] + left
    return out, chosen


def ps_roi_pool(x: torch.Tensor, rois: torch.Tensor, scale: float, height: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    return _means(x, rois, scale, (height, width), (x.size(2) - 1, x.size(3) - 1)), _mapping(x, rois, height, width)


def _means_to_the_end(x: torch.Tensor, rois: torch.Tensor, scale: float, height: int, width: int) -> torch.Tensor:
    """What the gradient of ps_roi_pool is one of."""
    return _means(x, rois, scale, (height, width), (x.size(2), x.size(3)))


def _means(x: torch.Tensor, rois: torch.Tensor, scale: float, pooled: tuple[int, int], ends: tuple[int, int]) -> torch.Tensor:
    out = x.new_zeros(rois.size(0), x.size(1) // math.prod(pooled), *pooled)
    for k, roi in enumerate(rois.tolist()):
        for i, j, (top, bottom, left, right) in _bins(roi, scale, pooled, ends, 0):
            for c in range(out.size(1)) if top < bottom and left < right else ():
                out[k, c, i, j] = x[int(roi[0]), (c * pooled[0] + i) * pooled[1] + j, top:bottom, left:right].mean()
    return out


def deform_conv2d(
    x: torch.Tensor, weight: torch.Tensor, offset: torch.Tensor, mask: torch.Tensor, bias: torch.Tensor, *numbers: Any
) -> torch.Tensor:
    """By grid_sample of each tap, whose gradients are torch's own."""
    stride, padding, dilation, (groups, offset_groups, use_mask) = numbers[:2], numbers[2:4], numbers[4:6], numbers[6:]
    n, _, height, width = x.shape
    if not n:
        return x.new_zeros(0, weight.size(0), *offset.shape[2:])
    taps = list(itertools.product(range(weight.size(2)), range(weight.size(3))))
    moved = offset.view(n, offset_groups, len(taps), 2, *offset.shape[2:])
    sampled = []
    for t, tap in enumerate(taps):
        axes = []
        for d in range(2):
            origin = torch.arange(offset.size(2 + d)) * stride[d] - padding[d] + tap[d] * dilation[d]
            axes.append(moved[:, :, t, d] + (origin[:, None] if d == 0 else origin))
        grid = torch.stack([(2 * axes[1] + 1) / width - 1, (2 * axes[0] + 1) / height - 1], -1).flatten(0, 1)
        tapped = torch.nn.functional.grid_sample(x.reshape(n * offset_groups, -1, height, width), grid, align_corners=False)
        tapped = tapped.view(n, offset_groups, -1, *offset.shape[2:])
        sampled.append(tapped * mask.view(n, offset_groups, len(taps), 1, *offset.shape[2:])[:, :, t] if use_mask else tapped)
    columns = torch.stack(sampled, 3).reshape(n, groups, -1, math.prod(offset.shape[2:]))
    out = weight.reshape(groups, weight.size(0) // groups, -1) @ columns
    return out.view(n, -1, *offset.shape[2:]) + bias.view(-1, 1, 1)


# --- tests


def _boxes(n: int, *, whole: bool = False) -> torch.Tensor:
    corners = torch.rand(n, 2, dtype=torch.float64) * 20
    boxes = torch.cat([corners, corners + 4 + torch.rand(n, 2, dtype=torch.float64) * 8], 1)
    return boxes.round() if whole else boxes


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_boxes_are_kept_as_the_greedy_definition_keeps_them(dtype: torch.dtype, whole: bool) -> None:
    """Whole coordinates: equal boxes, equal scores, and overlaps that are the threshold."""
    torch.manual_seed(0)
    for n in (0, 1, 40, 560):
        boxes, scores = _boxes(n, whole=whole).to(dtype), torch.rand(n).to(dtype)
        for threshold in (0.0, 1 / 3, 0.5, 1.0) if n < 50 else (1 / 3,):
            check(_vision.nms, boxes, (scores * 8).round() if whole else scores, threshold)


def test_a_chain_of_boxes_longer_than_the_first_sweeps() -> None:
    """Each box suppresses the next alone, so that every second is kept, and no answer is known before the one ahead of it."""
    n = 3 * forms._SWEEPS
    left = torch.arange(n, dtype=torch.float32)
    boxes = torch.stack([left, torch.zeros(n), left + 3, torch.ones(n)], 1)
    ours, expected = on_both(_vision.nms, boxes, torch.linspace(1, 0, n), 0.4)
    assert torch.equal(ours, expected) and ours.tolist() == list(range(0, n, 2))


def test_boxes_without_an_area_and_beyond_every_number() -> None:
    boxes = _boxes(12).float()
    boxes[2:5], boxes[7], boxes[9, 2] = 0, torch.tensor([8.0, 8, 2, 2]), math.inf
    check(_vision.nms, boxes, torch.linspace(0, 1, 12), 0.1)


def test_suppression_waits_once() -> None:
    boxes, scores = _boxes(600).float().cuda(), torch.rand(600).cuda()
    waits = wooly.stats()["waits"]
    _vision.nms(boxes, scores, 0.5)
    assert wooly.stats()["waits"] == waits + 1


def test_what_a_form_does_not_take_is_left_to_the_library() -> None:
    with pytest.raises(RuntimeError, match="boxes should be a 2d tensor"):
        _vision.nms(torch.ones(4, device="cuda"), torch.ones(1, device="cuda"), 0.5)


_ROIS = torch.tensor(
    [[0, 1.2, 0.7, 6.1, 7.9], [1, -1.5, 2.25, 3.5, 11], [1, 0, 0, 3, 3], [0, 5, 5, 5, 5], [0, 30, 30, 40, 40], [1, 2.5, 1.5, 4.5, 2.5]],
    dtype=torch.float64,
)


def _check_pooling(name: str, reference: Callable[..., torch.Tensor], x: torch.Tensor, *numbers: Any) -> None:
    """The operator and its backward operator; ``reference``: what is differentiated, where it is not the operator's own definition."""
    rois = _ROIS.to(x.dtype)
    check(getattr(_vision, name), x, rois, *numbers)
    given = x.detach().requires_grad_()
    y = reference(given, rois, *numbers)
    slope = torch.linspace(0.5, 1.5, y.numel(), dtype=y.dtype).view(y.shape)
    (expected,) = torch.autograd.grad((y * slope).nan_to_num().sum(), given)
    extra = getattr(_vision, name)(x, rois, *numbers)
    pooled, rest = numbers[:3], numbers[3:]
    sizes = [*pooled, *x.shape, *rest] if name == "roi_align" else [*pooled, *rest, *x.shape]
    tensors = [slope, rois] if name == "roi_align" else [slope, rois, extra[1]]
    before = dict(wooly.stats()["fallbacks"])
    ours = getattr(_vision, f"_{name}_backward")(*(t.cuda() for t in tensors), *sizes)
    assert wooly.stats()["fallbacks"] == before
    torch.testing.assert_close(ours.cpu(), expected)


@pytest.mark.parametrize("ratio", [0, 2])
@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_regions_sampled_between_pixels(scale: float, ratio: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 4, 9, 8, dtype=torch.float64)
    for aligned in (False, True):
        _check_pooling("roi_align", roi_align, x, scale, 3, 2, ratio, aligned)
    _check_pooling("ps_roi_align", lambda *args: ps_roi_align(*args)[0], x, scale, 2, 2, ratio)
    check(_vision.roi_align, x.float(), _ROIS.float(), scale, 2, 2, ratio, True)


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_regions_of_whole_pixels(scale: float) -> None:
    torch.manual_seed(0)
    for x in (torch.randn(2, 4, 9, 8, dtype=torch.float64), torch.randint(-2, 2, (2, 4, 9, 8)).float()):
        _check_pooling("roi_pool", lambda *args: roi_pool(*args)[0], x, scale, 2, 3)
        _check_pooling("ps_roi_pool", _means_to_the_end, x, scale, 2, 2)


@pytest.mark.filterwarnings("ignore:torchvision")
def test_regions_in_several_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step over part of a row of samples, and one over some rows."""
    torch.manual_seed(0)
    x = torch.randn(2, 4, 9, 8, dtype=torch.float64)
    for numbers in (300, 2000):
        monkeypatch.setattr(forms, "_NUMBERS_MAX", numbers)
        _check_pooling("roi_align", roi_align, x, 1.0, 3, 2, 0, True)
        _check_pooling("roi_pool", lambda *args: roi_pool(*args)[0], x.round(), 1.0, 2, 2)
    monkeypatch.setattr(forms, "_STEPS_MAX", 1)
    before = wooly.stats()["fallbacks"].get("torchvision::roi_align", 0)
    ours = _vision.roi_align(x.cuda(), _ROIS.cuda(), 1.0, 3, 2, 0, True)
    torch.testing.assert_close(ours.cpu(), roi_align(x, _ROIS, 1.0, 3, 2, 0, True))
    assert wooly.stats()["fallbacks"]["torchvision::roi_align"] == before + 1


def test_no_regions_and_no_channels() -> None:
    for x, rois in ((torch.randn(2, 4, 5, 5), _ROIS[:0].float()), (torch.randn(2, 0, 5, 5), _ROIS.float())):
        check(_vision.roi_align, x, rois, 1.0, 2, 2, 2, True)
        check(_vision.ps_roi_align, x, rois, 1.0, 2, 2, 2)
        check(_vision.roi_pool, x, rois, 1.0, 2, 2)
        check(_vision.ps_roi_pool, x, rois, 1.0, 2, 2)


@pytest.mark.parametrize(("groups", "offset_groups", "use_mask"), [(1, 1, False), (2, 1, True), (1, 2, True), (2, 2, False)])
def test_deformable_convolution(monkeypatch: pytest.MonkeyPatch, groups: int, offset_groups: int, use_mask: bool) -> None:
    torch.manual_seed(0)
    given = [
        torch.randn(3, 4, 9, 8), torch.randn(6, 4 // groups, 3, 2), 2 * torch.randn(3, 12 * offset_groups, 4, 7),
        torch.rand(3, 6 * offset_groups, 4, 7) if use_mask else torch.zeros(3, 1), torch.randn(6),
    ]  # fmt: skip
    given = [tensor.double().requires_grad_() for tensor in given]
    numbers = (2, 1, 1, 0, 2, 1, groups, offset_groups, use_mask)
    y = deform_conv2d(*given, *numbers)
    slope = torch.linspace(0.5, 1.5, y.numel(), dtype=y.dtype).view(y.shape)
    gradients = torch.autograd.grad((y * slope).sum(), given, materialize_grads=True)
    plain = [tensor.detach() for tensor in given]
    for numbers_max in (1 << 24, 1500):  # all images at a time, and one after the other
        monkeypatch.setattr(forms, "_NUMBERS_MAX", numbers_max)
        check(_vision.deform_conv2d, *plain, *numbers)
        ours = _vision._deform_conv2d_backward(*(tensor.cuda() for tensor in (slope, *plain)), *numbers)
        for result, expected in zip(ours, gradients, strict=True):
            torch.testing.assert_close(result.cpu(), expected)
    check(_vision.deform_conv2d, *(tensor[:0] if i in (0, 2, 3) else tensor for i, tensor in enumerate(plain)), *numbers)


def test_composites_that_this_torch_has_no_operator_for_are_left_out() -> None:
    """``aten::cholesky`` is not in torch 2.14."""
    names = [info.name for _, info in described({"aten::histc": min, "aten::is_not_there": min, "torchvision::nms": min})]
    assert names == ["aten::histc"]
    assert {info.name for _, info in described(COMPOSITES)} <= COMPOSITES.keys()


@pytest.mark.parametrize("namespace", ["torchvision", "torchaudio", "of_a_script"])
def test_operators_without_a_form_have_none(namespace: str) -> None:
    """Their library's kernels for the CPU compute them."""
    assert libraries.form_of(f"{namespace}::no_such_operator") is None
