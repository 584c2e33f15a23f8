"""Checks of arguments that torch's kernels make and its meta kernels do not, and of parameters of distributions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from wooly.device.checks.places import title
from wooly.device.schema import OpInfo

_Rule = Callable[[dict[str, Any]], None]


def arguments(info: OpInfo, values: Sequence[Any]) -> None:
    """Raises RuntimeError, in torch's words, for arguments that torch's kernels check and its meta kernels do not."""
    rule = _RULES.get(info.base)
    if rule is not None:
        rule({arg.name: value for arg, value in zip(info.args, values, strict=True)})


_HALVES: Final = frozenset({torch.float16, torch.bfloat16})
_WIDE: Final = frozenset({torch.float32, torch.float64})
_FLOATING: Final = _HALVES | _WIDE
_Types = frozenset[torch.dtype]
_OTHER: Final = "expected scalar type {want} but found {found}"


def _of_one_type(
    first: str, *others: str, text: str = _OTHER, types: _Types | None = None, mixed: bool = False, empty: bool = True
) -> _Rule:
    """The rule of operations whose kernels read the arguments ``others`` as the type of ``first``; it raises RuntimeError.

    ``types``: the types of ``first`` that it holds for (None: all). ``mixed``: a ``first`` in half precision goes with float32 as well.
    ``empty`` False: it does not hold for tensors without elements. Arguments that are not given fit, as do products with an ``out_dtype``.
    """

    def rule(given: dict[str, Any]) -> None:
        want = given[first].dtype
        if (types is not None and want not in types) or "out_dtype" in given:
            return
        for name in others:
            other = given.get(name)
            if other is None or other.dtype == want or (mixed and want in _HALVES and other.dtype == torch.float32):
                continue
            if empty or (other.numel() and given[first].numel()):
                raise RuntimeError(text.format(want=title(want), found=title(other.dtype)))

    return rule


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


def _reduced_dim(name: str) -> _Rule:
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


_PRODUCT: Final = "self and mat2 must have the same dtype, but got {want} and {found}"
_SECOND: Final = "Expected object of scalar type {want} but got scalar type {found} for second argument"
_COPIED: Final = "index_copy_(): self and source expected to have the same dtype, but got (self) {want} and (source) {found}"

_of_norm: Final = _of_one_type("input", "weight", "bias", "running_mean", "running_var", types=_FLOATING, mixed=True)


def _group_norm(given: dict[str, Any]) -> None:
    _of_norm(given)
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


def _logits_weights(given: dict[str, Any]) -> None:
    """torch multiplies in place: weights may not have more elements than the input, nor a wider kind of numbers."""
    x, positive = given["self"], given["pos_weight"]
    if positive is not None and positive.dtype is torch.bool:
        raise RuntimeError("Subtraction, the `-` operator, with a bool tensor is not supported.")
    _keeps_type(x, positive)
    for weight in (given["weight"], given["pos_weight"]):
        wide = x if weight is None else torch.ops.aten.broadcast_tensors([x, weight])[0]
        if wide.size() != x.size():
            raise RuntimeError(f"output with shape {list(x.size())} doesn't match the broadcast shape {list(wide.size())}")


def _keeps_type(x: torch.Tensor, other: torch.Tensor | None) -> None:
    """Raises RuntimeError where what ``x`` and ``other`` make does not go back into the type of ``x``."""
    if other is not None:
        made = torch.result_type(x, other)
        if not torch.can_cast(made, x.dtype):
            raise RuntimeError(f"result type {title(made)} can't be cast to the desired output type {title(x.dtype)}")


def _soft_margin_loss(given: dict[str, Any]) -> None:
    _keeps_type(given["self"], given["target"])


def _index_select(given: dict[str, Any]) -> None:
    if given["index"].dtype not in (torch.int32, torch.int64):
        raise RuntimeError("index_select(): Expected dtype int32 or int64 for index")
    if given["index"].dim() > 1:
        raise IndexError("index_select(): Index is supposed to be a vector")


def _roll(given: dict[str, Any]) -> None:
    n_shifts, n_dims = len(given["shifts"]), len(given["dims"])
    if not n_shifts:
        raise RuntimeError("`shifts` required")
    if n_shifts != n_dims and (n_shifts, n_dims) != (1, 0):
        raise RuntimeError(f"shifts and dimensions must align. shifts: {n_shifts}, dims:{n_dims}")


def _grid_sampler(rank: int) -> _Rule:
    """The rule of sampling images of ``rank`` dimensions; it raises RuntimeError."""
    of_one_type = _of_one_type("input", "grid", empty=False)

    def rule(given: dict[str, Any]) -> None:
        x, grid = given["input"], given["grid"]
        sizes = f"but got input with sizes {list(x.size())} and grid with sizes {list(grid.size())}"
        if x.dim() != rank + 2 or grid.dim() != rank + 2:
            raise RuntimeError(f"grid_sampler(): expected {rank + 2}D input and grid with same number of dimensions, {sizes}")
        if x.size(0) != grid.size(0):
            raise RuntimeError(f"grid_sampler(): expected grid and input to have same batch size, {sizes}")
        if grid.size(-1) != rank:
            of = f"{rank} in last dimension, but got grid with sizes {list(grid.size())}"
            raise RuntimeError(f"grid_sampler(): expected grid to have size {of}")
        empty = next((dim for dim in range(2, rank + 2) if not x.size(dim)), None)
        if empty is not None:
            of = f"but input has sizes {list(x.size())} with dimension {empty} being empty"
            raise RuntimeError(f"grid_sampler(): expected input to have non-empty spatial dimensions, {of}")
        of_one_type(given)

    return rule


def _dimension(x: torch.Tensor, dim: int) -> None:
    """Raises IndexError where ``x`` has no dimension ``dim``."""
    rank = max(x.dim(), 1)
    if not -rank <= dim < rank:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-rank}, {rank - 1}], but got {dim})")


def _has_dimension(given: dict[str, Any]) -> None:
    _dimension(given["self"], given["dim"])


def _index_of_type(
    name: str, types: Sequence[torch.dtype], text: str, error: type[Exception] = RuntimeError, also: _Rule | None = None
) -> _Rule:
    """The rule of operations that take the argument ``name`` in these types only. ``also``: a rule that holds as well."""

    def rule(given: dict[str, Any]) -> None:
        index = given.get(name)
        if index is not None and index.dtype not in types:
            raise error(text.format(found=title(index.dtype)))
        if also is not None:
            also(given)

    return rule


def _randperm(given: dict[str, Any]) -> None:
    asked, out, n = given.get("dtype"), given.get("out"), given["n"]
    dtype = asked if isinstance(asked, torch.dtype) else torch.int64 if out is None else out.dtype
    if dtype.is_complex or dtype in (torch.bool, torch.uint16, torch.uint32, torch.uint64):
        raise NotImplementedError(f"\"randperm\" not implemented for '{title(dtype)}'")
    if dtype.is_floating_point:
        most = round(2 / torch.finfo(dtype).eps) + 1
        if n > most:
            raise RuntimeError(f"n cannot be greater than {most} for {title(dtype)} type.")
    elif n - 1 > torch.iinfo(dtype).max:
        raise RuntimeError(f"value cannot be converted to type {str(dtype).removeprefix('torch.')}_t without overflow")


def _put_rows(name: str, also: _Rule | None = None) -> _Rule:
    """The rule of operations that put the rows of ``source`` along a dimension: one for every index, of the shape of self's
    (index_func_meta_impl in ATen). It raises IndexError or RuntimeError. ``also``: a rule that holds as well."""

    def rule(given: dict[str, Any]) -> None:
        x, dim, index, source = (given[key] for key in ("self", "dim", "index", "source"))
        _dimension(x, dim)
        dim %= max(x.dim(), 1)
        if index.dtype not in (torch.int32, torch.int64):
            raise RuntimeError(f"{name}_(): Expected dtype int32/int64 for index but got: {title(index.dtype)}")
        if index.dim() > 1:
            of = f"dim: {index.dim()} with type: {title(index.dtype)} and size: {list(index.size())}"
            raise IndexError(f"{name}_(): Index is supposed to be a vector, but got {of}")
        if dim and dim >= source.dim():
            raise RuntimeError(f"{name}_(): Indexing dim {dim} is out of bounds of the source tensor with dim {source.dim()}")
        if not source.dim() and index.numel() != 1:
            raise IndexError("Dimension specified as 0 but tensor has no dimensions")
        n_rows = source.size(dim) if source.dim() else 1
        if index.numel() != n_rows:
            of = f"({index.numel()}) should be equal to source.size(dim): ({n_rows}), for dim: {dim}"
            raise RuntimeError(f"{name}_(): Number of indices {of}")
        left = dim + 1 if x.dim() and source.dim() else dim
        if (*x.size()[:dim], *x.size()[left:]) != (*source.size()[:dim], *source.size()[left:]):
            raise RuntimeError(
                "source tensor shape must match self tensor shape, excluding the specified dimension. "
                f"Got self.shape = {list(x.size())} source.shape = {list(source.size())}"
            )
        if also is not None:
            also(given)

    return rule


def _not_in_bool(name: str) -> _Rule:
    """The rule of running sums and products: they have no kernel that computes in bool."""

    def rule(given: dict[str, Any]) -> None:
        if given["dtype"] is torch.bool and given["self"].dim() and given["self"].numel():
            raise NotImplementedError(f"\"{name}_cuda\" not implemented for 'Bool'")

    return rule


def _nansum(given: dict[str, Any]) -> None:
    x, dtype = given["self"], given["dtype"]
    if x.is_complex():
        raise RuntimeError("nansum does not support complex inputs")
    if dtype is not None and dtype.is_complex and x.is_floating_point() and x.numel():
        raise NotImplementedError(f"\"nansum_cuda\" not implemented for '{title(dtype)}'")


def _convolution(given: dict[str, Any]) -> None:
    weight, bias, transposed = given["weight"], given["bias"], given["transposed"]
    if any(step <= 0 for step in given["stride"]):
        raise RuntimeError("non-positive stride is not supported")
    groups = given["groups"]
    if weight.size(0) < groups:
        want = f"expected weight to be at least {groups} at dimension 0"
        raise RuntimeError(f"Given groups={groups}, {want}, but got weight of size {list(weight.size())} instead")
    x = given["input"]
    if transposed and x.dim() == weight.dim() and x.size(1) != weight.size(0):
        of = f"expected input{list(x.size())} to have {weight.size(0)} channels, but got {x.size(1)} channels instead"
        raise RuntimeError(f"Given transposed=1, weight of size {list(weight.size())}, {of}")
    n = weight.size(1) * groups if transposed else weight.size(0)
    if bias is not None and tuple(bias.size()) != (n,):
        of = f"{'transposed=1, ' if transposed else ''}weight of size {list(weight.size())}"
        want = f"expected bias to be 1-dimensional with {n} elements"
        raise RuntimeError(f"Given {of}, {want}, but got bias of size {list(bias.size())} instead")


_RULES: Final[dict[str, _Rule]] = {
    "convolution": _convolution,
    "multinomial": _multinomial,
    "gelu": _gelu,
    "gelu_backward": _gelu,
    "masked_scatter": _masked_scatter,
    "masked_scatter_": _masked_scatter,
    "native_group_norm": _group_norm,
    "arange": _arange,
    "heaviside": _heaviside,
    "heaviside_": _heaviside,
    "mv": _of_one_type("self", "vec", text="addmv input tensors must have the same dtype, but got {found}, {want}, and {found}"),
    "addmm": _of_one_type("self", "mat1", "mat2", text=_PRODUCT),
    "mm": _of_one_type("self", "mat2", text="expected mat1 and mat2 to have the same dtype, but got: {want} != {found}"),
    "linalg_cross": _of_one_type("self", "other"),
    "_cdist_forward": _of_one_type("x1", "x2", types=_WIDE, empty=False),
    "grid_sampler_2d": _grid_sampler(2),
    "grid_sampler_3d": _grid_sampler(3),
    "roll": _roll,
    "complex": _of_one_type("real", "imag", text=_SECOND),
    "polar": _of_one_type("abs", "angle", text=_SECOND),
    **dict.fromkeys(
        ("index_copy", "index_copy_"),
        _index_of_type(
            "index",
            [torch.int64],
            "index_copy_(): Expected a long tensor for index, but got {found}",
            also=_of_one_type("self", "source", text=_COPIED),
        ),
    ),
    **dict.fromkeys(
        ("index_fill", "index_fill_"), _index_of_type("index", [torch.int64], "index_fill_(): Expected dtype int64 for index.", IndexError)
    ),
    "searchsorted": _index_of_type(
        "sorter", [torch.int64], "torch.searchsorted(): sorter must be a tensor of long dtype but got dtype {found}"
    ),
    "randperm": _randperm,
    **dict.fromkeys(("_softmax", "sort"), _has_dimension),
    "binary_cross_entropy": _of_one_type("self", "target", text="Found dtype {found} but expected {want}"),
    **dict.fromkeys(("native_layer_norm", "native_batch_norm", "_native_batch_norm_legit"), _of_norm),
    **dict.fromkeys(
        ("nll_loss_forward", "nll_loss2d_forward"),
        _index_of_type(
            "target",
            [torch.int64, torch.uint8],
            "expected target dtype to be Long or Byte, but got {found}",
            also=_of_one_type("self", "weight"),
        ),
    ),
    "multi_margin_loss": _index_of_type(
        "target", [torch.int64], "expected scalar type Long but found {found}", also=_of_one_type("self", "weight")
    ),
    "binary_cross_entropy_with_logits": _logits_weights,
    "soft_margin_loss": _soft_margin_loss,
    "index_select": _index_select,
    **{name: _not_in_bool(name) for name in ("cumsum", "cumprod")},
    "nansum": _nansum,
    "addbmm": _of_one_type("self", "batch1", "batch2", text=_PRODUCT),
    **dict.fromkeys(("index_add", "index_add_"), _put_rows("index_add")),
    **dict.fromkeys(
        ("index_reduce", "index_reduce_"),
        _put_rows(
            "index_reduce",
            _of_one_type("self", "source", text="index_reduce_(): self ({want}) and source ({found}) must have the same scalar type"),
        ),
    ),
    **dict.fromkeys(("_embedding_bag", "_embedding_bag_forward_only"), _of_one_type("weight", "per_sample_weights")),
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
