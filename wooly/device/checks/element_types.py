"""Checks of element types: types without a kernel for the operation, and types that cannot be written into an out= tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

from wooly.device.checks.arguments import arguments
from wooly.device.checks.places import tensors_of, title
from wooly.device.infer import Unknown, infer
from wooly.device.schema import OpInfo


def castable(result: torch.dtype, out: torch.dtype) -> None:
    """Raises RuntimeError when an out= tensor cannot take results of type ``result``."""
    if not torch.can_cast(result, out):
        raise RuntimeError(f"result type {title(result)} can't be cast to the desired output type {title(out)}")


_BOOL: Final = frozenset({torch.bool})
_INTEGER: Final = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64})
_HALF: Final = frozenset({torch.float16, torch.bfloat16})
_FLOATING: Final = _HALF | {torch.float32, torch.float64}
_COMPLEX: Final = frozenset({torch.complex32, torch.complex64, torch.complex128})

_WIDE_UNSIGNED: Final = frozenset({torch.uint16, torch.uint32, torch.uint64})
"""They have no common type with other integers; torch raises RuntimeError."""

_REFUSED_DTYPES: Final[dict[str, frozenset[torch.dtype]]] = {
    name: refused
    for refused, names in (
        (
            _BOOL | _INTEGER | _COMPLEX,
            """
            _adaptive_avg_pool2d _adaptive_avg_pool3d _batch_norm_with_update _log_softmax _log_softmax_backward_data
            _native_batch_norm_legit _prelu_kernel _softmax _softmax_backward_data adaptive_max_pool2d adaptive_max_pool3d bernoulli
            binary_cross_entropy binary_cross_entropy_with_logits celu elu frac gelu glu grid_sampler_2d_backward hardshrink hardsigmoid
            hardswish huber_loss hypot igamma igammac leaky_relu log_normal log_sigmoid_forward logaddexp2 max_pool2d_with_indices_backward
            max_pool3d_with_indices_backward max_unpool2d max_unpool3d mish mse_loss multi_margin_loss multilabel_margin_loss_forward
            multinomial native_batch_norm native_group_norm native_layer_norm nextafter nll_loss_forward nll_loss2d_forward
            normal.Tensor_Tensor normal.float_Tensor round.decimals rrelu_with_noise segment_reduce smooth_l1_loss softplus softshrink
            upsample_linear1d upsample_trilinear3d
            """,
        ),
        (
            _BOOL | _INTEGER,
            """
            addcdiv grid_sampler_2d grid_sampler_3d lerp logaddexp logcumsumexp normal silu soft_margin_loss std std_mean uniform var
            var_mean
            """,
        ),
        (
            _BOOL | _COMPLEX,
            """
            argmax argmin bucketize ceil clamp div.Scalar_mode div.Tensor_mode floor floor_divide fmod geometric histc index_reduce
            kthvalue max_pool2d_with_indices max_pool3d_with_indices median mvlgamma nanmedian relu remainder round searchsorted threshold
            topk trunc
            """,
        ),
        (
            _BOOL,
            """
            _trilinear addbmm addcmul addmm addmv baddbmm bmm dot linalg_cross mm mv pow reflection_pad1d reflection_pad2d reflection_pad3d
            replication_pad1d replication_pad2d replication_pad3d vdot
            """,
        ),
        (
            _COMPLEX,
            """
            _unique2 amax amin aminmax atan2 bernoulli.p bernoulli_.Tensor bernoulli_.float clamp.Tensor clamp_max clamp_min copysign erf
            erfc erfinv fmax fmin ge gt hardtanh le logit lt max maximum min minimum native_dropout sign signbit sort special_xlog1py
            unique_consecutive xlogy
            """,
        ),
        (_INTEGER, "im2col"),
        (
            _BOOL | _COMPLEX | _INTEGER - {torch.uint8},
            """
            _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d upsample_bicubic2d upsample_bilinear2d
            upsample_nearest1d upsample_nearest2d upsample_nearest3d
            """,
        ),
        (_FLOATING | _COMPLEX | _BOOL, "bincount bitwise_left_shift bitwise_right_shift"),
        (_FLOATING | _COMPLEX, "__ilshift__ __irshift__ __lshift__ __rshift__ bitwise_and bitwise_not bitwise_or bitwise_xor"),
        (
            _HALF | _COMPLEX,
            """
            special_airy_ai special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1 special_erfcx special_log_ndtr
            special_modified_bessel_i0 special_modified_bessel_i1 special_modified_bessel_k0 special_modified_bessel_k1 special_ndtri
            special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1 special_spherical_bessel_j0 special_zeta
            special_chebyshev_polynomial_t special_chebyshev_polynomial_u special_chebyshev_polynomial_v special_chebyshev_polynomial_w
            special_hermite_polynomial_h special_hermite_polynomial_he special_laguerre_polynomial_l special_legendre_polynomial_p
            special_shifted_chebyshev_polynomial_t special_shifted_chebyshev_polynomial_u special_shifted_chebyshev_polynomial_v
            special_shifted_chebyshev_polynomial_w
            """,
        ),
        (_HALF, "_cdist_forward"),
        (frozenset({torch.float16}), "polar"),
        (_WIDE_UNSIGNED, "isin.Scalar_Tensor isin.Tensor_Tensor"),
    )
    for name in names.split()
}
"""By operation, or overload where these differ: element types for which neither torch's CUDA kernel nor its CPU kernel exists.

torch's meta kernels, which answer everything else about a call, do not look at this.
"""

_PROMOTING: Final = frozenset(
    """
    __ilshift __irshift __lshift __rshift addcdiv addcmul atan2 bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift
    bitwise_xor bucketize clamp clamp_max clamp_min copysign div floor_divide fmax fmin fmod ge gt huber_loss hypot igamma igammac le
    logaddexp logaddexp2 lt maximum minimum mse_loss nextafter pow remainder searchsorted smooth_l1_loss soft_margin_loss
    special_chebyshev_polynomial_t special_chebyshev_polynomial_u special_chebyshev_polynomial_v special_chebyshev_polynomial_w
    special_hermite_polynomial_h special_hermite_polynomial_he special_laguerre_polynomial_l special_legendre_polynomial_p
    special_shifted_chebyshev_polynomial_t special_shifted_chebyshev_polynomial_u special_shifted_chebyshev_polynomial_v
    special_shifted_chebyshev_polynomial_w special_xlog1py special_zeta xlogy
    """.split()
)
"""Operations that compute in the common type of their arguments; the others compute in that of the first."""

_FITTING: Final = _PROMOTING | frozenset("addbmm addmm addmv aminmax baddbmm bmm dot lerp linalg_cross max min mm mv vdot".split())
"""Operations whose operands must fit each other."""

_JOINING: Final = _PROMOTING | frozenset("cat eq gcd isin lcm logical_and logical_or logical_xor mul ne where".split())
"""Operations whose tensors must have a common type, which torch's meta kernels do not all look for."""

_REFUSALS: Final[dict[str, tuple[frozenset[torch.dtype], str]]] = {
    "addcdiv": (
        _BOOL | _INTEGER,
        "Integer division with addcdiv is no longer supported, and in a future  release addcdiv will perform a true division of tensor1 "
        "and tensor2. The historic addcdiv behavior can be implemented as (input + value * torch.trunc(tensor1 / tensor2)).to(input.dtype) "
        "for integer inputs and as (input + value * tensor1 / tensor2) for float inputs. The future addcdiv behavior is just the latter "
        "implementation: (input + value * tensor1 / tensor2), for all dtypes.",
    ),
    "argmax": (_BOOL | _COMPLEX, "argmax(): does not support {kind} input"),
    "argmin": (_BOOL | _COMPLEX, "argmin(): does not support {kind} input"),
    "fmax": (_COMPLEX, "fmax not implemented for complex tensors."),
    "fmin": (_COMPLEX, "fmin not implemented for complex tensors."),
    "max.dim": (_COMPLEX, "max(): does not support {kind} input"),
    "maximum": (_COMPLEX, "maximum not implemented for complex tensors."),
    "minimum": (_COMPLEX, "minimum not implemented for complex tensors."),
    "min.dim": (_COMPLEX, "min(): does not support {kind} input"),
    "multinomial": (_BOOL | _INTEGER | _COMPLEX, "multinomial only supports floating-point dtypes for input, got: {title}"),
    "mvlgamma": (_BOOL, "The input tensor may not be a boolean tensor."),
    "normal.Tensor_Tensor": (_COMPLEX, "normal expects standard deviation to be non-complex"),
    "normal.float_Tensor": (_COMPLEX, "normal expects standard deviation to be non-complex"),
    "relu": (_BOOL, "Boolean inputs not supported for relu"),
    "sort": (_COMPLEX, "Sort does not support complex dtypes"),
    "soft_margin_loss": (_BOOL | _INTEGER, "result type Float can't be cast to the desired output type {title}"),
    "std": (_BOOL | _INTEGER, "std and var only support floating point and complex dtypes"),
    "std_mean": (_BOOL | _INTEGER, "std_mean only support floating point and complex dtypes"),
    "topk": (_BOOL | _COMPLEX, "topk does not support {kind} dtypes"),
    "var": (_BOOL | _INTEGER, "std and var only support floating point and complex dtypes"),
    "var_mean": (_BOOL | _INTEGER, "var_mean only support floating point and complex dtypes"),
}
"""What torch says where it raises RuntimeError; for the other types it raises NotImplementedError, as its dispatch macros do."""


def refuses_dtypes(info: OpInfo) -> bool:
    """Whether ``dtypes`` may refuse a call of ``info``."""
    return any(name in _REFUSED_DTYPES for name in _names(info))


def dtypes(info: OpInfo, values: Sequence[Any]) -> None:
    """Refuse element types that the operation has no kernel for anywhere; raises the class that torch raises.

    Operations of ``_EMPTY_PASSES`` return before torch's kernels look at the type of an empty tensor.
    """
    tensors = [t for i, t in tensors_of(values) if not info.args[i].is_out]
    if info.base == "isin" and isinstance(values[0], torch.Tensor) and not values[0].numel():
        return  # before torch looks at the types
    if any(t.dtype in _WIDE_UNSIGNED for t in tensors) and info.base.rstrip("_") in _JOINING:
        _computed_dtype(info, values, tensors[1:] if info.base == "where" else tensors)
    looked_at = [t for i, t in tensors_of(values) if info.args[i].name == "self"] if info.base in _BY_SELF else tensors
    names = _names(info)
    refused = next((_REFUSED_DTYPES[name] for name in names if name in _REFUSED_DTYPES), None)
    if (
        refused is None
        or not tensors
        or ((names[0] if "median" in info.base else info.base) in _EMPTY_PASSES and not all(t.numel() for t in looked_at))
    ):
        return
    dtype = _computed_dtype(info, values, tensors)
    if info.base == "kthvalue" and not tensors[0].dim():
        return  # it has one value to pick
    if dtype not in refused:
        return
    if info.base.rstrip("_") in _FITTING and _misfits(info, values):
        return
    arguments(info, values)  # which torch looks at first
    worded, text = next((_REFUSALS[name] for name in names if name in _REFUSALS), (_NONE, ""))
    if dtype in worded:
        raise RuntimeError(text.format(title=title(dtype), kind="bool" if dtype is torch.bool else "complex"))
    raise NotImplementedError(f"\"{info.base}_cuda\" not implemented for '{title(dtype)}'")


_EMPTY_PASSES: Final = frozenset(
    """
    _adaptive_avg_pool2d _cdist_forward _log_softmax _softmax _trilinear addmm addmv amax amin baddbmm bernoulli bmm bucketize median mm mv
    nanmedian
    searchsorted
    """.split()
)

_BY_SELF: Final = frozenset({"addmm", "baddbmm", "bucketize", "searchsorted"})
"""Operations that return early by ``self`` alone, not by any of their tensors."""

_NONE: Final[frozenset[torch.dtype]] = frozenset()


def _misfits(info: OpInfo, values: Sequence[Any]) -> bool:
    """Whether sizes or types do not fit each other, which torch notices first; planning raises what torch raises."""
    try:
        infer(info, values)
    except Unknown as unknown:
        return not unknown.missing
    return False


def _names(info: OpInfo) -> tuple[str, ...]:
    """Under which names ``info`` may stand in the tables: its overload, then its operation, in place or not."""
    return info.name.partition("::")[2], info.base, info.base.rstrip("_")


def _computed_dtype(info: OpInfo, values: Sequence[Any], tensors: Sequence[torch.Tensor]) -> torch.dtype:
    """The type an operation computes in, as far as it is known before: the one asked for, the common one, or the first tensor's."""
    asked = next((v for a, v in zip(info.args, values, strict=True) if a.name == "dtype"), None)
    if isinstance(asked, torch.dtype):
        return asked
    if info.base.rstrip("_") not in _JOINING:
        return tensors[0].dtype
    numbers = [v for a, v in zip(info.args, values, strict=True) if a.name in _OPERANDS and isinstance(v, _NUMBERS)]
    like = torch.empty((1,) * tensors[0].dim(), dtype=tensors[0].dtype, device="meta")
    for other in (*tensors[1:], *numbers):
        meta = torch.empty((1,) * other.dim(), dtype=other.dtype, device="meta") if isinstance(other, torch.Tensor) else other
        like = torch.empty((1,) * like.dim(), dtype=torch.result_type(like, meta), device="meta")
    return like.dtype


_NUMBERS: Final = (bool, int, float, complex)
_OPERANDS: Final = frozenset({"self", "other", "exponent", "min", "max"})
