"""The C functions below torch.cuda (``torch._C._cuda_*``), answered for the remote device; the rest refuse. Those below torch.cuda.comm,
which nn.DataParallel calls.

On a CPU build none of these names exist; on a CUDA build the real ones would answer "no driver".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn

import torch
from torch import Tensor
from torch.nn.parallel import _functions

from wooly.device.face import memory
from wooly.device.face.api import Face, put
from wooly.device.face.devices import count, current, index_of, make_current, no_devices, number_of, ours, shown
from wooly.errors import ForkError

__all__ = ["ARCHITECTURE", "CUDA_VERSION", "in_bad_fork", "patch"]

ARCHITECTURE: Final = "sm_80"
"""The architecture reported to programs that choose by it: bfloat16 and TF32, nothing that needs newer hardware."""
CUDA_VERSION: Final = "12.8"
"""What a CPU build of torch says it was built with; a CUDA build keeps its own."""


def _exchange(index: int) -> int:
    """Make ``index`` current (nothing for a negative one); returns the one before."""
    before = current()
    if index < 0:
        return -1
    make_current(number_of(index))
    return before


def in_bad_fork(face: Face) -> bool:
    """True in a forked child of a process that had opened the device."""
    try:
        face.api.check_process()
    except ForkError:
        return True
    return False


def _nothing(*args: Any) -> None:
    """What does not exist on the remote device and needs no doing."""


def _refusal(name: str) -> Callable[..., NoReturn]:
    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(f"torch._C.{name} is not available: the device is remote, and this machine has no CUDA driver")

    refuse.__name__ = name
    return refuse


def patch(face: Face) -> None:
    """Put our functions in place, and a refusal on every other name that a CUDA build has."""
    bindings = {**_device(face), **_memory(face), **_settings()}
    for name in {*dir(torch._C), *_CALLED_BY_TORCH}:
        if name.startswith("_cuda_") and callable(getattr(torch._C, name, _nothing)) and name not in bindings and name not in _KEPT:
            put(torch._C, name, _refusal(name))
    for name in ("_cuda_CUDAAllocator", "_cuda_CUDAAllocator_AllocatorState"):
        if not hasattr(torch._C, name):
            put(torch._C, name, type(name, (), {}))  # imported by name, never used without a driver
    if not hasattr(torch._C, "_set_cached_tensors_enabled"):
        put(torch._C, "_set_cached_tensors_enabled", _nothing)
    for name, function in bindings.items():
        put(torch._C, name, function)


# What torch.cuda calls and a CPU build lacks: a refusal says more than a missing attribute.
_CALLED_BY_TORCH: Final = tuple(
    """
    _cuda_getCurrentBlasHandle _cuda_getCurrentSolverHandle _cuda_cudaCachingAllocator_raw_alloc
    _cuda_cudaCachingAllocator_raw_delete _cuda_cudaHostAllocator _cuda_getAllocator _cuda_changeCurrentAllocator _cuda_customAllocator
    _cuda_allocationTraceback _cuda_setMemoryMetadata _cuda_getMemoryMetadata _cuda_getStreamFromExternal
    _cuda_tunableop_enable _cuda_tunableop_tuning_enable
    """.split()
)

# Classes, and functions about the build rather than about a driver.
_KEPT: Final = frozenset(
    {"_cuda_CUDAAllocator", "_cuda_CUDAAllocator_AllocatorState", "_cuda_getCompiledVersion", "_cuda_getCurrentRawStream"}
)


def _device(face: Face) -> dict[str, Callable[..., Any]]:
    def init() -> None:
        face.api.check_process()
        if not count():
            raise no_devices()

    def synchronize() -> None:
        face.api.check_process()
        face.apis[index_of(None)].synchronize()

    return {
        "_cuda_init": init,
        "_cuda_isInBadFork": lambda: in_bad_fork(face),
        "_cuda_getDeviceCount": count,
        "_cuda_getDevice": current,
        "_cuda_setDevice": lambda index: make_current(number_of(index)),
        "_cuda_exchangeDevice": _exchange,
        "_cuda_maybeExchangeDevice": lambda index: _exchange(index),  # another object: dynamo has a table of functions
        "_cuda_synchronize": synchronize,
        "_cuda_canDeviceAccessPeer": lambda device, peer: False,
        "_cuda_getArchFlags": lambda: ARCHITECTURE,
        "_cuda_isCurrentStreamCapturing": lambda: face.api.capturing,
        "_cuda_jiterator_compile_and_launch_kernel": _jiterator,
        "_host_emptyCache": _nothing,
        "_cuda_hasPrimaryContext": lambda device: device == 0,
    }


def _jiterator(*args: Any) -> Any:
    from wooly.kernels.jiterator import compile_and_launch  # the compiler's library is looked for when it is first needed

    return compile_and_launch(*args)


def _memory(face: Face) -> dict[str, Callable[..., Any]]:
    return {
        "_cuda_memoryStats": lambda device: memory.stats(face, index_of(device)),
        "_cuda_resetPeakMemoryStats": lambda device: memory.reset_peak(face, index_of(device)),
        "_cuda_resetAccumulatedMemoryStats": lambda device: memory.reset_accumulated(index_of(device)),
        "_cuda_hostMemoryStats": dict,
        "_cuda_resetPeakHostMemoryStats": _nothing,
        "_cuda_resetAccumulatedHostMemoryStats": _nothing,
        "_cuda_emptyCache": _nothing,  # freed buffers go back at once: there is no cache
        "_cuda_ipc_collect": _nothing,
        "_cuda_getAllocatorBackend": lambda: "native",
        **memory.bindings(),
        "_cuda_setMemoryFraction": lambda fraction, device: memory.set_fraction(face, fraction, index_of(device)),
        "_cuda_getMemoryFraction": lambda device: memory.fraction(index_of(device)),
    }


_NOTHING_TO_DO: Final = tuple(
    """
    clearCublasWorkspaces setCublasWorkspaceSize resetCublasWorkspaceSize setCublasLtWorkspaceSize resetCublasLtWorkspaceSize
    cudaCachingAllocator_enable sleep
    """.split()
)
"""What libraries call around a training step to tune or tidy a local driver, or to keep it busy: the remote device has no workspaces and no
cache, and does not wait for nothing."""

_CONSTANT: Final[dict[str, Any]] = {
    "getCublasWorkspaceSize": 0,
    "getCublasLtWorkspaceSize": 0,
    "get_conv_benchmark_empty_cache": False,
    "cudaCachingAllocator_is_enabled": True,
    "memoryMetadataSupported": False,
    "tunableop_is_enabled": False,
    "tunableop_tuning_is_enabled": False,
    "tunableop_get_max_tuning_duration": 30,
    "tunableop_get_max_tuning_iterations": 100,
    "record_untuned_is_enabled": False,
}
"""Questions whose answer never changes: switches that cannot be turned on here are off."""


def _settings() -> dict[str, Callable[..., Any]]:
    """Switches that programs set and read back."""
    c: Any = torch._C
    values: dict[str, Any] = {"_cuda_%s_sync_debug_mode": 0, "_cuda_%s_cudnn_benchmark_limit": 10}
    values |= {f"_%s_{name}_preferred_backend": getattr(c, f"_get_{name}_preferred_backend")() for name in ("linalg", "blas")}

    def setter(name: str) -> Callable[[Any], None]:
        return lambda value: values.__setitem__(name, value)

    def getter(name: str) -> Callable[[], Any]:
        return lambda: values[name]

    made: dict[str, Callable[..., Any]] = {f"_cuda_{name}": _nothing for name in _NOTHING_TO_DO}
    made |= {f"_cuda_{name}": lambda value=value: value for name, value in _CONSTANT.items()}
    for name in values:
        made[name % "set"] = setter(name)
        made[name % "get"] = getter(name)
    return made


def _to(tensor: Tensor, index: Any) -> Tensor:
    return tensor.to(ours(index_of(index)))


def _scatter(
    tensor: Tensor, devices: Sequence[int], chunk_sizes: Sequence[int] | None, dim: int, streams: Any = None
) -> tuple[Tensor, ...]:
    chunks = tensor.split_with_sizes(list(chunk_sizes), dim) if chunk_sizes else tensor.chunk(len(devices), dim)
    return tuple(_to(chunk, device) for chunk, device in zip(chunks, devices, strict=False))


def _gather(tensors: Sequence[Tensor], dim: int, destination: int | None) -> Tensor:
    return torch.cat([tensor.cpu() if destination == -1 else _to(tensor, destination) for tensor in tensors], dim)


def _broadcast(tensor: Tensor, devices: Sequence[int]) -> list[Tensor]:
    return [_to(tensor, device) for device in devices]


def _broadcast_coalesced(tensors: Sequence[Tensor], devices: Sequence[int], buffer_size: int) -> list[list[Tensor]]:
    return [[_to(tensor, device) for tensor in tensors] for device in devices]


def _broadcast_out(tensor: Tensor, outs: Sequence[Tensor]) -> list[Tensor]:
    return [out.copy_(tensor) for out in outs]


def _scatter_out(tensor: Tensor, outs: Sequence[Tensor], dim: int, streams: Any = None) -> list[Tensor]:
    chunks = tensor.split_with_sizes([out.size(dim) for out in outs], dim)
    return [out.copy_(chunk) for out, chunk in zip(outs, chunks, strict=True)]


def _gather_out(tensors: Sequence[Tensor], out: Tensor, dim: int) -> Tensor:
    return out.copy_(torch.cat([tensor.to(out.device) for tensor in tensors], dim))


def patch_comm(face: Face) -> None:
    """Put them in place."""
    put(torch.cuda.nccl, "is_available", lambda tensors: False)  # sums of several devices are made by additions
    get_stream: Any = _functions._get_stream
    put(_functions, "_get_stream", lambda device: get_stream(shown(device)))  # torch.device(0), as torch's code writes it, is ours
    for function in (_scatter, _gather, _broadcast, _broadcast_coalesced, _broadcast_out, _scatter_out, _gather_out):
        put(torch._C, function.__name__, function)
