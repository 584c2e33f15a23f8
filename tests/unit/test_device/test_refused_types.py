"""Element types for which no kernel of torch's exists are refused, by the class of error that torch raises."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_map

from tests.support.op_db import op_db

_ELSEWHERE = ("jiterator", "sparse", "_refs")
_TYPES = (torch.uint8, torch.int64, torch.bool, torch.float16, torch.bfloat16, torch.float32, torch.complex64)

_DIFFERENT = {
    "nn.functional.max_pool1d": "composed of max_pool2d, whose kernel takes integers",
    "clamp": "both bounds as tensors of bool: composed of maximum and minimum, which take bool",
    "nn.functional.rms_norm": "refused one operation later, as RuntimeError",
}
"""Operators that are known to differ from the CPU, and how."""


def _error(op: Any, sample: Any, source: torch.dtype, dtype: torch.dtype, device: str) -> str:
    """The class of error that the operator raises on ``device`` when the sample's tensors of type ``source`` have ``dtype``."""

    def moved(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return (leaf.detach().to(dtype) if leaf.dtype == source else leaf.detach()).to(device)

    given, args, kwargs = (tree_map(moved, part) for part in (sample.input, sample.args, sample.kwargs))
    if "device" in kwargs:
        kwargs["device"] = device
    try:
        op.op(given, *args, **kwargs)
    except Exception as error:  # the class is what is compared
        return type(error).__name__
    return ""


def _differences(op: Any, samples: int) -> list[str]:
    known = op.supported_dtypes("cpu") | op.supported_dtypes("cuda")
    source = torch.float32 if torch.float32 in known else next(iter(sorted(known, key=str)), None)
    unknown = [dtype for dtype in _TYPES if dtype not in known]
    if not unknown or source is None or source not in op.supported_dtypes("cpu"):
        return []
    found = []
    for sample in itertools.islice(op.sample_inputs("cpu", source), samples):
        for dtype in unknown:
            want, got = (_error(op, sample, source, dtype, device) for device in ("cpu", "cuda"))
            if want != got:
                found.append(f"{op.name} of {dtype}: {got or 'accepted'}, expected {want or 'no error'}")
    return found


@pytest.mark.parametrize(("every", "samples"), [(3, 1), pytest.param(1, 3, marks=pytest.mark.variant)])
def test_types_that_no_kernel_of_torch_takes_are_refused(every: int, samples: int) -> None:
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in op_db[::every]:
            if not any(part in op.name for part in _ELSEWHERE):
                differences = _differences(op, samples)
                assert samples == 1 or differences or op.name not in _DIFFERENT, f"{op.name} does not differ any more"
                found += [] if op.name in _DIFFERENT else differences
    torch.cuda.synchronize()
    assert found == []


_OF_ONE = (
    "abs amax amin aminmax angle argmax argmin argsort ceil digamma erf erfinv floor frac i0 isneginf isposinf lgamma logit "
    "max mean min neg prod relu rsqrt round sgn sign signbit sinc sort std sum trunc var"
).split()
_OF_TWO = (
    "add atan2 bitwise_and copysign div eq fmax fmin fmod ge gt heaviside hypot isin le lt maximum minimum mul ne pow remainder sub xlogy"
).split()
_ALONG = "all amax amin any argmax argmin argsort cummax cummin cumprod cumsum max mean median min mode nanmedian prod sort std sum".split()
_EMPTY: dict[str, Callable[[torch.Tensor], Any]] = {
    **{name: getattr(torch, name) for name in _OF_ONE},
    **{name: lambda x, name=name: getattr(torch, name)(x, x) for name in _OF_TWO},
    **{f"{name} along 0": lambda x, name=name: getattr(torch, name)(x, dim=0) for name in _ALONG},
    **{f"{name} along -1": lambda x, name=name: getattr(torch, name)(x, dim=-1) for name in _ALONG},
    "aminmax along 0": lambda x: torch.aminmax(x, dim=0),
    "kthvalue": lambda x: torch.kthvalue(x, 1, 0),
    "sign_": lambda x: x.sign_(),
    "topk": lambda x: torch.topk(x, 0),
    "cdist": lambda x: torch.cdist(x, x),
    "shift": lambda x: x << 1,
    "clamp": lambda x: x.clamp(0),
}
_ELSEWHERE_ON_CUDA = {("abs", torch.bool)}
"""What torch's CPU kernels lack and its CUDA kernels have."""


def _outcome(call: Callable[[torch.Tensor], Any], x: torch.Tensor) -> Any:
    try:
        result = call(x)
    except Exception as error:  # the class is what is compared
        return type(error).__name__
    return [(t.dtype, t.size()) for t in (result if isinstance(result, tuple) else (result,))]


@pytest.mark.filterwarnings("ignore:(std|var)")
@pytest.mark.parametrize("shape", [(0,), (2, 0), (0, 2)], ids=str)
def test_empty_tensors_are_refused_where_torch_refuses_them(shape: tuple[int, ...]) -> None:
    found = []
    for dtype in (torch.complex64, torch.bool, torch.int32, torch.float16, torch.float32):
        for name, call in _EMPTY.items():
            want, got = (_outcome(call, torch.empty(shape, dtype=dtype, device=device)) for device in ("cpu", "cuda"))
            if want != got and (name, dtype) not in _ELSEWHERE_ON_CUDA:
                found.append(f"{name} of {dtype}: {got}, expected {want}")
    assert found == []


_PRODUCTS: dict[str, Callable[[torch.Tensor], Any]] = {
    "mm": lambda x: x[0] @ x[0].mT,
    "bmm": lambda x: x @ x.mT,
    "mv": lambda x: x[0] @ x[0, 0] if x.numel() else x[0, 0],
    "baddbmm": lambda x: torch.baddbmm(x @ x.mT, x, x.mT),
    "addmm": lambda x: torch.addmm(x[0] @ x[0].mT, x[0], x[0].mT),
}


@pytest.mark.parametrize("shape", [(3, 0, 0), (3, 2, 0), (2, 0, 3)], ids=str)
def test_products_of_empty_matrices_take_every_type(shape: tuple[int, ...]) -> None:
    for dtype in (torch.bool, torch.int32, torch.uint8, torch.float32, torch.complex64):
        for name, call in _PRODUCTS.items():
            want, got = (_outcome(call, torch.ones(shape, dtype=dtype, device=device)) for device in ("cpu", "cuda"))
            refused = isinstance(want, str) and isinstance(got, str)  # of one class or a subclass of it
            assert want == got or refused, (name, dtype)


_BINARY = (
    "add sub mul rsub div floor_divide remainder fmod pow maximum minimum atan2 hypot copysign xlogy gcd lcm eq ne lt le gt ge logical_and "
    "logical_or logical_xor bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift heaviside outer kron"
).split()


@pytest.mark.parametrize("shape", [(3,), ()], ids=str)
def test_wide_unsigned_types_join_only_what_torch_joins(shape: tuple[int, ...]) -> None:
    """torch has no common type of uint16, uint32 or uint64 and another integer type, nor of one and bool."""
    found = []
    for left, right in itertools.product((torch.bool, torch.int32, torch.uint8, torch.uint16), (torch.uint32, torch.uint64)):
        for name in _BINARY:
            outcomes = []
            for device in ("cpu", "cuda"):
                x, y = torch.ones(shape, dtype=left, device=device), torch.ones(shape, dtype=right, device=device)
                outcomes.append(_outcome(lambda a, b=y, name=name: getattr(torch, name)(a, b), x))
            if outcomes[0] != outcomes[1]:
                found.append(f"{name} of {left} and {right}: {outcomes[1]}, expected {outcomes[0]}")
    assert found == []
