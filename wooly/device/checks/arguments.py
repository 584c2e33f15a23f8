"""Arguments that torch's kernels check and its meta kernels do not, and parameters that a distribution does not have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from wooly.device.checks.names import title
from wooly.device.schema import OpInfo

__all__ = ["arguments", "distribution"]


def arguments(info: OpInfo, values: Sequence[Any]) -> None:
    """Raises RuntimeError, in torch's words, for arguments that torch's kernels check and its meta kernels do not."""
    rule = _RULES.get(info.base)
    if rule is not None:
        rule({arg.name: value for arg, value in zip(info.args, values, strict=True)})


def _multinomial(given: dict[str, Any]) -> None:
    weights, count, out = given["self"], given["num_samples"], given.get("out")
    if weights.dim() not in (1, 2):
        raise RuntimeError("prob_dist must be 1 or 2 dim")
    if out is not None and out.dtype != torch.int64:
        raise RuntimeError(f"multinomial expects Long tensor out, got: {title(out.dtype)}")
    if count <= 0:
        raise RuntimeError("cannot sample n_sample <= 0 samples")
    if not given["replacement"] and count > weights.size(-1):
        raise RuntimeError("cannot sample n_sample > prob_dist.size(-1) samples without replacement")
    if weights.size(-1) > _CATEGORIES_MAX:
        raise RuntimeError("number of categories cannot exceed 2^24")


_CATEGORIES_MAX: Final = 1 << 24


def _reduced_dim(name: str) -> Callable[[dict[str, Any]], None]:
    """The rule of reductions that pick an element: there must be one."""

    def rule(given: dict[str, Any]) -> None:
        x, dim = given["self"], given.get("dim")
        if isinstance(dim, int) and x.dim() and -x.dim() <= dim < x.dim() and x.size(dim) == 0:
            raise IndexError(f"{name}(): Expected reduction dim {dim % x.dim()} to have non-zero size.")
        if name in ("max", "min") and "dim" not in given and not x.numel():
            text = "Expected reduction dim to be specified for input.numel() == 0. Specify the reduction dim with the 'dim' argument."
            raise RuntimeError(f"{name}(): {text}")

    return rule


def _gelu(given: dict[str, Any]) -> None:
    if given["approximate"] not in ("none", "tanh"):
        raise RuntimeError("approximate argument must be either none or tanh.")


def _masked_scatter(given: dict[str, Any]) -> None:
    if given["mask"].dtype != torch.bool:
        raise RuntimeError(f"masked_scatter_ only supports boolean masks, but got mask with dtype {title(given['mask'].dtype)}")


def _group_norm(given: dict[str, Any]) -> None:
    if torch.__version__ >= "2.14":
        return  # its kernels take every layout
    x = given["input"]
    formats = (torch.contiguous_format, *{4: (torch.channels_last,), 5: (torch.channels_last_3d,)}.get(x.dim(), ()))
    if not any(x.is_contiguous(memory_format=one) for one in formats):
        raise RuntimeError("Expected X.is_contiguous(memory_format) to be true, but got false.")


def _heaviside(given: dict[str, Any]) -> None:
    x, values = given["self"], given["values"]
    if x.is_complex() or values.is_complex():
        raise RuntimeError("heaviside is not yet implemented for complex tensors.")
    if x.dtype != values.dtype:
        raise RuntimeError("heaviside is not yet implemented for tensors with different dtypes.")


def _arange(given: dict[str, Any]) -> None:
    out, step = given.get("out"), given.get("step")
    if out is not None and step and not (out.is_floating_point() or out.is_complex()) and int(step) == 0:
        raise ValueError("step must be nonzero")  # it is converted to the type of the output


def _put(given: dict[str, Any]) -> None:
    index, source = given["index"], given["source"]
    if index.dtype != torch.int64:
        raise RuntimeError(f"put_(): Expected a long tensor for index, but got {title(index.dtype)}")
    if source.numel() != index.numel():
        counts = f"source.numel() = {source.numel()}, index.numel() = {index.numel()}"
        raise IndexError(f"put_(): Expected source and index to have the same number of elements, but got {counts}")
    if index.numel() and not given["self"].numel():
        raise IndexError("put_(): Tried to put elements into an empty tensor")


def _mv(given: dict[str, Any]) -> None:
    matrix, vector = given["self"].dtype, given["vec"].dtype
    if matrix != vector:
        kinds = f"{title(vector)}, {title(matrix)}, and {title(vector)}"
        raise RuntimeError(f"addmv input tensors must have the same dtype, but got {kinds}")


def _class_weights(given: dict[str, Any]) -> None:
    weight, x = given["weight"], given["self"]
    if weight is not None and weight.dtype != x.dtype:
        raise RuntimeError(f"expected scalar type {title(x.dtype)} but found {title(weight.dtype)}")


def _logits_weights(given: dict[str, Any]) -> None:
    """torch multiplies in place: weights may not have more elements than the input."""
    x = given["self"]
    for weight in (given["weight"], given["pos_weight"]):
        wide = x if weight is None else torch.ops.aten.broadcast_tensors([x, weight])[0]
        if wide.size() != x.size():
            raise RuntimeError(f"output with shape {list(x.size())} doesn't match the broadcast shape {list(wide.size())}")


_RULES: Final[dict[str, Callable[[dict[str, Any]], None]]] = {
    "multinomial": _multinomial,
    "gelu": _gelu,
    "gelu_backward": _gelu,
    "masked_scatter": _masked_scatter,
    "masked_scatter_": _masked_scatter,
    "native_group_norm": _group_norm,
    "arange": _arange,
    "heaviside": _heaviside,
    "heaviside_": _heaviside,
    "mv": _mv,
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward", "multi_margin_loss"), _class_weights),
    "binary_cross_entropy_with_logits": _logits_weights,
    "put": _put,
    "put_": _put,
    **{name: _reduced_dim(name.removeprefix("nan")) for name in ("kthvalue", "max", "median", "min", "mode", "nanmedian")},
}


_DISTRIBUTIONS: Final = frozenset("uniform_ normal_ normal log_normal_ exponential_ cauchy_ geometric_ bernoulli_ random_".split())


def distribution(info: OpInfo, values: Sequence[Any]) -> None:
    """Raises RuntimeError, in torch's words, for parameters that the distribution does not have: the CPU is asked to draw nothing with
    them. Called for every draw, because numbers are not part of a signature."""
    if info.base in _DISTRIBUTIONS:
        given = list(zip(info.args, map(_nothing, values), strict=True))
        info.op(*(value for arg, value in given if not arg.kwarg_only), **{arg.name: value for arg, value in given if arg.is_out})


def _nothing(value: Any) -> Any:
    """``value`` without elements: an empty tensor on the CPU, an empty size."""
    if isinstance(value, torch.Tensor):
        return torch.empty(0, dtype=value.dtype, device="cpu")
    return (0,) if isinstance(value, list | tuple) else value
