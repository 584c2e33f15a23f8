"""Checks Python numbers that torch refuses at the call: overflowing ones, a bool or float ``alpha`` for integers, probabilities beyond 1.

Such a call is tried once on small CPU tensors of the same types: what torch raises there is what it raises on CUDA, in its words.
Which numbers a call may be given follows from types and values only, so the answer is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

from wooly.device.fallback import check_without_data, split
from wooly.device.infer import without_frames
from wooly.device.schema import Kind, OpInfo

PLAIN_BELOW: Final = 128
"""Finite numbers of lesser magnitude fit every type, but for negative ones, which do not fit unsigned integers."""

_BOTH_WAYS: Final = """
    fill masked_fill index_fill scatter add sub rsub lerp addcmul addcdiv addmm addmv addbmm baddbmm addr index_add pow clamp clamp_min
    clamp_max threshold hardtanh leaky_relu elu celu softplus softshrink hardshrink smooth_l1_loss huber_loss logit fill_diagonal
    heaviside _foreach_add _foreach_sub _foreach_mul _foreach_div
"""
_FUNCTIONS: Final = "full full_like new_full linspace scalar_tensor constant_pad_nd std var std_mean var_mean randint randint_like"
BY_SIZE: Final = frozenset(_FUNCTIONS.split()) | {name + way for name in _BOTH_WAYS.split() for way in ("", "_")}
"""Operations whose numbers are looked at when they are large; and always when they come in new types."""

_FILLING: Final = """
    fill fill_ full full_like new_full scalar_tensor masked_fill masked_fill_ index_fill index_fill_ scatter scatter_ threshold
    constant_pad_nd
"""
FILLING: Final = frozenset(_FILLING.split())
"""Those of them that convert numbers to the type of their result, which may be unsigned."""

ALWAYS: Final = frozenset("normal_ uniform_ uniform bernoulli_ random_ celu celu_ softshrink smooth_l1_loss huber_loss".split())
"""Operations that refuse numbers in the usual range too."""

_SIZE: Final = 2
"""Of every dimension; single elements are filled by another kernel, which checks less."""
_SIZES: Final[dict[str, Any]] = {"size": [_SIZE], "steps": 2, "pad": [1, 1], "pin_memory": None, "generator": None}
"""Arguments that only say how much there is."""

_PUTTING_ROWS: Final = frozenset({"index_add", "index_add_"})

_known: Final[dict[Any, Exception | None]] = {}
_KNOWN_MAX: Final = 4096


def check(info: OpInfo, values: Sequence[Any]) -> None:
    """Raises what torch raises for the numbers among ``values``."""
    key = (info.name, *(_described(value) for value in values))
    if key not in _known:
        if len(_known) >= _KNOWN_MAX:
            _known.clear()
        _known[key] = _tried(info, values)
    error = _known[key]
    if error is not None and f"[{_SIZE}" in str(error):  # it names sizes, of the stand-ins
        check_without_data(info, values)
    elif error is not None:
        raise type(error)(*error.args)


def _described(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return (value.dtype, value.dim())
    if isinstance(value, list | tuple):
        return tuple(_described(v) for v in value)
    return (type(value), repr(value))  # repr tells 0.0 from -0.0 and finds NaN equal to itself


def _tried(info: OpInfo, values: Sequence[Any]) -> Exception | None:
    small = [_small(arg.kind, arg.name, value) for arg, value in zip(info.args, values, strict=True)]
    if info.base in _PUTTING_ROWS:  # an index without dimensions is one of one row
        small = [x.expand(_SIZE) if arg.name == "index" and not x.dim() else x for arg, x in zip(info.args, small, strict=True)]
    args, kwargs = split(info, small)
    state = torch.random.get_rng_state() if info.draws else None
    try:
        info.op(*args, **kwargs)
    except Exception as error:  # whatever torch raises
        return None if _of_the_cpu(error) else without_frames(error)
    finally:
        if state is not None:
            torch.random.set_rng_state(state)
    return None


def _of_the_cpu(error: Exception) -> bool:
    """Does it say what only the CPU's kernels lack, or that small tensors are no stand-ins?"""
    text = str(error)
    return isinstance(error, NotImplementedError | IndexError) or text == "ZeroDivisionError" or "not implemented for" in text


def _small(kind: Kind, name: str, value: Any) -> Any:
    if kind is Kind.DEVICE:
        return torch.device("cpu")
    if name in _SIZES and value is not None:
        return _SIZES[name]
    if isinstance(value, torch.Tensor):
        return torch.zeros((_SIZE,) * value.dim(), dtype=value.dtype)
    return [_small(kind, name, v) for v in value] if isinstance(value, list | tuple) else value
