"""The parts of a batch normalisation over several ranks (``nn.SyncBatchNorm``), which torch has for CUDA alone: composites. Means and
deviations of 16-bit floats are float32, as there.
"""

from __future__ import annotations

import torch
from torch import Tensor

from wooly.device.lowering.registry import composite


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _along(values: Tensor, x: Tensor) -> Tensor:
    """A number a channel, beside ``x``."""
    return values.view(1, -1, *(1 for _ in range(x.dim() - 2)))


def _others(x: Tensor) -> list[int]:
    """All dimensions but that of the channels."""
    return [dim for dim in range(x.dim()) if dim != 1]


@composite("aten::batch_norm_stats")
def stats(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(mean, 1 / standard deviation) of every channel."""
    variance, mean = torch.var_mean(_wide(x), _others(x), correction=0)
    return mean, torch.rsqrt(variance + eps)


@composite("aten::batch_norm_gather_stats_with_counts")
def gathered(
    x: Tensor,
    mean: Tensor,
    invstd: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    counts: Tensor,
) -> tuple[Tensor, Tensor]:
    """The same of all ranks, of whose each there is a row, with the number of its elements. Writes the running statistics."""
    counts = counts.to(mean.dtype).view(-1, 1)
    count = counts.sum()
    whole = (mean * counts).sum(0) / count
    squares = ((invstd**-2 - eps + (mean - whole) ** 2) * counts).sum(0)
    if running_mean is not None:
        running_mean.copy_((1 - momentum) * running_mean + momentum * whole)
    if running_var is not None:
        running_var.copy_((1 - momentum) * running_var + momentum * squares / (count - 1))
    return whole, torch.rsqrt(squares / count + eps)


@composite("aten::batch_norm_elemt")
def normalised(x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, invstd: Tensor, eps: float) -> Tensor:
    out = (_wide(x) - _along(mean, x)) * _along(invstd, x)
    if weight is not None:
        out = out * _along(weight, x)
    if bias is not None:
        out = out + _along(bias, x)
    return out.to(x.dtype)


@composite("aten::batch_norm_backward_reduce")
def backward_sums(
    grad: Tensor, x: Tensor, mean: Tensor, invstd: Tensor, weight: Tensor | None, input_g: bool, weight_g: bool, bias_g: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(sums of the gradient, and of its product with what differs from the mean, gradients of weight and bias)."""
    wide = _wide(grad)
    total = wide.sum(_others(x))
    product = (wide * (_wide(x) - _along(mean, x))).sum(_others(x))
    dtype = weight.dtype if weight is not None else mean.dtype
    return total, product, (product * invstd).to(dtype), total.to(dtype)


@composite("aten::batch_norm_backward_elemt")
def backward(
    grad: Tensor, x: Tensor, mean: Tensor, invstd: Tensor, weight: Tensor | None, sum_dy: Tensor, sum_dy_xmu: Tensor, count: Tensor
) -> Tensor:
    """The gradient of the input; the sums are of all ranks, ``count`` of each."""
    elements = count.sum().to(mean.dtype)
    scale = invstd if weight is None else invstd * weight
    slope = invstd**2 * sum_dy_xmu / elements
    out = _wide(grad) - _along(sum_dy / elements, x) - (_wide(x) - _along(mean, x)) * _along(slope, x)
    return (out * _along(scale, x)).to(x.dtype)
