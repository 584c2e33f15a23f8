"""``numba.cuda`` on the device: Numba compiles a kernel to PTX on this machine, without a GPU, and the launch is recorded like one of a
``RawModule``. Tensors of the device are arrays to it, and its own arrays are memory of the device.

Numba's driver is replaced above ctypes: launches of its dispatchers (``CUDADispatcher.configure``, ``forall``, ``compile``), and the
functions of its ``api`` module that make arrays, streams and events. Both Numba's own ``numba.cuda`` and package ``numba-cuda`` have them.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import torch

from wis.kernel.model import WARP
from wooly.device.backend import is_ours, offset_of
from wooly.errors import CompileError, KernelArgumentError
from wooly.kernels.build import build_ptx
from wooly.kernels.raw import Function, Variables

CAPABILITY: Final = (8, 0)
_BLOCK: Final = 256
"""Threads of a block where Numba asks the driver for a good number."""
_DTYPES: Final = {
    torch.float32: "f4", torch.float64: "f8", torch.float16: "f2", torch.complex64: "c8", torch.complex128: "c16", torch.bool: "?",
    torch.int8: "i1", torch.int16: "i2", torch.int32: "i4", torch.int64: "i8", torch.uint8: "u1", torch.uint16: "u2", torch.uint32: "u4",
    torch.uint64: "u8",
}  # fmt: skip


# -- arrays


class DeviceArray:
    """An array on the device, as Numba's own class of it: ``shape``, ``strides`` (bytes) and ``dtype`` are NumPy's.

    Views are computed by NumPy on ``like``, an array of the same layout on this machine whose memory is never touched.
    """

    def __init__(self, memory: torch.Tensor, offset: int, like: np.ndarray[Any, Any]) -> None:
        """``memory``: bytes on the device, of which the first element is at ``offset``."""
        self.memory, self.offset, self.like = memory, offset, like

    shape = property(lambda self: self.like.shape)
    strides = property(lambda self: self.like.strides)
    dtype = property(lambda self: self.like.dtype)
    ndim = property(lambda self: self.like.ndim)
    size = property(lambda self: self.like.size)
    nbytes = property(lambda self: self.like.nbytes)
    T = property(lambda self: self._view(self.like.T))

    def __len__(self) -> int:
        return len(self.like)

    def is_c_contiguous(self) -> bool:
        return bool(self.like.flags.c_contiguous)

    def is_f_contiguous(self) -> bool:
        return bool(self.like.flags.f_contiguous)

    def transpose(self, axes: Any = None) -> DeviceArray:
        return self._view(self.like.transpose(axes))

    def reshape(self, *shape: Any, order: Any = "C") -> DeviceArray:
        """Raises NotImplementedError where that would copy, as Numba does."""
        return self._view(self.like.reshape(*shape, order=order))

    def ravel(self, order: Any = "C") -> DeviceArray:
        return self._view(self.like.reshape(-1, order=order))

    def view(self, dtype: Any) -> DeviceArray:
        return self._view(self.like.view(dtype))

    def _view(self, like: np.ndarray[Any, Any]) -> DeviceArray:
        low, high = np.lib.array_utils.byte_bounds(self.like)
        at = like.ctypes.data
        if like.size and not low <= at < high:
            raise NotImplementedError("this index or shape needs a copy, which device arrays do not make")
        return DeviceArray(self.memory, self.offset + at - self.like.ctypes.data, like)

    def __getitem__(self, key: Any) -> Any:
        """A view; an element of all dimensions is copied to this machine. Waits for that."""
        keys = key if isinstance(key, tuple) else (key,)
        found = self.like[keys if Ellipsis in keys else (*keys, Ellipsis)]
        view = self._view(found)
        return view.copy_to_host()[()] if found.ndim == 0 and Ellipsis not in keys else view

    def __setitem__(self, key: Any, value: Any) -> None:
        keys = key if isinstance(key, tuple) else (key,)
        view = self._view(self.like[keys if Ellipsis in keys else (*keys, Ellipsis)])
        given = value.copy_to_host() if isinstance(value, DeviceArray) else value
        view.copy_to_device(np.broadcast_to(np.asarray(given, view.dtype), view.shape))

    def _span(self) -> tuple[int, torch.Tensor]:
        """Bytes from the first one to the first element, and all bytes between the first and the last."""
        low, high = np.lib.array_utils.byte_bounds(self.like)
        before = self.like.ctypes.data - low
        return before, self.memory[self.offset - before : self.offset - before + high - low]

    def copy_to_host(self, ary: Any = None, stream: Any = 0) -> Any:
        """A copy on this machine, in ``ary`` if that is given. Waits."""
        before, span = self._span()
        found: Any = np.ndarray(self.shape, self.dtype, span.cpu().numpy().tobytes() if self.size else b"", before, self.strides)
        if ary is None:
            return found.copy()
        np.copyto(ary, found, casting="no")
        return ary

    def copy_to_device(self, ary: Any, stream: Any = 0) -> None:
        """Take the values of an array of the same shape and type, from this machine or the device."""
        given = np.asarray(_fetched(ary))
        if given.shape != self.shape or given.dtype != self.dtype:
            raise ValueError(f"incompatible array: {given.dtype} of shape {given.shape}, not {self.dtype} of shape {self.shape}")
        if not self.size:
            return
        before, span = self._span()
        dense = self.is_c_contiguous() or self.is_f_contiguous()
        raw = bytearray(span.numel()) if dense else bytearray(span.cpu().numpy().tobytes())
        np.ndarray(self.shape, self.dtype, raw, before, self.strides)[...] = given
        span.copy_(torch.frombuffer(raw, dtype=torch.uint8))

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.asarray(self.copy_to_host(), dtype)


def _fetched(value: Any) -> Any:
    return value.copy_to_host() if isinstance(value, DeviceArray) else value


def _layout(shape: Sequence[int], dtype: Any, strides: Sequence[int] | None, order: str) -> np.ndarray[Any, Any]:
    """An array of this layout whose memory nothing touches."""
    if strides is None:
        return _pinned_array(shape, dtype, None, order)
    steps = [(n - 1) * step for n, step in zip(shape, strides, strict=True)]
    empty = 0 in shape
    nbytes = 0 if empty else np.dtype(dtype).itemsize + sum(map(abs, steps))
    return np.ndarray(shape, dtype, np.empty(max(nbytes, 1), np.uint8), 0 if empty else -sum(step for step in steps if step < 0), strides)


def device_array(shape: Any, dtype: Any = np.float64, strides: Any = None, order: str = "C", stream: Any = 0) -> DeviceArray:
    """New memory on the device, of zeros. Raises QuotaExceeded."""
    like = _layout(shape if isinstance(shape, tuple) else (shape,), dtype, strides, order)
    low, high = np.lib.array_utils.byte_bounds(like)
    return DeviceArray(torch.zeros(max(high - low, 1), dtype=torch.uint8, device="cuda"), like.ctypes.data - low, like)


def device_array_like(ary: Any, stream: Any = 0) -> DeviceArray:
    """New memory for an array of the same shape and type."""
    like = as_cuda_array(ary).like if _is_tensor(ary) else getattr(ary, "like", ary)
    order = "F" if like.flags.f_contiguous and not like.flags.c_contiguous else "C"
    return device_array(like.shape, like.dtype, order=order)


def to_device(obj: Any, stream: Any = 0, copy: bool = True, to: Any = None) -> DeviceArray:
    """A copy on the device of an array of this machine, in ``to`` if that is given; an array or a tensor of the device as it is."""
    if _is_tensor(obj) or isinstance(obj, DeviceArray):
        return as_cuda_array(obj)
    host = np.asanyarray(obj)
    made = device_array_like(host) if to is None else to
    if copy:
        made.copy_to_device(host)
    return made


def as_cuda_array(obj: Any, sync: bool = True) -> DeviceArray:
    """An array in the memory of a tensor of the device. Raises TypeError for anything else, KernelArgumentError for types without a name in
    NumPy."""
    if isinstance(obj, DeviceArray):
        return obj
    if not _is_tensor(obj):
        raise TypeError("*obj* doesn't implement the cuda array interface.")
    if obj.requires_grad:
        raise RuntimeError(
            "Can't get __cuda_array_interface__ on Variable that requires grad. If gradients aren't required, use var.detach()."
        )
    if obj.dtype not in _DTYPES:
        raise KernelArgumentError(f"numba.cuda has no arrays of {obj.dtype}; convert the tensor, for example by .float()")
    itemsize, storage = obj.element_size(), obj.untyped_storage()
    memory = torch.empty(0, dtype=torch.uint8, device=obj.device).set_(storage, 0, (storage.nbytes(),), (1,))
    like = _layout(tuple(obj.shape), _DTYPES[obj.dtype], [step * itemsize for step in obj.stride()], "C")
    return DeviceArray(memory, offset_of(obj) * itemsize, like)


def _is_tensor(obj: Any) -> bool:
    return isinstance(obj, torch.Tensor) and is_ours(obj)


# -- launches


class _Kernels:
    """The compiled forms of one Python function, by the types of its arguments."""

    def __init__(self, dispatcher: Any, compile_ptx: Callable[..., tuple[str, Any]]) -> None:
        self._dispatcher, self._compile = dispatcher, compile_ptx
        self._functions: dict[Any, Function] = {}
        self.signatures: list[tuple[Any, ...]] = []

    def launch(self, grid: Sequence[int], block: Sequence[int], shared_bytes: int, args: Sequence[Any]) -> None:
        """Record one. Arrays of this machine are copied to the device and, after the launch, back, which waits.

        Raises CompileError, KernelArgumentError, KernelLaunchError, and what Numba raises for code it does not compile."""
        held = [as_cuda_array(arg) if _is_tensor(arg) else to_device(arg) if isinstance(arg, np.ndarray) else arg for arg in args]
        function, types = self._function(held)
        given = [value for kind, arg in zip(types, held, strict=True) for value in _flattened(kind, arg)]
        function(grid, block, given, shared_mem=shared_bytes)
        for arg, array in zip(args, held, strict=True):
            if isinstance(arg, np.ndarray) and arg.flags.writeable:
                array.copy_to_host(arg)

    def _function(self, args: Sequence[Any]) -> tuple[Function, tuple[Any, ...]]:
        typeof = self._dispatcher.typeof_pyval
        types = tuple(typeof(arg.like if isinstance(arg, DeviceArray) else arg) for arg in args)
        if self.signatures:
            types = types if types in self.signatures else self._declared(types)
        if types not in self._functions:
            options = {name: self._dispatcher.targetoptions.get(name, False) for name in ("fastmath", "lineinfo")}
            if self._dispatcher.targetoptions.get("link"):
                raise CompileError(f"{self._dispatcher.py_func.__name__}: files cannot be linked to a kernel for a remote device")
            name = self._dispatcher.py_func.__name__
            try:
                text, _ = self._compile(self._dispatcher.py_func, types, device=False, cc=CAPABILITY, **options)
            except OSError as error:  # NVVM is not there
                raise CompileError(f"{name}: Numba finds no compiler for CUDA; pip install 'numba-cuda[cu13]'") from error
            built = build_ptx(_plainly_named(text, name), file=f"{name}.ptx")
            (entry,) = built.module.entries
            self._functions[types] = Function(built, entry, Variables(built))
        return self._functions[types], types

    def _declared(self, types: tuple[Any, ...]) -> tuple[Any, ...]:
        """The declared signature for arguments that are not of its types exactly: numbers are converted."""
        for signature in self.signatures:
            if len(signature) == len(types) and all(
                (getattr(a, "dtype", None), getattr(a, "ndim", None)) == (getattr(b, "dtype", None), getattr(b, "ndim", None))
                for a, b in zip(signature, types, strict=True)
            ):
                return signature
        raise TypeError(f"No matching definition for argument type(s) {', '.join(map(str, types))}")


def _plainly_named(text: str, name: str) -> str:
    """PTX whose kernel is called as the Python function is, for messages. Numba's own names differ from run to run."""
    found = re.search(r"\.entry\s+([\w$]+)", text)
    taken = re.search(rf"\b{re.escape(name)}\b", text)
    return text if found is None or taken is not None or not name.isidentifier() else text.replace(found[1], name)


def _flattened(kind: Any, value: Any) -> Iterator[Any]:
    """The arguments of the kernel for one of its function: an array is two pointers that are not used, sizes, memory, shape and strides."""
    if isinstance(value, DeviceArray):
        if value.size and min(value.strides, default=0) < 0:
            raise KernelArgumentError("a kernel on a remote device takes no array that runs backwards; copy it with numba.cuda.to_device")
        yield from (0, 0, value.size, value.dtype.itemsize)
        yield value.memory[value.offset :] if value.size else None
        yield from (*value.shape, *value.strides)
    elif isinstance(value, tuple):
        for part, item in zip(kind, value, strict=True):
            yield from _flattened(part, item)
    elif isinstance(value, complex | np.complexfloating):
        yield from (value.real, value.imag)
    elif isinstance(value, bool | np.bool_):
        yield int(value)
    elif isinstance(value, np.float16):
        yield value.tobytes()
    elif isinstance(value, int | float | np.integer | np.floating):
        yield float(value) if "float" in str(kind) else int(value)
    else:
        raise KernelArgumentError(f"a kernel of numba.cuda on a remote device takes arrays and numbers, not {type(value).__name__}")


class _Launch:
    """``kernel[grid, block]``."""

    def __init__(self, kernels: _Kernels, grid: Sequence[int], block: Sequence[int], shared_bytes: int) -> None:
        self._kernels, self._grid, self._block, self._shared_bytes = kernels, grid, block, shared_bytes

    def __call__(self, *args: Any) -> None:
        self._kernels.launch(self._grid, self._block, self._shared_bytes, args)


class _ForAll(_Launch):
    """``kernel.forall(n)``: nothing where ``n`` is 0."""

    def __call__(self, *args: Any) -> None:
        if self._grid[0]:
            super().__call__(*args)


def patch(cuda: Any) -> None:
    """Put the device in the place of Numba's driver in module ``numba.cuda``, which has just been imported."""
    from numba.cuda.dispatcher import CUDADispatcher
    from numba.cuda.errors import normalize_kernel_dimensions

    Dispatcher: Any = CUDADispatcher

    def kernels(dispatcher: Any) -> _Kernels:
        found = dispatcher.__dict__.get("_wooly_kernels")
        if found is None:
            found = dispatcher._wooly_kernels = _Kernels(dispatcher, cuda.compile_ptx)
        return found  # type: ignore[no-any-return]  # an attribute of ours

    def configure(self: Any, griddim: Any, blockdim: Any, stream: Any = 0, sharedmem: int = 0) -> _Launch:
        grid, block = normalize_kernel_dimensions(griddim, blockdim)
        return _Launch(kernels(self), grid, block, sharedmem)

    def forall(self: Any, ntasks: int, tpb: int = 0, stream: Any = 0, sharedmem: int = 0) -> _Launch:
        if ntasks < 0:
            raise ValueError(f"Can't create ForAll with negative task count: {ntasks}")
        block = tpb or _BLOCK
        return _ForAll(kernels(self), (-(-ntasks // block), 1, 1), (block, 1, 1), sharedmem)

    def compile(self: Any, sig: Any) -> None:
        types = tuple(sig if isinstance(sig, tuple | list) else sig.args)
        kernels(self).signatures.append(types)
        self.overloads[types] = kernels(self)  # which Numba counts

    for name, value in {"configure": configure, "forall": forall, "compile": compile, "specialize": lambda self, *args: self}.items():
        setattr(Dispatcher, name, value)
    for name, value in _api().items():
        for module in (cuda, cuda.api):
            if hasattr(module, name):
                setattr(module, name, value)


# -- the functions of numba.cuda


class _Stream:
    """The only order there is: that of the calls."""

    def synchronize(self) -> None:
        """Wait for all that was recorded."""
        torch.cuda.synchronize()

    @contextlib.contextmanager
    def auto_synchronize(self) -> Iterator[_Stream]:
        """Wait at the end of the block."""
        yield self
        self.synchronize()


class _Event:
    def __init__(self, timing: bool = True) -> None:
        made: Any = torch.cuda.Event
        self._event = made(enable_timing=timing)

    def record(self, stream: Any = 0) -> None:
        self._event.record()

    def query(self) -> bool:
        return bool(self._event.query())

    def synchronize(self) -> None:
        self._event.synchronize()

    wait = record

    def elapsed_time(self, evtend: _Event) -> float:
        """In milliseconds."""
        return float(self._event.elapsed_time(evtend._event))


def _device() -> Any:
    found = torch.cuda.get_device_properties()
    return SimpleNamespace(
        id=torch.cuda.current_device(), name=found.name, compute_capability=CAPABILITY, MULTIPROCESSOR_COUNT=found.multi_processor_count,
        WARP_SIZE=WARP, MAX_THREADS_PER_BLOCK=1024, MAX_BLOCK_DIM_X=1024, MAX_GRID_DIM_X=2**31 - 1, MAX_SHARED_MEMORY_PER_BLOCK=48 << 10,
    )  # fmt: skip


def _select_device(device_id: int) -> Any:
    torch.cuda.set_device(device_id)
    return _context()


def _context(devnum: int | None = None) -> Any:
    return SimpleNamespace(
        device=_device(), synchronize=torch.cuda.synchronize, reset=torch.cuda.synchronize,
        get_memory_info=lambda: SimpleNamespace(**dict(zip(("free", "total"), torch.cuda.mem_get_info(), strict=True))),
    )  # fmt: skip


@contextlib.contextmanager
def _nothing(*args: Any, **kwargs: Any) -> Iterator[None]:
    """A block without effect."""
    yield


def _refused(*args: Any, **kwargs: Any) -> Any:
    raise KernelArgumentError("a remote device has no memory in common with this machine; use numba.cuda.to_device")


def _pinned_array(shape: Any, dtype: Any = np.float64, strides: Any = None, order: str = "C") -> np.ndarray[Any, Any]:
    return np.empty(shape, dtype, order)  # type: ignore[call-overload, no-any-return]  # any order


def _api() -> dict[str, Any]:
    streams = dict.fromkeys(("stream", "default_stream", "legacy_default_stream", "per_thread_default_stream"), _Stream)
    refused = dict.fromkeys(("managed_array", "mapped_array", "mapped_array_like", "mapped", "open_ipc_array"), _refused)
    return {
        **streams,
        **refused,
        "as_cuda_array": as_cuda_array,
        "close": torch.cuda.synchronize,
        "current_context": _context,
        "defer_cleanup": _nothing,
        "device_array": device_array,
        "device_array_like": device_array_like,
        "event": _Event,
        "event_elapsed_time": _Event.elapsed_time,
        "external_stream": lambda ptr: _Stream(),
        "get_current_device": _device,
        "is_available": torch.cuda.is_available,
        "is_cuda_array": lambda obj: isinstance(obj, DeviceArray) or _is_tensor(obj),
        "pinned": _nothing,
        "pinned_array": _pinned_array,
        "pinned_array_like": np.empty_like,
        "select_device": _select_device,
        "synchronize": torch.cuda.synchronize,
        "to_device": to_device,
    }
