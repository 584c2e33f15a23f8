"""Mistakes that CUDA reports and a recording device must find itself: mixed devices, overlapping targets, wrong out= types.

May live here: checks of arguments, raising what CUDA raises. May not: recording. They run once a signature (see calls.py), because
each depends only on metadata and on which arguments share a buffer; ``distribution`` alone runs at every draw.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import torch

from wooly.device.backend import handle_of, is_our_device, is_ours, offset_of, raw_device
from wooly.device.infer import Unknown, infer
from wooly.device.schema import Kind, OpInfo

__all__ = [
    "devices", "dtypes", "refuses_dtypes", "arguments", "overlap", "tensors_of", "CPU_INDEX_OPS", "may_be_cpu_indices", "castable",
    "result_type", "distribution",
    "is_dense", "repeats", "SELF_OVERLAP",
]  # fmt: skip

CPU_INDEX_OPS: Final = frozenset(
    {"index", "index_put", "index_put_", "_index_put_impl", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"}
)
"""Operations whose index tensors may live on the CPU."""


def tensors_of(values: Sequence[Any]) -> Iterator[tuple[int, torch.Tensor]]:
    """(argument index, tensor) for every tensor among ``values``, lists included."""
    for i, value in enumerate(values):
        if isinstance(value, torch.Tensor):
            yield i, value
        elif isinstance(value, list | tuple):
            for item in value:
                if isinstance(item, torch.Tensor):
                    yield i, item


def devices(info: OpInfo, values: Sequence[Any]) -> None:
    """Every tensor on the device, but for 0-dim CPU tensors that are only read; raises RuntimeError as CUDA does."""
    for i, tensor in tensors_of(values):
        if is_ours(tensor):
            continue
        arg = info.args[i]
        device = raw_device(tensor)
        if device.type == "cpu" and not arg.written and (tensor.dim() == 0 or may_be_cpu_indices(info, i)):
            continue
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, cuda:0 and {device}! "
            f"(when checking argument for argument {arg.name} in method wrapper_CUDA_{info.base})"
        )
    for arg, value in zip(info.args, values, strict=True):
        if arg.kind is Kind.LAYOUT and value not in (None, torch.strided) and _on_ours(info, values):
            raise NotImplementedError(f"aten::{info.base}: layout {value} is not supported on this device; use strided tensors")


def _on_ours(info: OpInfo, values: Sequence[Any]) -> bool:
    device = next((v for a, v in zip(info.args, values, strict=True) if a.kind is Kind.DEVICE), None)
    return device is None or is_our_device(device)


def may_be_cpu_indices(info: OpInfo, index: int) -> bool:
    """May argument ``index`` of ``info`` hold CPU tensors of any rank?"""
    return info.base in CPU_INDEX_OPS and info.args[index].name == "indices"


_MASKS: Final = (torch.bool, torch.uint8)


def indices(info: OpInfo, values: Sequence[Any]) -> None:
    """What torch checks before it indexes: IndexError for masks of other sizes than what they mask, RuntimeError for values of another type
    than the tensor they are put into."""
    if info.base not in CPU_INDEX_OPS and info.base not in ("put", "put_"):
        return
    named = {arg.name: value for arg, value in zip(info.args, values, strict=True)}
    target, source = named["self"], named.get("values", named.get("source"))
    masked = False
    if "indices" in named:
        masked = _check_masks(target, named["indices"])
    if isinstance(source, torch.Tensor) and source.dtype != target.dtype:
        if masked and source.numel() == 1 and not named["accumulate"]:
            return  # a fill, which converts
        if "indices" in named:
            raise RuntimeError(
                f"Index put requires the source and destination dtypes match, got {_title(target.dtype)} for the destination "
                f"and {_title(source.dtype)} for the source."
            )
        raise RuntimeError(
            f"put_(): self and source expected to have the same dtype, but got self.dtype = {_title(target.dtype)} "
            f"and source.dtype = {_title(source.dtype)}"
        )


def _check_masks(target: torch.Tensor, given: Sequence[torch.Tensor | None]) -> bool:
    """Raises IndexError where the sizes of a mask are not those of the dimensions it stands for; whether there is a mask."""
    at, masked = 0, False
    for index in given:
        if index is None or index.dtype not in _MASKS:
            at += 1
            continue
        masked = True
        for i, size in enumerate(index.size()):
            if at + i >= target.dim() or target.size(at + i) != size:
                raise IndexError(
                    f"The shape of the mask {list(index.size())} at index {i} does not match the shape of the indexed tensor "
                    f"{list(target.size())} at index {at + i}"
                )
        at += index.dim()
    return masked


def loss_weights(info: OpInfo, values: Sequence[Any]) -> None:
    """Raises RuntimeError when weights of binary_cross_entropy_with_logits have more elements than its input: torch works in place."""
    if info.base != "binary_cross_entropy_with_logits":
        return
    named = {arg.name: value for arg, value in zip(info.args, values, strict=True)}
    shape = named["self"].size()
    for weight in (named["weight"], named["pos_weight"]):
        wide = shape if weight is None else torch.broadcast_shapes(shape, weight.size())  # type: ignore[no-untyped-call]
        if wide != shape:
            raise RuntimeError(f"output with shape {list(shape)} doesn't match the broadcast shape {list(wide)}")


def same_shape(info: OpInfo, values: Sequence[Any], result: Any) -> None:
    """Raises RuntimeError when the ``result`` of an in-place operation has another shape than the tensor it is to be written into."""
    target = next(value for arg, value in zip(info.args, values, strict=True) if arg.written)
    if isinstance(result, torch.Tensor) and isinstance(target, torch.Tensor) and result.size() != target.size():
        raise RuntimeError(f"output with shape {list(target.size())} doesn't match the broadcast shape {list(result.size())}")


SELF_OVERLAP: Final = (
    "unsupported operation: more than one element of the written-to tensor refers to a single memory location. "
    "Please clone() the tensor before performing the operation."
)


def repeats(target: torch.Tensor) -> bool:
    """Is it expanded: several elements of one stride-0 dimension in one place?"""
    return target.numel() > 0 and any(stride == 0 and size > 1 for size, stride in zip(target.size(), target.stride(), strict=True))


def overlap(info: OpInfo, values: Sequence[Any]) -> None:
    """Refuse to write a tensor that overlaps itself, or partly overlaps another argument; raises RuntimeError as torch does."""
    written = [t for i, t in tensors_of(values) if info.args[i].written and is_ours(t)]
    sharing: dict[int, list[torch.Tensor]] = {}
    for tensor in (t for _, t in tensors_of(values) if written and is_ours(t)):
        sharing.setdefault(handle_of(tensor), []).append(tensor)
    for target in written:
        if repeats(target):
            raise RuntimeError(SELF_OVERLAP)
        if any(other is not target and _overlaps_partly(target, other) for other in sharing[handle_of(target)]):
            raise RuntimeError(_SHARED)
        apart = [v for a, v in zip(info.args, values, strict=True) if a.name in _SEPARATE.get(info.base, ())]
        if any(isinstance(v, torch.Tensor) and is_ours(v) and _overlaps(target, v) for v in apart):
            raise RuntimeError(_SHARED)


_SHARED: Final = (
    "unsupported operation: some elements of the input tensor and the written-to tensor refer to a single memory location. "
    "Please clone() the tensor before performing the operation."
)


def _overlaps(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Do two dense tensors share memory?"""
    if not (a.numel() and b.numel() and is_dense(a) and is_dense(b)) or handle_of(a) != handle_of(b):
        return False
    (a_low, a_high), (b_low, b_high) = _range(a), _range(b)
    return a_low < b_high and b_low < a_high


def _overlaps_partly(a: torch.Tensor, b: torch.Tensor) -> bool:
    """As torch decides it: only for dense tensors, all else is too hard to tell."""
    if not (a.numel() and b.numel() and is_dense(a) and is_dense(b)):
        return False
    (a_low, a_high), (b_low, b_high) = _range(a), _range(b)
    if (a_low, a_high) == (b_low, b_high):
        return a.stride() != b.stride()
    return a_low < b_high and b_low < a_high


def _range(t: torch.Tensor) -> tuple[int, int]:
    low = offset_of(t) * t.dtype.itemsize
    return low, low + t.numel() * t.dtype.itemsize


def is_dense(t: torch.Tensor) -> bool:
    """Non-overlapping and dense: the elements fill one run of memory in some order of the dimensions."""
    expected = 1
    for stride, size in sorted((st, n) for st, n in zip(t.stride(), t.size(), strict=True) if n != 1):
        if stride != expected:
            return False
        expected *= size
    return True


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
        raise RuntimeError(f"multinomial expects Long tensor out, got: {_title(out.dtype)}")
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
        raise RuntimeError(f"masked_scatter_ only supports boolean masks, but got mask with dtype {_title(given['mask'].dtype)}")


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
        raise RuntimeError(f"put_(): Expected a long tensor for index, but got {_title(index.dtype)}")
    if source.numel() != index.numel():
        counts = f"source.numel() = {source.numel()}, index.numel() = {index.numel()}"
        raise IndexError(f"put_(): Expected source and index to have the same number of elements, but got {counts}")
    if index.numel() and not given["self"].numel():
        raise IndexError("put_(): Tried to put elements into an empty tensor")


def _mv(given: dict[str, Any]) -> None:
    matrix, vector = given["self"].dtype, given["vec"].dtype
    if matrix != vector:
        kinds = f"{_title(vector)}, {_title(matrix)}, and {_title(vector)}"
        raise RuntimeError(f"addmv input tensors must have the same dtype, but got {kinds}")


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
    "put": _put,
    "put_": _put,
    **{name: _reduced_dim(name.removeprefix("nan")) for name in ("kthvalue", "max", "median", "min", "mode", "nanmedian")},
}

_SEPARATE: Final = {
    "masked_select": ("self", "mask"),
    "gather": ("self",),
    "take": ("self", "index"),
    "put_": ("index", "source"),
    "index_add_": ("index", "source"),
    "index_copy_": ("index", "source"),
    **dict.fromkeys(("scatter", "scatter_", "scatter_add", "scatter_add_", "scatter_reduce", "scatter_reduce_"), ("index", "src")),
}
"""Arguments that may not share any memory with the written tensor, by operation; others may be the very same tensor."""


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


_EXACT_OUT: Final = frozenset(
    """
    addmm addmv amax amin aminmax argmax argmin avg_pool2d baddbmm bmm complex cummax cummin diag dot flip gather index index_add
    index_select kthvalue lerp logcumsumexp masked_select median mm mode mv polar renorm scatter sort take topk tril triu where
    """.split()
)
"""Operations whose out= tensor must have the result's type; the others convert."""


def result_type(info: OpInfo, result: torch.dtype, out: torch.dtype) -> None:
    """Raises RuntimeError when an out= tensor cannot take results of type ``result``."""
    if info.base in ("complex", "polar") and result != out:
        raise RuntimeError(f"Expected object of scalar type {_title(result)} but got scalar type {_title(out)} for argument 'out'")
    if info.base in _EXACT_OUT and result != out:
        raise RuntimeError(f"Expected out tensor to have dtype {_C_NAMES.get(result, result)}, but got {_C_NAMES.get(out, out)} instead")
    castable(result, out)


_C_NAMES: Final = {
    torch.float32: "float",
    torch.float64: "double",
    torch.float16: "c10::Half",
    torch.bfloat16: "c10::BFloat16",
    torch.int64: "long int",
    torch.int32: "int",
    torch.int16: "short int",
    torch.int8: "signed char",
    torch.uint8: "unsigned char",
    torch.bool: "bool",
    torch.complex64: "c10::complex<float>",
    torch.complex128: "c10::complex<double>",
}


def castable(result: torch.dtype, out: torch.dtype) -> None:
    """Raises RuntimeError when an out= tensor cannot take results of type ``result``."""
    if not torch.can_cast(result, out):
        raise RuntimeError(f"result type {_title(result)} can't be cast to the desired output type {_title(out)}")


_TITLES: Final = {
    torch.bool: "Bool",
    torch.uint8: "Byte",
    torch.int8: "Char",
    torch.int16: "Short",
    torch.int32: "Int",
    torch.int64: "Long",
    torch.float16: "Half",
    torch.bfloat16: "BFloat16",
    torch.float32: "Float",
    torch.float64: "Double",
    torch.complex64: "ComplexFloat",
    torch.complex128: "ComplexDouble",
}


def _title(dtype: torch.dtype) -> str:
    """The type's name in torch's error texts."""
    return _TITLES.get(dtype, str(dtype))


_BOOL: Final = frozenset({torch.bool})
_INTEGER: Final = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64})
_HALF: Final = frozenset({torch.float16, torch.bfloat16})
_FLOATING: Final = _HALF | {torch.float32, torch.float64}
_COMPLEX: Final = frozenset({torch.complex32, torch.complex64, torch.complex128})

_REFUSED_DTYPES: Final[dict[str, frozenset[torch.dtype]]] = {
    name: refused
    for refused, names in (
        (
            _BOOL | _INTEGER | _COMPLEX,
            """
            _adaptive_avg_pool2d _adaptive_avg_pool3d _batch_norm_with_update _log_softmax _log_softmax_backward_data
            _native_batch_norm_legit _prelu_kernel _softmax _softmax_backward_data adaptive_max_pool2d adaptive_max_pool3d bernoulli
            binary_cross_entropy celu elu frac gelu glu grid_sampler_2d_backward hardshrink hardsigmoid hardswish huber_loss hypot igamma
            igammac leaky_relu log_normal log_sigmoid_forward logaddexp2 max_pool2d_with_indices_backward max_pool3d_with_indices_backward
            max_unpool2d max_unpool3d mish mse_loss multi_margin_loss multilabel_margin_loss_forward multinomial native_batch_norm
            native_group_norm native_layer_norm nextafter nll_loss_forward nll_loss2d_forward normal.Tensor_Tensor normal.float_Tensor
            round.decimals rrelu_with_noise smooth_l1_loss softplus softshrink upsample_linear1d upsample_trilinear3d
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
            special_bessel_j0 special_bessel_j1 special_erfcx special_log_ndtr special_modified_bessel_i0
            special_modified_bessel_i1 special_ndtri special_spherical_bessel_j0 special_zeta
            """,
        ),
        (_HALF, "_cdist_forward"),
        (frozenset({torch.float16}), "polar"),
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
    special_xlog1py special_zeta xlogy
    """.split()
)
"""Operations that compute in the common type of their arguments; the others compute in that of the first."""

_FITTING: Final = _PROMOTING | frozenset("addbmm addmm addmv aminmax baddbmm bmm dot lerp linalg_cross max min mm mv vdot".split())
"""Operations whose operands must fit each other."""

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
    names = _names(info)
    refused = next((_REFUSED_DTYPES[name] for name in names if name in _REFUSED_DTYPES), None)
    if (
        refused is None
        or not tensors
        or ((names[0] if "median" in info.base else info.base) in _EMPTY_PASSES and not all(t.numel() for t in tensors))
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
        raise RuntimeError(text.format(title=_title(dtype), kind="bool" if dtype is torch.bool else "complex"))
    raise NotImplementedError(f"\"{info.base}_cuda\" not implemented for '{_title(dtype)}'")


_EMPTY_PASSES: Final = frozenset(
    """
    _adaptive_avg_pool2d _cdist_forward _log_softmax _softmax _trilinear addmm amax amin bernoulli bucketize median mm nanmedian
    searchsorted
    """.split()
)

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
    if info.base.rstrip("_") not in _PROMOTING:
        return tensors[0].dtype
    numbers = [v for a, v in zip(info.args, values, strict=True) if a.name in _OPERANDS and isinstance(v, _NUMBERS)]
    like = torch.empty((1,) * tensors[0].dim(), dtype=tensors[0].dtype, device="meta")
    for other in (*tensors[1:], *numbers):
        meta = torch.empty((1,) * other.dim(), dtype=other.dtype, device="meta") if isinstance(other, torch.Tensor) else other
        like = torch.empty((1,) * like.dim(), dtype=torch.result_type(like, meta), device="meta")
    return like.dtype


_NUMBERS: Final = (bool, int, float, complex)
_OPERANDS: Final = frozenset({"self", "other", "exponent", "min", "max"})
