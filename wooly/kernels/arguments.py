"""Checks the arguments of a kernel call, and splits them into memory and numbers."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch

from wis.dtypes import DType
from wis.kernel.model import RegType, ScalarParam
from wis.kernel.module import ArgKind, Argument, Entry
from wooly.device.backend import HANDLE_SHIFT, is_ours, offset_of, storage_of
from wooly.device.face.foreign import DevicePointer
from wooly.errors import KernelArgumentError

__all__ = ["Region", "Given", "NULL", "bind_arguments", "region_of"]

Number = int | float


@dataclass(frozen=True, slots=True)
class Region:
    """Memory from a pointer to the end of its storage."""

    #: of the buffer; -1: no memory
    handle: int
    #: in bytes
    offset: int
    #: to the end of the storage
    nbytes: int
    #: keeps the storage alive
    keep: Any


NULL: Final = Region(-1, 0, 0, None)
"""A null pointer: no memory."""


@dataclass(frozen=True, slots=True)
class Given:
    """One value for every parameter of the kernel, in order."""

    params: tuple[Region | Number, ...]


def bind_arguments(entry: Entry, args: Sequence[Any], variables: Sequence[Region]) -> Given:
    """``args`` as the source declares them, ``variables`` the module's memory. Raises KernelArgumentError naming the argument."""
    wanted = [a for a in entry.arguments if a.kind != ArgKind.VARIABLE]
    if len(args) != len(wanted):
        names = ", ".join(a.name for a in wanted)
        raise KernelArgumentError(f"{entry.name} takes {len(wanted)} arguments ({names}), {len(args)} were given")
    params: list[Region | Number] = [0] * len(entry.kernel.params)
    for place, (argument, value) in enumerate(zip(wanted, args, strict=True)):
        who = f"{entry.name}: argument {place} ({argument.name})"
        if argument.param < 0 and argument.kind != ArgKind.STRUCT:
            continue  # the kernel never looks at it
        if argument.kind == ArgKind.BUFFER:
            params[argument.param] = _region(who, value)
        elif argument.kind == ArgKind.SCALAR:
            params[argument.param] = _scalar(who, value, DType(argument.dtype))
        else:
            for at, number in _fields(who, argument, value):
                params[at] = number
    for argument in entry.arguments:
        if argument.kind == ArgKind.VARIABLE:
            params[argument.param] = variables[argument.variable]
    return Given(tuple(params))


def _region(who: str, value: Any) -> Region:
    if isinstance(value, torch.Tensor):
        if not is_ours(value):
            raise KernelArgumentError(f"{who} is a tensor on {value.device}; a pointer takes one on cuda: move it there with .cuda()")
        return region_of(value)
    if isinstance(value, DevicePointer):
        storage = value.storage
        return _from(who, storage, value.address - storage.data_ptr()) if storage is not None else NULL
    if value is None or (isinstance(value, int) and value == 0):
        return NULL
    if hasattr(value, "data_ptr") or isinstance(value, numbers.Number | np.generic):
        raise KernelArgumentError(f"{who} is a pointer: give a cuda tensor (or its data_ptr()), or None; not {value!r}")
    raise KernelArgumentError(f"{who} is a pointer and takes a cuda tensor, not {type(value).__name__}")


def region_of(tensor: torch.Tensor) -> Region:
    """From the first element of one of our tensors to the end of its storage."""
    return _from("a tensor", storage_of(tensor), offset_of(tensor) * tensor.element_size())


def _from(who: str, storage: Any, offset: int) -> Region:
    nbytes = storage.nbytes()
    if not 0 <= offset <= nbytes:
        raise KernelArgumentError(f"{who} points {offset} bytes into a storage of {nbytes}")
    return Region(storage.data_ptr() >> HANDLE_SHIFT, offset, nbytes - offset, storage)


def _scalar(who: str, value: Any, dtype: DType) -> Number:
    """``value`` as the declared type holds it; signed and unsigned readings of an integer type are both accepted."""
    if isinstance(value, torch.Tensor) and value.numel() == 1 and not is_ours(value):
        value = value.item()
    if dtype.itemsize == 8 and dtype.is_integer and isinstance(value, torch.Tensor) and is_ours(value):
        region = region_of(value)  # a pointer that is only computed with
        return (region.handle << HANDLE_SHIFT) + region.offset
    if value is None and dtype.itemsize == 8 and dtype.is_integer:
        return 0
    if isinstance(value, torch.Tensor) or (isinstance(value, np.ndarray) and value.ndim):
        raise KernelArgumentError(f"{who} takes a number ({dtype.text}), not {type(value).__name__}")
    if isinstance(value, np.generic | np.ndarray):
        value = value.item()
    if dtype.is_integer or dtype is DType.BOOL:
        if not isinstance(value, numbers.Integral):
            raise KernelArgumentError(f"{who} takes a whole number ({dtype.text}), not {value!r}")
        bits = 8 * dtype.itemsize
        if not -(1 << bits - 1) <= int(value) < 1 << bits:
            raise KernelArgumentError(f"{who}: {value} does not fit {dtype.text}")
        return int(value)
    if not isinstance(value, numbers.Real):
        raise KernelArgumentError(f"{who} takes a number ({dtype.text}), not {value!r}")
    return float(value)


_BY_REGISTER: Final = {
    RegType.PRED: DType.BOOL, RegType.I16: DType.I16, RegType.I32: DType.I32, RegType.I64: DType.I64, RegType.F16: DType.F16,
    RegType.BF16: DType.BF16, RegType.F32: DType.F32, RegType.F64: DType.F64,
}  # fmt: skip


def _fields(who: str, argument: Argument, value: Any) -> list[tuple[int, Number]]:
    """The scalars of a struct, given as bytes or as a NumPy record of its size."""
    raw = bytes(value) if isinstance(value, bytes | bytearray | memoryview) else np.asarray(value).tobytes()
    if len(raw) != argument.nbytes:
        raise KernelArgumentError(f"{who} is a struct of {argument.nbytes} bytes (a NumPy record of its layout), {len(raw)} were given")
    found = []
    for field in argument.fields:
        dtype = DType(field.dtype)
        number = np.frombuffer(raw, dtype.numpy, 1, field.offset)[0].item()
        found.append((field.param, number))
    return found


def register_type(param: ScalarParam) -> DType:
    """The type of the immediate that a scalar parameter takes."""
    return _BY_REGISTER[RegType(param.reg_type)]
