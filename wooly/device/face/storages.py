"""torch.UntypedStorage as users see it, so that torch's own saving, loading and copying of storages work on the device.

With ``device``, the constructor and ``copy_`` right, everything above them (torch.save, torch.load with map_location, pickle, deepcopy,
``storage.cuda()``) is torch's own code.
"""

from __future__ import annotations

import io
import warnings
from multiprocessing.reduction import ForkingPickler
from typing import Any, Final

import torch
from torch import Tensor, UntypedStorage
from torch.multiprocessing import reductions

from wooly.device.backend import OURS, is_ours
from wooly.device.face.api import Face, put, wrapping
from wooly.device.face.devices import index_of, ours, shown

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
    _sending()
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


def _sending() -> None:
    """Tensors that torch.multiprocessing pickles travel as copies, because each process has a session of its own."""
    known: Any = reductions.reduce_tensor

    def reduce_tensor(tensor: Tensor) -> Any:
        if not is_ours(tensor) or (tensor.requires_grad and not tensor.is_leaf):  # which torch refuses
            return known(tensor)
        warnings.warn(_COPIED, stacklevel=2)
        data = io.BytesIO()  # not shared memory, which lives no longer than this copy
        torch.save(tensor.detach().cpu(), data)
        return received, (data.getvalue(), tensor.device.index or 0, isinstance(tensor, torch.nn.Parameter), tensor.requires_grad)

    put(reductions, "reduce_tensor", reduce_tensor)
    for kind in (Tensor, torch.nn.Parameter):
        ForkingPickler.register(kind, reduce_tensor)
    share = UntypedStorage._share_cuda_

    @wrapping(share)
    def share_cuda(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("memory of the remote device cannot be shared with another process: send the tensor, which is copied")

    put(UntypedStorage, "_share_cuda_", share_cuda)


_COPIED: Final = "a cuda tensor that is sent to another process is copied: what one process changes later, the other does not see"


def received(data: bytes, index: int, parameter: bool, requires_grad: bool) -> Tensor:
    """What another process sent, on this process's device. ``data``: of ``torch.save``."""
    tensor: Tensor = torch.load(io.BytesIO(data), weights_only=True).to(f"cuda:{index}")
    return torch.nn.Parameter(tensor, requires_grad) if parameter else tensor.requires_grad_(requires_grad)


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
