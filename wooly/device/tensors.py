"""Virtual tensors: plain ``torch.Tensor`` on the private-use backend whose storage is a handle of a remote buffer; and view operations:
torch's own metadata code on these storages, which costs no instruction.

A storage's data pointer is ``handle << 20``. Handles are chosen so that the address ranges of live storages never overlap: a buffer
above 1 MiB takes several handle units. So every view, ``detach``, ``.data`` and saved tensor leads back to the handle; torch's own
aliasing, version counters and bounds checks hold; and code that compares storage pointers sees distinct memory.

All other views are composites over these six (and over in-place views such as ``squeeze_``, which are listed by their tag).
"""

from __future__ import annotations

import gc
import itertools
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn

import torch

from wis.views import contiguous_strides
from wooly.device.backend import (
    BACKEND,
    CPU_KEYS,
    HANDLE_SHIFT,
    HAS_SWAP,
    INDEX_SHIFT,
    all_op_names,
    has_kernel,
    index_of_handle,
    make_bare,
    make_empty,
    make_storage,
    set_storage,
    storage_of,
)
from wooly.device.memory import MEMORY, MemoryCounter
from wooly.device.schema import overload
from wooly.errors import ForkError

__all__ = ["FORK_MESSAGE", "HEAP", "HEAPS", "VIEWS", "Heap", "buffer_at", "inplace_views", "view_kernel"]

FORK_MESSAGE: Final = (
    "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' start method"
)

_UNIT: Final = 1 << HANDLE_SHIFT
_LARGE_FIRST: Final = 1 << INDEX_SHIFT + 4  # handles of buffers above one unit, apart from the others so that both only count up


class Buf:
    """Owned by a storage; its death is the death of the buffer's last view."""

    __slots__ = ("handle", "nbytes")

    def __init__(self, handle: int, nbytes: int) -> None:
        self.handle = handle
        self.nbytes = nbytes


def _buf_class(memory: MemoryCounter, freed: deque[int]) -> type[Buf]:
    """Of buffers that are counted in ``memory``, and end in ``freed``."""

    def __del__(self: Buf, memory: MemoryCounter = memory, freed: Callable[[int], None] = freed.append) -> None:
        memory.allocated -= self.nbytes
        freed(self.handle)

    return type("Buf", (Buf,), {"__slots__": (), "__del__": __del__})


def _connect_nothing() -> None:
    """Before the device is installed there is nothing to open."""


class Heap:
    """The buffers of one device in this process.

    ``memory`` counts them. ``freed``: handles whose last view died, in order; the recorder takes them at a flush. A deque: any thread may
    append.
    """

    __slots__ = ("Buf", "_connect", "_device", "_large_next", "_lock", "_sizes", "_small", "_used", "freed", "index", "memory")

    def __init__(self, index: int, memory: MemoryCounter) -> None:
        self.index = index
        self.memory = memory
        self.freed: deque[int] = deque()
        self.Buf = _buf_class(memory, self.freed)
        self._device: torch.device | None = None
        self._small = itertools.count((index << INDEX_SHIFT) + 1)
        self._large_next = _LARGE_FIRST + (index << INDEX_SHIFT)
        self._lock = threading.Lock()
        self._connect: Callable[[], Any] = _connect_nothing
        self._used = False
        self._sizes: dict[int, int] | None = None

    def on_first_use(self, connect: Callable[[], Any]) -> None:
        """``connect()`` is called once, before the first buffer of the device is made."""
        self._connect, self._used = connect, False

    def new_handle(self, nbytes: int) -> int:
        """A fresh handle for a buffer of ``nbytes``, counted against the quota; raises QuotaExceeded past it."""
        if not self._used:
            self._connect()
            self._used = True
        memory = self.memory
        memory.allocated += nbytes
        if memory.allocated > memory.mark:
            memory.over(nbytes)
        if nbytes <= _UNIT:
            return next(self._small)
        with self._lock:
            handle = self._large_next
            self._large_next += -(-nbytes // _UNIT)
        return handle

    def new_tensor(self, dtype: torch.dtype, shape: Sequence[int], strides: Sequence[int] | None, nbytes: int) -> tuple[torch.Tensor, int]:
        """A tensor over a fresh buffer, and its handle. ``strides`` None: contiguous."""
        handle = self.new_handle(nbytes)
        if self._device is None:
            self._device = torch.device(BACKEND, self.index)
        if strides is None and nbytes and HAS_SWAP and not self.index:  # create_empty_tensor gives tensors without elements strides of 0
            tensor = make_empty(shape, dtype)  # type: ignore[arg-type]  # any sequence of ints will do
            storage = storage_of(tensor)
            storage._swap_data_ptr_(make_storage(handle << HANDLE_SHIFT, self._device, nbytes))
        else:
            storage = make_storage(handle << HANDLE_SHIFT, self._device, nbytes)
            layout = contiguous_strides(shape) if strides is None else strides
            tensor = set_storage(make_bare(self.index, dtype), storage, 0, shape, layout)
        storage._wooly_buf = self.Buf(handle, nbytes)
        return tensor, handle

    def _traced(self) -> dict[int, int]:
        """Sizes of the live buffers by handle. Notes them from the first call on, so that a script without such a call pays nothing."""
        if self._sizes is None:
            sizes = self._sizes = {}
            memory, freed = self.memory, self.freed.append

            def __init__(self: Buf, handle: int, nbytes: int) -> None:
                self.handle, self.nbytes = handle, nbytes
                sizes[handle] = nbytes

            def __del__(self: Buf) -> None:
                memory.allocated -= self.nbytes
                sizes.pop(self.handle, None)
                freed(self.handle)

            self.Buf.__init__, self.Buf.__del__ = __init__, __del__  # type: ignore[method-assign, attr-defined]  # of a class made for it
            gc.collect()
            sizes.update((buf.handle, buf.nbytes) for buf in gc.get_objects() if type(buf) is self.Buf)
        return self._sizes

    def buffer_at(self, address: int) -> tuple[int, int, int] | None:
        """Handle, distance from its start and size, in bytes, of the live buffer that ``address`` is in or at the end of."""
        sizes, unit = self._traced(), address >> HANDLE_SHIFT
        if unit in sizes:
            return unit, address - (unit << HANDLE_SHIFT), sizes[unit]
        for handle, nbytes in tuple(sizes.items()):
            if 0 <= address - (handle << HANDLE_SHIFT) <= nbytes:
                return handle, address - (handle << HANDLE_SHIFT), nbytes
        return None

    def after_fork(self) -> None:
        """A forked child must not use the parent's session: every new buffer is refused."""
        if self._used:
            self.on_first_use(_refuse_forked)


def _refuse_forked() -> NoReturn:
    raise ForkError(FORK_MESSAGE)


HEAP: Final = Heap(0, MEMORY)
"""That of the process's first device."""
HEAPS: Final = {0: HEAP}
"""Of the devices that the process uses, by number."""


def buffer_at(address: int) -> tuple[int, int, int] | None:
    """Handle, distance from its start and size, in bytes, of the live buffer of any device that ``address`` is in; None for any other
    address. Code that cannot hold tensors has addresses only."""
    heap = HEAPS.get(index_of_handle(address >> HANDLE_SHIFT))
    return None if heap is None else heap.buffer_at(address)


def _after_fork() -> None:
    for heap in HEAPS.values():
        heap.after_fork()


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
