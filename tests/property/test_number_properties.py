"""Numbers of every kind, given to every operation that takes numbers: what the client sends, the node reads.

The link of these tests encodes and reads every batch as client and node do; a message that the node would refuse fails the test.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.device import switch_on
from tests.support.loopback import NodeRefuses
from wooly.device import fallback
from wooly.device.lowering import COMPOSITES, LOWERINGS
from wooly.device.lowering.values import LoweringError, wire_number
from wooly.device.recorder import RECORDER
from wooly.device.schema import Kind, OpInfo, describe, overload

switch_on()

ODD = [
    True, -0.0, 1e300, -math.inf, math.nan, 2**64 - 1, -(2**63), complex(math.nan, -math.inf), np.float32(0.5), np.bool_(True),
    torch.tensor(2**62),
]  # fmt: skip
SIZES = ("arange", "range")
DTYPES = (torch.float32, torch.int64, torch.bool, torch.complex64)


def takes_numbers() -> Iterator[OpInfo]:
    for name in sorted({*LOWERINGS, *COMPOSITES}):
        op = overload(name)
        if op is not None:
            info = describe(name, op)
            if any(arg.kind in (Kind.NUMBER, Kind.NUMBERS) for arg in info.args):
                yield info


def arguments(info: OpInfo, dtype: torch.dtype, number: Any) -> tuple[list[Any], dict[str, Any]]:
    """Some call of ``info``: tensors of 2 x 2, ``number`` wherever a number goes; whether it means something is for torch to say."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for arg, schema in zip(info.args, info.op._schema.arguments, strict=True):
        kind, value = str(schema.type), None
        if arg.kind is Kind.TENSOR:
            value = torch.ones(2, 2, dtype=dtype, device="cuda") if "Optional" not in kind else None
        elif arg.kind is Kind.TENSORS:
            value = [torch.ones(2, 2, dtype=dtype, device="cuda")] * 2
        elif arg.kind is Kind.NUMBER:
            value = number
        elif arg.kind is Kind.NUMBERS:
            value = [number, number]
        elif arg.has_default:
            value = arg.default
        elif arg.kind is Kind.PLAINS:
            value = [2, 2]
        elif kind in ("int", "SymInt", "bool"):
            value = 1
        if arg.kind is Kind.DEVICE:
            value = torch.device("cuda") if info.is_factory else None
        (kwargs if arg.kwarg_only else {}).update({arg.name: value})
        if not arg.kwarg_only:
            args.append(value)
    return args, kwargs


@pytest.fixture
def lowerings_only() -> Iterator[None]:
    """Nothing runs on the CPU, whose kernels do not survive every argument."""
    fallback.allow_cpu(False)
    yield
    fallback.allow_cpu(True)


def test_every_number_that_an_operation_takes_reaches_the_node(lowerings_only: None) -> None:
    """Calls that torch refuses do not count; there must be many that it takes."""
    sent: dict[str, int] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for info in takes_numbers():
            for dtype in DTYPES:
                for number in ODD:
                    if info.base in SIZES and not abs(complex(number)) < 100:
                        continue  # as many elements, in temporaries of a program
                    try:
                        args, kwargs = arguments(info, dtype, number)
                        info.op(*args, **kwargs)
                    except NodeRefuses:
                        raise
                    except Exception as refused:  # torch raises anything for what it does not take
                        assert "serialize" not in str(refused) and "Encoding" not in str(refused), "a batch could not be made"
                        continue
                    sent[info.name] = sent.get(info.name, 0) + 1
            RECORDER.synchronize()
    assert len(sent) > 100 and sum(sent.values()) > 1_500, f"{len(sent)} operations, {sum(sent.values())} calls"


@pytest.mark.parametrize(
    ("value", "kind", "wanted"),
    [
        (True, int, 1), (False, float, 0), (np.float64(0.5), float, 0.5), (np.float16(0.5), float, 0.5), (np.int8(-1), int, -1),
        (torch.tensor(2**40), int, 2**40), (np.complex64(1j), float, 1j), (2**64, int, 0), (2**64 + 5, int, 5),
        (-(2**63) - 1, int, 2**63 - 1), (2**64, float, 2.0**64), (2**64 - 1, float, 2**64 - 1), (1 << 1300, float, math.inf),
        (-(1 << 1300), float, -math.inf),
    ],
)  # fmt: skip
def test_what_travels_for_a_number(value: Any, kind: type, wanted: Any) -> None:
    found = wire_number(value, kind)
    assert type(found) in (int, float, complex) and type(found) is type(wanted) and found == wanted


@pytest.mark.parametrize("value", ["1", None, torch.ones(2, 2).storage_offset, [1]])
def test_what_is_no_number_is_refused_by_name(value: Any) -> None:
    with pytest.raises(LoweringError, match=type(value).__name__):
        wire_number(value)
