"""Names of the device, and every private API of torch that the client depends on.

The device is torch's private-use backend renamed ``wooly``; users see ``cuda`` (``wooly.device.face``).
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch

BACKEND: Final = "wooly"
"""The private-use backend's name inside torch."""
SHOWN: Final = "cuda"
"""The device type users see and ask for."""
OURS: Final = frozenset({BACKEND, SHOWN})
"""Both names: a patched ``Tensor.device`` may answer either."""

HANDLE_SHIFT: Final = 20
"""A storage's fake data pointer is ``handle << HANDLE_SHIFT``; one handle unit stands for 1 MiB of addresses (see tensors.py)."""

INDEX_SHIFT: Final = 37
DEVICES_MAX: Final = 16
"""Devices of one process: the number of a buffer's device is in the bits of its handle from INDEX_SHIFT on."""

CPU_KEYS: Final = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
"""Redispatching a metadata operation with this key set runs torch's own C++ kernel on our tensor."""

TensorBase: Final[Any] = torch._C.TensorBase

_device_getter: Final = TensorBase.device.__get__
_device: torch.device | None = None


def DEVICE() -> torch.device:
    """``wooly:0``; valid once the backend is registered (torch refuses the name before)."""
    global _device
    if _device is None:
        _device = torch.device(BACKEND, 0)
    return _device


def raw_device(tensor: torch.Tensor) -> torch.device:
    """The device as C++ knows it, whatever ``Tensor.device`` has been patched to show."""
    device: torch.device = _device_getter(tensor)  # in a mode of __torch_function__: the patched property's answer
    return device if device.type != SHOWN else torch.device(BACKEND, device.index)


def is_ours(tensor: torch.Tensor) -> bool:
    """True for a tensor that lives on the remote device."""
    return raw_device(tensor).type in OURS


def is_our_device(device: torch.device | str | None) -> bool:
    """True when ``device`` names the remote device, by either of its names."""
    if device is None:
        return False
    name = device.type if isinstance(device, torch.device) else str(device).split(":", 1)[0]
    return name in OURS


make_storage: Final[Callable[[int, torch.device, int], Any]] = torch._C._construct_storage_from_data_pointer
"""(pointer, device, nbytes) -> UntypedStorage that owns nothing."""

make_empty: Final[Callable[[tuple[int, ...], torch.dtype], torch.Tensor]] = torch._C._acc.create_empty_tensor
"""(shape, dtype) -> tensor on the private-use device without memory."""

HAS_SWAP: Final = hasattr(torch.UntypedStorage, "_swap_data_ptr_")
"""Can a storage be given other memory (torch 2.13 and later)? Else new tensors are pointed at a new storage, three times as slow, and a
storage that grows leaves other views of it behind."""


class _DlTensor(ctypes.Structure):
    """DLManagedTensor of dlpack.h, version 0.8, its members of structures written out."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p), ("byte_offset", ctypes.c_uint64), ("manager_ctx", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
    )  # fmt: skip


_DL_EXTENSION: Final = 12  # kDLExtDev, which torch takes for its private-use backend
_DL_UNSIGNED: Final = 1
_bare: Final[dict[tuple[int, torch.dtype, bool], torch.Tensor]] = {}
_lent: Final[list[Any]] = []  # what capsules point to, as long as the process lives


def make_bare(index: int, dtype: torch.dtype) -> torch.Tensor:
    """A tensor without elements and memory on device ``index``, which ``set_storage`` points at a storage of that device.

    torch makes tensors of a private-use backend on its first device only, but for those that DLPack describes."""
    if not index:
        return make_empty((0,), dtype)
    key = (index, dtype, torch.is_inference_mode_enabled())  # tensors made in the mode have other dispatch keys
    known = _bare.get(key)
    if known is None:
        no_elements = (ctypes.c_int64 * 1)(0)
        described = _DlTensor(device_type=_DL_EXTENSION, device_id=index, ndim=1, code=_DL_UNSIGNED, bits=8, lanes=1)
        described.shape = ctypes.addressof(no_elements)
        _lent.append((described, no_elements))
        capsule = _new_capsule(ctypes.addressof(described), b"dltensor", None)
        raw = torch._C._from_dlpack(capsule)
        known = _bare[key] = raw if dtype is torch.uint8 else torch.ops.aten.view.dtype.redispatch(CPU_KEYS, raw, dtype)
    result: torch.Tensor = torch.ops.aten.alias.default.redispatch(CPU_KEYS, known)
    return result


_new_capsule: Final = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)

_set: Final = torch.ops.aten.set_.source_Storage_storage_offset


def set_storage(tensor: torch.Tensor, storage: Any, offset: int, shape: Sequence[int], strides: Sequence[int]) -> torch.Tensor:
    """Point ``tensor`` at ``storage`` (metadata only); offset and strides in elements."""
    result: torch.Tensor = _set.redispatch(CPU_KEYS, tensor, storage, offset, shape, strides)
    return result


def storage_of(tensor: torch.Tensor) -> Any:
    """The tensor's storage; untyped because it carries an attribute of ours and has methods torch does not declare."""
    return tensor.untyped_storage()


def offset_of(tensor: torch.Tensor) -> int:
    """Elements from the storage's start (torch's signature allows symbolic ones; here they never are)."""
    return int(tensor.storage_offset())


def library(namespace: str, kind: str) -> Any:
    """A torch.library.Library, whose constructor torch does not annotate. torch would take its kernels away before exit handlers are
    called that are older than torch's import, and those may still use the device."""
    make: Any = torch.library.Library
    made = make(namespace, kind)
    registry: Any = weakref.finalize.__dict__["_registry"]
    for finalizer in [finalizer for finalizer in registry if (found := finalizer.peek()) is not None and found[0] is made]:
        finalizer.atexit = False
    return made


def cpu_generator() -> torch.Generator:
    """torch's default CPU generator."""
    generator: torch.Generator = torch._C.default_generator
    return generator


def handle_of(tensor: torch.Tensor) -> int:
    """The buffer handle behind one of our tensors, from any view of it."""
    return tensor.untyped_storage().data_ptr() >> HANDLE_SHIFT


def index_of_handle(handle: int) -> int:
    """The number of the device that holds the buffer."""
    return handle >> INDEX_SHIFT & DEVICES_MAX - 1


def has_kernel(name: str, key: str) -> bool:
    """True when operator ``name`` (``aten::add.Tensor``) has a kernel on dispatch key ``key``."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(name, key))


def has_python_kernel(name: str, key: str) -> bool:
    """True when a program registered a kernel in Python for operator ``name`` (``mine::add.Tensor``) on dispatch key ``key``."""
    return f"{name.replace('::', '/', 1)}/{key}" in torch.library._impls


def all_op_names() -> list[str]:
    """Every operator overload known to the dispatcher, as ``aten::add.Tensor``."""
    return list(torch._C._dispatch_get_all_op_names())


def is_tracing() -> bool:
    """Is torch.jit.trace running? Then sizes and strides, asked for from Python, are traced tensors and not numbers."""
    return torch._C._get_tracing_state() is not None


@contextmanager
def untraced() -> Iterator[None]:
    """Inside, the tracer is paused: it has recorded the operation that called us."""
    c: Any = torch._C
    state = c._get_tracing_state()
    if state is None:
        yield
        return
    # Tracing resumes afterwards only where the tracer's key is not excluded, as it is below the tracer.
    excluded = c._dispatch_tls_local_exclude_set().remove(c._dispatch_key_parse("Tracer"))
    with c._ForceDispatchKeyGuard(c._dispatch_tls_local_include_set(), excluded):
        c._set_tracing_state(None)
        try:
            yield
        finally:
            c._set_tracing_state(state)
