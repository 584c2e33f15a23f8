"""torch.UntypedStorage as users see it, so that torch's own saving, loading and copying of storages work on the device.

With ``device``, the constructor and ``copy_`` right, everything above them (torch.save, torch.load with map_location, pickle, deepcopy,
``storage.cuda()``) is torch's own code.
"""

from __future__ import annotations

import sys
import threading
from multiprocessing.queues import JoinableQueue
from multiprocessing.queues import Queue as typed_queue
from multiprocessing.reduction import ForkingPickler
from typing import Any, Final

import torch
from torch import Tensor, UntypedStorage
from torch.multiprocessing import reductions

from wooly.device.backend import OURS, is_ours
from wooly.device.face.api import Face, put, wrapping
from wooly.device.face.devices import index_of, ours, shown
from wooly.errors import refuse_received

__all__ = ["patch", "is_our_storage"]

Queue: Final[Any] = typed_queue  # the standard library's types leave out what is private
_Base: Final[Any] = torch._C.StorageBase
_raw_device: Final = _Base.device.__get__
_PINNED: Final = "_wooly_pinned"


def is_our_storage(storage: Any) -> bool:
    """True for a storage on the remote device."""
    return _raw_device(storage).type in OURS


def _bytes(storage: Any) -> Tensor:
    """The storage as a one-dimensional tensor of bytes over the same memory."""
    return torch.empty(0, dtype=torch.uint8, device=_raw_device(storage)).set_(storage)


def _untyped(storage: Any) -> Any:
    return storage._untyped_storage if isinstance(storage, torch.TypedStorage) else storage


def patch(face: Face) -> None:
    """Give torch.UntypedStorage its face."""
    _construction()
    _contents()
    _refusals()
    _pinning()


def _construction() -> None:
    put(UntypedStorage, "device", property(lambda self: shown(_raw_device(self))))

    def new(cls: type[UntypedStorage], *args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        if device is not None and torch.device(device).type in OURS:
            target = ours(index_of(device))
            data = args[0] if args else kwargs.get("size", 0)
            make = torch.empty if isinstance(data, int) else torch.tensor
            return make(data, dtype=torch.uint8, device=target).untyped_storage()
        return _Base.__new__(cls, *args, **kwargs)

    put(UntypedStorage, "__new__", staticmethod(new))


def _contents() -> None:
    copy, fill, set_, resize, shared = _Base.copy_, _Base.fill_, _Base.__setitem__, _Base.resize_, _Base.is_shared
    get: Any = UntypedStorage.__getitem__  # untyped in torch

    def copy_(self: Any, source: Any, non_blocking: bool | None = None) -> Any:
        source = _untyped(source)
        if is_our_storage(self) or is_our_storage(source):
            if self.nbytes() != source.nbytes():
                raise RuntimeError(f"size does not match, self was {self.nbytes()} bytes but src was {source.nbytes()} bytes")
            _bytes(self).copy_(_bytes(source), non_blocking=bool(non_blocking))
            return self
        return copy(self, source, non_blocking)

    def fill_(self: Any, value: int) -> Any:
        if is_our_storage(self):
            _bytes(self).fill_(value)
            return self
        return fill(self, value)

    def getitem(self: Any, index: Any) -> Any:
        if is_our_storage(self):
            found = _bytes(self)[index]
            return found.item() if found.dim() == 0 else found.cpu().untyped_storage()
        return get(self, index)

    def setitem(self: Any, index: Any, value: Any) -> None:
        if is_our_storage(self):
            _bytes(self)[index] = value
        else:
            set_(self, index, value)

    def resize_(self: Any, nbytes: int) -> Any:
        if not is_our_storage(self):
            return resize(self, nbytes)
        from wooly.device.transfer import resize_storage

        if nbytes != self.nbytes() and resize_storage(self, nbytes) is not self:
            raise NotImplementedError(f"UntypedStorage.resize_ on a device needs a newer torch than {torch.__version__}; resize the tensor")
        return self

    def is_shared(self: Any) -> bool:
        return is_our_storage(self) or shared(self)  # as for CUDA: true, whatever that means for it

    def tolist(self: Any) -> list[int]:
        return _bytes(self).tolist() if is_our_storage(self) else list(self)

    for name, function in (
        ("copy_", copy_),
        ("fill_", fill_),
        ("__getitem__", getitem),
        ("__setitem__", setitem),
        ("resize_", resize_),
        ("tolist", tolist),
        ("is_shared", is_shared),
    ):
        put(UntypedStorage, name, function)


_UNSENDABLE: Final = (
    "a cuda tensor cannot be sent to another process: each process has its own session; send tensor.cpu() and move it there"
)


def _refusals() -> None:
    share = UntypedStorage._share_cuda_

    @wrapping(share)
    def share_cuda(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(_UNSENDABLE)

    put(UntypedStorage, "_share_cuda_", share_cuda)
    known: Any = reductions.reduce_tensor

    def reduce_tensor(tensor: torch.Tensor) -> Any:
        if is_ours(tensor) and _is_feeding():
            return refuse_received, (_UNSENDABLE,)
        return known(tensor)

    put(reductions, "reduce_tensor", reduce_tensor)
    for queue in (Queue, JoinableQueue):
        put(queue, "put", _refusing(queue.put))
    for kind in (torch.Tensor, torch.nn.Parameter):
        ForkingPickler.register(kind, reduce_tensor)


def _refusing(send: Any) -> Any:
    """``Queue.put`` that raises in the sender too what the receiver's ``get`` will raise: both may wait for what comes of the other."""

    @wrapping(send)
    def put_or_refuse(self: Any, obj: Any, *args: Any, **kwargs: Any) -> None:
        send(self, obj, *args, **kwargs)
        if _holds_ours(obj):
            raise NotImplementedError(_UNSENDABLE)

    return put_or_refuse


def _holds_ours(obj: Any) -> bool:
    if isinstance(obj, torch.Tensor):
        return is_ours(obj)
    if isinstance(obj, dict):
        return any(map(_holds_ours, obj.values()))
    return isinstance(obj, list | tuple) and any(map(_holds_ours, obj))


def _is_feeding() -> bool:
    """Is this the thread of a multiprocessing queue, in which an error would be printed and what was to be sent dropped, so that the
    receiver would wait for ever?"""
    frame = sys._getframe(1) if threading.current_thread().name == "QueueFeederThread" else None
    while frame is not None:
        if frame.f_code is Queue._feed.__code__:
            return frame.f_locals.get("onerror") is Queue._on_queue_feeder_error
        frame = frame.f_back
    return False


def _pinning() -> None:
    def is_pinned(self: Any, device: Any = "cuda") -> bool:
        return bool(getattr(self, _PINNED, False))

    def pin_memory(self: Any, device: Any = "cuda") -> Any:
        if is_our_storage(self):
            raise TypeError(f"cannot pin '{self.type()}' only CPU memory can be pinned")
        if is_pinned(self):
            return self
        pinned = self.clone()
        setattr(pinned, _PINNED, True)
        return pinned

    put(UntypedStorage, "is_pinned", is_pinned)
    put(UntypedStorage, "pin_memory", pin_memory)
