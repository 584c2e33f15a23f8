"""Virtual tensors: plain ``torch.Tensor`` on the private-use backend whose storage is a handle of a remote buffer; and view operations:
torch's own metadata code on these storages, which costs no instruction.

A storage's data pointer is ``handle << 20``. Handles are chosen so that the address ranges of live storages never overlap: a buffer
above 1 MiB takes several handle units. So every view, ``detach``, ``.data`` and saved tensor leads back to the handle; torch's own
aliasing, version counters and bounds checks hold; and code that compares storage pointers sees distinct memory.

All other views are composites over these six (and over in-place views such as ``squeeze_``, which are listed by their tag).
"""

from __future__ import annotations

import itertools
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn

import torch

from wis.views import contiguous_strides
from wooly.device.backend import (
    CPU_KEYS,
    DEVICE,
    HANDLE_SHIFT,
    HAS_SWAP,
    all_op_names,
    has_kernel,
    make_empty,
    make_storage,
    set_storage,
    storage_of,
)
from wooly.device.memory import MEMORY
from wooly.device.schema import overload
from wooly.errors import ForkError

__all__ = ["FORK_MESSAGE", "FREED", "VIEWS", "Buf", "inplace_views", "new_handle", "new_tensor", "on_first_use", "view_kernel"]

FORK_MESSAGE: Final = (
    "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' start method"
)

FREED: Final[deque[int]] = deque()
"""Handles whose last view died, in order; the recorder takes them at a flush. A deque: any thread may append."""

_UNIT: Final = 1 << HANDLE_SHIFT
_LARGE_FIRST: Final = 1 << 41  # handles of buffers above one unit, apart from the others so that both only count up
_small = itertools.count(1)
_large_next = _LARGE_FIRST
_large_lock = threading.Lock()


class Buf:
    """Owned by a storage; its death is the death of the buffer's last view."""

    __slots__ = ("handle", "nbytes")

    def __init__(self, handle: int, nbytes: int) -> None:
        self.handle = handle
        self.nbytes = nbytes

    def __del__(self, memory: Any = MEMORY, freed: Any = FREED.append) -> None:
        memory.allocated -= self.nbytes
        freed(self.handle)


def _connect_nothing() -> None:
    """Before the device is installed there is nothing to open."""


_first_use = _connect_nothing
_used = False


def on_first_use(connect: Any) -> None:
    """``connect()`` is called once, before the first buffer of the process is made."""
    global _first_use, _used
    _first_use, _used = connect, False


def new_handle(nbytes: int) -> int:
    """A fresh handle for a buffer of ``nbytes``, counted against the quota; raises QuotaExceeded past it."""
    global _large_next, _used
    if not _used:
        _first_use()
        _used = True
    MEMORY.allocated += nbytes
    if MEMORY.allocated > MEMORY.mark:
        MEMORY.over(nbytes)
    if nbytes <= _UNIT:
        return next(_small)
    with _large_lock:
        handle = _large_next
        _large_next += -(-nbytes // _UNIT)
    return handle


def new_tensor(dtype: torch.dtype, shape: Sequence[int], strides: Sequence[int] | None, nbytes: int) -> tuple[torch.Tensor, int]:
    """A tensor over a fresh buffer, and its handle. ``strides`` None: contiguous."""
    handle = new_handle(nbytes)
    if strides is None and nbytes and HAS_SWAP:  # create_empty_tensor gives tensors without elements strides of 0
        tensor = make_empty(shape, dtype)  # type: ignore[arg-type]  # any sequence of ints will do
        storage = storage_of(tensor)
        storage._swap_data_ptr_(make_storage(handle << HANDLE_SHIFT, DEVICE(), nbytes))
    else:
        storage = make_storage(handle << HANDLE_SHIFT, DEVICE(), nbytes)
        tensor = set_storage(make_empty((0,), dtype), storage, 0, shape, contiguous_strides(shape) if strides is None else strides)
    storage._wooly_buf = Buf(handle, nbytes)
    return tensor, handle


def _refuse_forked() -> NoReturn:
    raise ForkError(FORK_MESSAGE)


def _after_fork() -> None:
    """A forked child must not use the parent's session: every new buffer is refused."""
    if _used:
        on_first_use(_refuse_forked)


os.register_at_fork(after_in_child=_after_fork)


VIEWS: Final = ("view", "as_strided", "_reshape_alias", "unfold", "view_as_real", "view_as_complex", "is_set_to")

_OWN: Final = frozenset({"resize_", "resize_as_", "set_", "detach_"})
"""Tagged as in-place views, but they deal with storages: transfer.py has their kernels, or torch needs none."""


def view_kernel(op: Any, keys: Any = CPU_KEYS) -> Callable[..., Any]:
    """A kernel that runs torch's CPU kernel of ``op`` (that of ``keys``), which only handles metadata."""
    redispatch = op.redispatch

    def kernel(*args: Any, **kwargs: Any) -> Any:
        return redispatch(keys, *args, **kwargs)

    return kernel


def inplace_views() -> list[str]:
    """Names of the operations that change a tensor's metadata in place."""
    names = []
    for name in all_op_names():
        if not name.startswith("aten::") or name[6:].partition(".")[0] in _OWN or has_kernel(name, "CompositeImplicitAutograd"):
            continue
        op = overload(name)
        if op is not None and torch.Tag.inplace_view in op.tags:
            names.append(name)
    return names
