"""Transfers bytes between this machine and the device: uploads, fetches, and the kernels that move or resize tensors.

Every CPU tensor made here names its device: a script may have set another default.
"""

from __future__ import annotations

import ctypes
import math
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch

from bus_schemas.batch import LIMITS
from wis.views import contiguous_strides
from wooly.device import sparse
from wooly.device.backend import (
    HAS_SWAP,
    handle_of,
    index_of_handle,
    is_our_device,
    is_ours,
    make_bare,
    make_storage,
    offset_of,
    raw_device,
    set_storage,
    storage_of,
    untraced,
)
from wooly.device.lowering import FROM_TORCH
from wooly.device.lowering.values import span_nbytes
from wooly.device.recorder import RECORDERS
from wooly.device.schema import Kind, OpInfo
from wooly.device.tensors import HEAPS
from wooly.link import ReadBytes

_SPAN_READ_MAX: Final = 1 << 20
"""A tensor with gaps is read with them up to this many bytes; above, it is made contiguous on the device first."""


# --- to the device


@untraced()
def upload(tensor: torch.Tensor, at: int = 0) -> torch.Tensor:
    """A tensor on device ``at`` with the elements of a CPU tensor, and its layout where that is dense or sparse."""
    if sparse.has_parts(tensor):
        return sparse.assembled(tensor, [upload(part, at) for part in sparse.parts(tensor)])
    source = tensor.detach()
    if source.is_conj():
        source = source.resolve_conj()
    if source.is_neg():
        source = source.resolve_neg()
    copy = source.clone(memory_format=torch.preserve_format)
    shape, strides = tuple(copy.size()), tuple(copy.stride())
    nbytes = copy.numel() * copy.dtype.itemsize
    target, handle = HEAPS[at].new_tensor(copy.dtype, shape, None if strides == contiguous_strides(shape) else strides, nbytes)
    RECORDERS[at].upload(handle, _bytes_of(copy))
    return target


def _bytes_of(dense: torch.Tensor) -> memoryview:
    """The memory of a dense CPU tensor that starts at its storage's start."""
    if dense.numel() == 0:
        return memoryview(b"")
    flat = dense.as_strided((dense.numel(),), (1,), 0).view(torch.uint8)
    view: Any = flat.numpy()
    return memoryview(view)


# --- from the device


@dataclass(frozen=True, slots=True)
class _Reading:
    """A tensor about to be read; it is kept so that its buffer lives until then."""

    tensor: torch.Tensor
    read: tuple[int, int, int]

    @property
    def device_index(self) -> int:
        return index_of_handle(self.read[0])

    def tensor_of(self, data: ReadBytes) -> torch.Tensor:
        t = self.tensor
        result = bytes_tensor(data, self.read[2]).view(t.dtype).as_strided(t.size(), t.stride(), 0)
        if t.is_conj():
            result = result.conj().resolve_conj()
        return torch._neg_view(result).resolve_neg() if t.is_neg() else result


def bytes_tensor(data: ReadBytes, nbytes: int) -> torch.Tensor:
    """A CPU tensor of ``nbytes`` bytes that holds a copy of ``data``."""
    raw = torch.empty(nbytes, dtype=torch.uint8, device="cpu")
    # Not through raw.numpy(): torch refuses to resize a tensor that NumPy has seen, and CPU kernels resize their arguments.
    if nbytes:
        ctypes.memmove(raw.data_ptr(), np.frombuffer(data, np.uint8).ctypes.data, nbytes)
    return raw


def _reading(tensor: torch.Tensor) -> _Reading:
    tensor = tensor.detach()
    itemsize = tensor.dtype.itemsize
    nbytes = span_nbytes(itemsize, tensor.size(), tensor.stride())
    if nbytes > max(_SPAN_READ_MAX, 2 * tensor.numel() * itemsize):
        tensor = torch.ops.aten.clone.default(tensor, memory_format=torch.contiguous_format)
        nbytes = tensor.numel() * itemsize
    return _Reading(tensor, (handle_of(tensor), offset_of(tensor) * itemsize, nbytes))


def fetch(tensor: torch.Tensor) -> torch.Tensor:
    """A CPU tensor with the elements of a device tensor, strides kept (overlaps too). Waits for the node."""
    result: torch.Tensor = fetch_all([tensor])[0]
    return result


@untraced()
def fetch_all(values: Sequence[Any]) -> list[Any]:
    """``values`` with every device tensor (in lists too) replaced by a CPU copy; one wait for each device."""
    readings: dict[int, _Reading] = {}
    of_parts: dict[int, list[torch.Tensor]] = {}
    for value in values:
        for item in value if isinstance(value, list | tuple) else [value]:
            if isinstance(item, torch.Tensor) and is_ours(item):
                if sparse.has_parts(item):
                    of_parts[id(item)] = sparse.parts(item)
                for dense in of_parts.get(id(item), [item]):
                    readings[id(dense)] = _reading(dense)
    wanted = [r for r in readings.values() if r.read[2]]
    answers: dict[int, ReadBytes] = {}
    for at in sorted({r.device_index for r in wanted}):
        there = [r for r in wanted if r.device_index == at]
        answers.update(zip(map(id, there), RECORDERS[at].fetch([r.read for r in there]), strict=True))
    copies = {key: r.tensor_of(answers.get(id(r), b"")) for key, r in readings.items()}

    def local(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [local(v) for v in value]
        if id(value) in of_parts:
            return sparse.assembled(value, [copies[id(part)] for part in of_parts[id(value)]])
        return copies.get(id(value), value) if isinstance(value, torch.Tensor) else value

    return [local(v) for v in values]


def local_scalar_dense(self: torch.Tensor) -> Any:
    """The kernel behind ``item()``."""
    return fetch(self).item()


def equal(self: torch.Tensor, other: torch.Tensor) -> bool:
    """The kernel behind ``torch.equal``: compared on the device, one bit fetched."""
    if self.size() != other.size():
        return False
    if self.numel() == 0:
        return True
    return bool(torch.ops.aten.all.default(torch.ops.aten.eq.Tensor(self, other)).item())


# --- factories


def empty(
    size: Sequence[int],
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: bool | None = None,
    memory_format: torch.memory_format | None = None,
) -> torch.Tensor:
    """The kernel of ``empty.memory_format``. The buffer is zeroed: data of earlier buffers is never visible."""
    strides = None
    if memory_format not in (None, torch.contiguous_format, torch.preserve_format):
        strides = tuple(torch.empty(size, device="meta", memory_format=memory_format).stride())
    return _filled(_allocated(tuple(size), strides, dtype, device))


def empty_strided(
    size: Sequence[int],
    stride: Sequence[int],
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: bool | None = None,
) -> torch.Tensor:
    """The kernel of ``empty_strided``."""
    return _filled(_allocated(tuple(size), tuple(stride), dtype, device))


def _filled(new: torch.Tensor) -> torch.Tensor:
    """``new``, with what torch writes into uninitialised memory under deterministic algorithms: NaN, or the type's largest value."""
    wanted = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]  # of the class of the module
    if not torch.are_deterministic_algorithms_enabled() or not wanted:
        return new
    if new.is_floating_point() or new.is_complex():
        return new.fill_(float("nan"))
    return new.fill_(True if new.dtype == torch.bool else torch.iinfo(new.dtype).max)


def _any_device(device: Any) -> int:
    """Before the face is on, every index is taken for the first."""
    return 0


_device_check: Callable[[Any], int] = _any_device


def check_device_with(check: Callable[[Any], int]) -> None:
    """``check(device)`` gives the number of a device (None: of the current one), and raises for one that does not exist."""
    global _device_check
    _device_check = check


class _Guard(threading.local):
    """``index``: what a device without a number means, in place of the current one."""

    index: int | None = None


_guard: Final = _Guard()


@contextmanager
def beside(index: int | None) -> Iterator[None]:
    """What a device guard of CUDA does: inside, torch's C++ makes on device ``index`` what it makes without a number."""
    before, _guard.index = _guard.index, index
    try:
        yield
    finally:
        _guard.index = before


def beside_index() -> int | None:
    """The device that ``beside`` names in this thread; None outside of it."""
    return _guard.index


def check_device(device: Any) -> int:
    """The number of ``device``; None: of the current one. Raises what CUDA raises for a device that does not exist."""
    if _guard.index is not None and (device is None or device.index is None):
        return _guard.index
    return _device_check(device)


def index_of_call(info: OpInfo, values: Sequence[Any]) -> int:
    """The number of the device of a call: that of its first tensor of ours, else the one that it names, else the current one."""
    for value in values:
        for item in value if isinstance(value, list | tuple) else (value,):
            if isinstance(item, torch.Tensor) and is_ours(item):
                return raw_device(item).index
    return check_device(next((value for arg, value in zip(info.args, values, strict=True) if arg.kind is Kind.DEVICE), None))


def _allocated(size: tuple[int, ...], strides: tuple[int, ...] | None, dtype: torch.dtype | None, device: Any) -> torch.Tensor:
    at = check_device(device)
    if any(n < 0 for n in size):
        raise RuntimeError(f"Trying to create tensor with negative dimension {min(size)}: {list(size)}")
    dtype = dtype or torch.get_default_dtype()
    if strides == contiguous_strides(size):
        strides = None
    nbytes = math.prod(size) * dtype.itemsize if strides is None else span_nbytes(dtype.itemsize, size, strides)
    tensor, handle = HEAPS[at].new_tensor(dtype, size, strides, nbytes)
    RECORDERS[at].alloc(handle, nbytes)
    return tensor


# --- copies between devices


def make_copy_(on_device: Callable[..., Any]) -> Callable[..., torch.Tensor]:
    """The kernel of ``copy_``; ``on_device`` copies between two tensors of ours."""

    def copy_(self: torch.Tensor, src: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        if not isinstance(src, torch.Tensor):  # torch hands Python kernels a wrapped number as the number
            src = torch.tensor(src)
        if src is self:
            return self
        if is_ours(self):
            if not (self.dtype in FROM_TORCH and src.dtype in FROM_TORCH):
                _copy_bits(self, src)
            elif is_ours(src):
                on_device(self, moved_beside(self, src))
            elif raw_device(src).type == "cpu":
                if _replacing and _is_whole(self, src):
                    _replace(self, src)
                else:
                    on_device(self, upload(src, raw_device(self).index))
            else:
                raise RuntimeError(f"copy_ from {raw_device(src)} to the device is not possible")
        else:
            torch.ops.aten.copy_.default(self.detach(), fetch(src))
        return self

    return copy_


def moved_beside(self: torch.Tensor, src: torch.Tensor) -> torch.Tensor:
    """``src`` on the device of ``self``: what is on another one travels over this machine."""
    return src if raw_device(src) == raw_device(self) else upload(fetch(src), raw_device(self).index)


_replacing = False


def replace_whole(on: bool) -> None:
    """With ``on``, copying from this machine over all of a large buffer gives its tensors a new buffer, which holds exactly the bytes that
    were uploaded. So weights that ``load_state_dict`` puts into a model that is on the device can be shared."""
    global _replacing
    _replacing = on


def _is_whole(self: torch.Tensor, src: torch.Tensor) -> bool:
    """Does ``copy_`` overwrite the whole buffer of ``self``, and may that be another one afterwards?"""
    storage = storage_of(self)
    return (
        HAS_SWAP
        and storage.nbytes() > LIMITS.inline_bytes_max
        and self.numel() * self.dtype.itemsize == storage.nbytes()
        and self.is_contiguous()
        and self.size() == src.size()
        and not (self.is_conj() or self.is_neg())
        and not getattr(storage, "_wooly_pointed", False)
    )


def _replace(self: torch.Tensor, src: torch.Tensor) -> None:
    """Every view of the buffer sees the new one."""
    fresh = upload(src.detach().to(self.dtype).contiguous(), raw_device(self).index)
    mine, other = storage_of(self), storage_of(fresh)
    mine._swap_data_ptr_(other)
    mine._wooly_buf, other._wooly_buf = other._wooly_buf, mine._wooly_buf


_BITS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _copy_bits(self: torch.Tensor, src: torch.Tensor) -> None:
    """Copy where one side has a type the device cannot compute with (float8 and the like): converted here, moved as integers there."""
    here = (fetch(src) if is_ours(src) else src).to(self.dtype).expand(self.size())
    bits = _BITS[self.dtype.itemsize]
    self.view(bits).copy_(upload(here.contiguous(), raw_device(self).index).view(bits))


def make_to_copy(on_device: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The kernel of ``_to_copy``; ``on_device(self, dtype=, memory_format=)`` converts a tensor of ours."""

    def to_copy(
        self: torch.Tensor,
        dtype: torch.dtype | None = None,
        layout: Any = None,
        device: Any = None,
        pin_memory: bool | None = None,
        non_blocking: bool = False,
        memory_format: torch.memory_format | None = None,
    ) -> torch.Tensor:
        ours = is_ours(self)
        to_ours = ours if device is None else is_our_device(device)
        at = check_device(device) if to_ours and device is not None else raw_device(self).index if ours else 0
        if ours and to_ours:
            if at != raw_device(self).index:
                here = fetch(self).to(dtype=dtype, memory_format=memory_format or torch.preserve_format)
                return upload(here, at)
            if not (self.dtype in FROM_TORCH and (dtype or self.dtype) in FROM_TORCH):
                return upload(fetch(self).to(dtype=dtype, memory_format=memory_format or torch.preserve_format), at)
            return on_device(self, dtype=dtype or self.dtype, memory_format=memory_format)
        if ours:
            if torch.device(device).type == "meta":
                return torch.empty_strided(self.size(), self.stride(), dtype=dtype or self.dtype, device="meta")
            here = fetch(self)
            kept = here.clone(memory_format=memory_format or torch.preserve_format)
            return torch.ops.aten._to_copy.default(kept, dtype=dtype, device=device) if dtype or str(device) != "cpu" else kept
        # The conversion happens on the side where fewer bytes travel.
        source = self.detach()
        if memory_format is not None and memory_format is not torch.preserve_format:
            source = source.contiguous(memory_format=memory_format)
        if dtype is None or dtype == source.dtype:
            return upload(source, at)
        if dtype.itemsize <= source.dtype.itemsize:
            return upload(source.to(dtype), at)
        if source.dtype not in FROM_TORCH or dtype not in FROM_TORCH:
            return upload(source.to(dtype), at)
        return on_device(upload(source, at), dtype=dtype, memory_format=memory_format)

    return to_copy


# --- storages

_raw_device_of: Final[Callable[[Any], torch.device]] = torch._C.StorageBase.device.__get__  # type: ignore[attr-defined]  # as C++ knows it


@untraced()
def resize_(self: torch.Tensor, size: Sequence[int], memory_format: torch.memory_format | None = None) -> torch.Tensor:
    """The kernel of ``resize_``: a larger storage keeps its contents; other views of it see the new one, as in torch."""
    size = tuple(size)
    if size == tuple(self.size()) and memory_format is None:
        return self
    strides: Sequence[int] = contiguous_strides(size)
    if memory_format not in (None, torch.contiguous_format, torch.preserve_format):
        strides = torch.empty(size, device="meta", memory_format=memory_format).stride()
    storage = storage_of(self)
    needed = span_nbytes(self.dtype.itemsize, size, strides, offset_of(self))
    if needed > storage.nbytes():
        storage = resize_storage(storage, needed)
    return set_storage(self, storage, offset_of(self), size, strides)


def resize_storage(storage: Any, nbytes: int) -> Any:
    """Give ``storage`` a buffer of ``nbytes`` with the same first bytes (zeros behind them); returns it.

    Where torch cannot exchange a storage's memory a new storage is returned, and ``storage`` stays as it is.
    """
    device = _raw_device_of(storage)
    fresh = empty((nbytes,), dtype=torch.uint8, device=device)
    kept = min(nbytes, storage.nbytes())
    if kept:
        old = set_storage(make_bare(device.index, torch.uint8), storage, 0, (kept,), (1,))
        torch.ops.aten.copy_.default(fresh.narrow(0, 0, kept), old)
    other = storage_of(fresh)
    if not HAS_SWAP:
        return other
    storage._swap_data_ptr_(make_storage(0, device, 0))  # torch swaps only with a storage of the same size, or of none
    storage._swap_data_ptr_(other)
    mine = getattr(storage, "_wooly_buf", None)
    storage._wooly_buf = other._wooly_buf
    other._wooly_buf = mine
    return storage


def resize_output(out: torch.Tensor, shape: Sequence[int], strides: Sequence[int] | None = None) -> None:
    """Give an out= tensor the shape of the result, and its ``strides`` (None: those of rows), with torch's warning when it held something
    else. One that has the shape keeps its strides."""
    if tuple(out.size()) == tuple(shape):
        return
    if out.numel():
        warnings.warn(
            f"An output with one or more elements was resized since it had shape {list(out.size())}, which does not match the required "
            f"output shape {list(shape)}. This behavior is deprecated, and in a future PyTorch release outputs will not be resized "
            "unless they have zero elements.",
            stacklevel=2,
        )
    places = 0 if strides is None or tuple(strides) == contiguous_strides(shape) else span_nbytes(1, shape, strides)
    if strides is None or places < math.prod(shape):
        out.resize_(tuple(shape))
    else:  # there may be gaps
        out.resize_((places,)).as_strided_(tuple(shape), tuple(strides))


def set_storage_offset_(self: torch.Tensor, source: Any, offset: int, size: Sequence[int], stride: Sequence[int] = ()) -> torch.Tensor:
    """The kernel of ``set_.source_Storage_storage_offset``."""
    return set_storage(self, source, offset, size, stride or contiguous_strides(size))


def set_storage_(self: torch.Tensor, source: Any) -> torch.Tensor:
    """The kernel of ``set_.source_Storage``: the whole storage as one dimension."""
    return set_storage(self, source, 0, (source.nbytes() // self.dtype.itemsize,), (1,))


def set_tensor_(self: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """The kernel of ``set_.source_Tensor``."""
    return set_storage(self, storage_of(source), offset_of(source), source.size(), source.stride())


def set_(self: torch.Tensor) -> torch.Tensor:
    """The kernel of ``set_``: empty."""
    return set_tensor_(self, empty((0,), dtype=self.dtype, device=raw_device(self)))
