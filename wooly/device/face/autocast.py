"""Autocast: ``torch.autocast("cuda")`` switches our backend's, with CUDA's operator lists, from ATen/autocast_mode.h (torch 2.13), as
``name`` or ``name.overload``.

torch's own CUDA autocast kernels recognise CUDA tensors in C++, which ours are not, so the same rules are registered for our key.

A test compares them with the header of the installed torch.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch import Tensor

from wooly.device.backend import BACKEND, SHOWN, is_ours, library
from wooly.device.face.api import Face, put, wrapping

__all__ = ["FP32", "FP32_SET_OPT_DTYPE", "FP32_SET_OPT_DTYPE_NAMED", "LOWER_PRECISION", "PROMOTE", "patch"]

LOWER_PRECISION: Final = tuple(
    """
    _convolution.deprecated _convolution conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d.input conv_transpose3d.input
    convolution prelu addmm addmv addr matmul einsum mm mv linalg_vecdot linear addbmm baddbmm bmm chain_matmul linalg_multi_dot
    _thnn_fused_lstm_cell _thnn_fused_gru_cell lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell _scaled_dot_product_flash_attention
    scaled_dot_product_attention
    """.split()
)
"""Run in the autocast type (float16 or bfloat16)."""

FP32: Final = tuple(
    """
    acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar
    softplus layer_norm native_layer_norm rms_norm group_norm frobenius_norm.dim nuclear_norm nuclear_norm.dim cosine_similarity
    poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss mse_loss
    margin_ranking_loss multilabel_margin_loss soft_margin_loss triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits
    dist pdist cdist renorm logsumexp upsample_nearest1d _upsample_nearest_exact1d upsample_nearest2d _upsample_nearest_exact2d
    upsample_nearest3d _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d
    upsample_bicubic2d _upsample_bicubic2d_aa
    """.split()
)
"""Run in float32."""

FP32_SET_OPT_DTYPE: Final = tuple(
    """
    prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm linalg_matrix_norm linalg_matrix_norm.str_ord
    sum sum.dim_IntList
    """.split()
)
"""Given ``dtype=float32`` unless the caller chose one; the operator casts."""

FP32_SET_OPT_DTYPE_NAMED: Final = tuple(
    "cumprod.dimname cumsum.dimname log_softmax.Dimname prod.dim_Dimname softmax.Dimname sum.dim_DimnameList".split()
)
"""The same for dimensions by name, which older versions list too."""

FP32_APPEND_DTYPE: Final = {"norm.Scalar": "norm.ScalarOpt_dtype", "norm.ScalarOpt_dim": "norm.ScalarOpt_dim_dtype"}
"""Replaced by the overload that takes a dtype, with float32."""

PROMOTE: Final = tuple("addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add".split())
"""Run in the widest type among the arguments."""

BANNED: Final = {
    "binary_cross_entropy": (
        "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
        "Many models use a sigmoid layer right before the binary cross entropy layer.\n"
        "In this case, combine the two layers using torch.nn.functional.binary_cross_entropy_with_logits\n"
        "or torch.nn.BCEWithLogitsLoss.  binary_cross_entropy_with_logits and BCEWithLogits are\n"
        "safe to autocast."
    )
}
"""Refused, and what CUDA says."""


_KEY: Final = "AutocastPrivateUse1"
_KEYS: Final = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, _KEY))
_libraries: Final[list[Any]] = []  # registrations last as long as these objects
# Leaf parameters cast in this autocast region, by id of the parameter; entries name the parameter so that a recycled id is noticed.
_cache: Final[dict[int, tuple[weakref.ref[Tensor], Tensor]]] = {}


def patch(face: Face) -> None:
    """Register the kernels and turn the switches to our backend."""
    _switches()
    _register()


def _switches() -> None:
    for name in ("is_autocast_enabled", "set_autocast_enabled", "get_autocast_dtype", "set_autocast_dtype"):
        _put(name, _redirected(getattr(torch, name)))

    modules: tuple[Any, ...] = (torch.amp, torch.amp.autocast_mode)
    available = torch.amp.autocast_mode.is_autocast_available

    def is_autocast_available(device_type: str) -> bool:
        return device_type == SHOWN or available(device_type)

    for module in modules:
        put(module, "is_autocast_available", is_autocast_available)

    # The names from before autocast knew other devices.
    _put("get_autocast_gpu_dtype", lambda: torch.get_autocast_dtype(SHOWN))
    _put("set_autocast_gpu_dtype", lambda dtype: torch.set_autocast_dtype(SHOWN, dtype))

    clear = torch.clear_autocast_cache

    @wrapping(clear)
    def clear_autocast_cache() -> None:
        _cache.clear()
        clear()

    _put("clear_autocast_cache", clear_autocast_cache)


def _put(name: str, function: Callable[..., Any]) -> None:
    """Under both names that the function has: torch.compile knows by that in torch._C what it may call while it traces."""
    for owner in (torch._C, torch):
        put(owner, name, function)


def _redirected(original: Callable[..., Any]) -> Callable[..., Any]:
    """``original`` with device type cuda (also when left out, where that is allowed) meaning ours."""

    @wrapping(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("device_type") == SHOWN:
            kwargs["device_type"] = BACKEND
        elif args and args[0] == SHOWN:
            args = (BACKEND, *args[1:])
        elif "device_type" not in kwargs and not (args and isinstance(args[0], str)):
            args = (BACKEND, *args)
        return original(*args, **kwargs)

    return function


def _register() -> None:
    everything, aten = library("_", "IMPL"), library("aten", "IMPL")
    everything.fallback(torch.library.fallthrough_kernel, _KEY)
    _libraries.extend((everything, aten))
    makers: tuple[tuple[tuple[str, ...], Callable[[Any], Callable[..., Any]]], ...] = (
        (LOWER_PRECISION, _lower_precision),
        (FP32, _fp32),
        (FP32_SET_OPT_DTYPE + FP32_SET_OPT_DTYPE_NAMED, _fp32_set_opt_dtype),
        (tuple(FP32_APPEND_DTYPE), _fp32_append_dtype),
        (PROMOTE, _promote),
        (tuple(BANNED), _banned),
    )
    for names, make in makers:
        for name in names:
            overload = _overload(name)
            if overload is not None:
                aten.impl(name, make(overload), _KEY)


def _overload(name: str) -> Any:
    """The operator, or None when this torch does not have it (the lists are one version's)."""
    base, _, overload = name.partition(".")
    packet = getattr(torch.ops.aten, base, None)
    return getattr(packet, overload or "default", None)


# --- casting


def _eligible(value: Any) -> bool:
    return isinstance(value, Tensor) and is_ours(value) and value.is_floating_point() and value.dtype is not torch.float64


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, Tensor):
        if not _eligible(value) or value.dtype is dtype:
            return value
        if dtype is not torch.float32 and value.dtype is torch.float32 and _cacheable(value):
            return _cached(value, dtype)
        return value.to(dtype)
    if isinstance(value, list | tuple):
        return [_cast(item, dtype) for item in value]
    return value


def _cacheable(value: Tensor) -> bool:
    """Parameters: cast once in a region, so that their gradients meet in one place. Not in no_grad: the copy would lack history."""
    return torch.is_grad_enabled() and value.requires_grad and value.is_leaf and not value._is_view() and torch.is_autocast_cache_enabled()


def _cached(value: Tensor, dtype: torch.dtype) -> Tensor:
    found = _cache.get(id(value))
    if found is not None and found[0]() is value and found[1].dtype is dtype:
        return found[1]
    cast = value.to(dtype)
    _cache[id(value)] = (weakref.ref(value), cast)
    return cast


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _run(op: Any, dtype: torch.dtype, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with torch._C._ExcludeDispatchKeyGuard(_KEYS):
        return op(*[_cast(arg, dtype) for arg in args], **{name: _cast(value, dtype) for name, value in kwargs.items()})


def _lower_precision(op: Any) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        return _run(op, torch.get_autocast_dtype(BACKEND), args, kwargs)

    return kernel


def _fp32(op: Any) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        return _run(op, torch.float32, args, kwargs)

    return kernel


def _fp32_set_opt_dtype(op: Any) -> Callable[..., Any]:
    place = next(index for index, argument in enumerate(op._schema.arguments) if argument.name == "dtype")

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_KEYS):
            chosen = kwargs.get("dtype") if len(args) <= place else args[place]
            if args and _eligible(args[0]) and chosen is None:
                kwargs["dtype"] = torch.float32
                args = args[:place]
            return op(*args, **kwargs)

    return kernel


def _fp32_append_dtype(op: Any) -> Callable[..., Any]:
    name = op._schema.name.removeprefix("aten::")
    wider = _overload(FP32_APPEND_DTYPE[f"{name}.{op._schema.overload_name}"])
    parameters = [argument.name for argument in op._schema.arguments]

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_KEYS):
            if not (args and _eligible(args[0])):
                return op(*args, **kwargs)
            given = {**dict(zip(parameters, args, strict=False)), **kwargs}
            values = [given.get(argument.name, argument.default_value) for argument in op._schema.arguments]
            return wider(*values, dtype=torch.float32)

    return kernel


def _promote(op: Any) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        tensors = _tensors((*args, *kwargs.values()))
        widest = any(value.dtype is torch.float32 for value in tensors if _eligible(value))
        return _run(op, torch.float32 if widest else torch.get_autocast_dtype(BACKEND), args, kwargs)

    return kernel


def _banned(op: Any) -> Callable[..., Any]:
    message = BANNED[op._schema.name.removeprefix("aten::")]

    def kernel(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(message)

    return kernel
