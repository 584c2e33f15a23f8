"""torch.cuda: availability, properties, random states, and the few of its Python functions that cannot stay torch's own."""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import Any, Final, NoReturn

import torch

from wooly.device.face import bindings, memory
from wooly.device.face.api import Face, put, put_all
from wooly.device.face.devices import count, index_of, no_devices

__all__ = ["NAME_SUFFIX", "DeviceProperties", "patch"]

NAME_SUFFIX: Final = " (WOOLY)"
"""The end of every device name we report."""

_CAPABILITY: Final = (8, 0)


class DeviceProperties:
    """What torch.cuda.get_device_properties answers. Sizes in bytes; figures that a remote device does not report are those of its
    class."""

    def __init__(self, name: str, total_memory: int, cores: int, identity: str) -> None:
        self.name = name
        self.major, self.minor = _CAPABILITY
        self.total_memory = total_memory
        self.multi_processor_count = cores
        self.uuid = uuid.uuid5(uuid.NAMESPACE_URL, identity)
        self.is_integrated = 0
        self.is_multi_gpu_board = 0
        self.max_threads_per_multi_processor = 2048
        self.max_threads_per_block = 1024
        self.warp_size = 32
        self.regs_per_multiprocessor = 65536
        self.shared_memory_per_block = 49152
        self.shared_memory_per_block_optin = 166912
        self.shared_memory_per_multiprocessor = 167936
        self.L2_cache_size = 40 << 20
        self.gcnArchName = name
        self.pci_bus_id = self.pci_device_id = self.pci_domain_id = 0

    def __repr__(self) -> str:
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory >> 20}MB, multi_processor_count={self.multi_processor_count}, uuid={self.uuid})"
        )


def _properties(face: Face, index: int) -> DeviceProperties:
    info = face.api.info()
    index_of(index)
    device = memory.device_of(info)
    if device is None or info.node is None:
        raise RuntimeError("the node did not say which device it gave this session; compare versions with `wooly ping`")
    return DeviceProperties(
        device.name + NAME_SUFFIX, info.quota_bytes or device.vram_bytes, device.cores, f"wooly:{info.node.node}:{device.index}"
    )


class _CudaRuntime(SimpleNamespace):
    """torch.cuda.cudart(): the few runtime functions that programs call through it."""


def _runtime(face: Face) -> _CudaRuntime:
    def refuse(*args: Any) -> NoReturn:
        raise NotImplementedError("this function of the CUDA runtime is not available: the device is remote")

    success = 0

    def device_synchronize() -> int:
        face.api.synchronize()
        return success

    return _CudaRuntime(
        cudaMemGetInfo=lambda device=0: memory.mem_get_info(face),
        cudaProfilerStart=lambda: success,
        cudaProfilerStop=lambda: success,
        cudaDeviceSynchronize=device_synchronize,
        cudaGetErrorString=lambda code: "no error" if int(code) == success else f"CUDA error {int(code)}",
        cudaError=SimpleNamespace(success=success),
        cudaHostRegister=refuse,
        cudaHostUnregister=refuse,
    )


def _not_measured(name: str) -> Any:
    def refuse(device: Any = None) -> NoReturn:
        raise NotImplementedError(f"torch.cuda.{name}() is not known for a remote device; `wooly nodes` shows how busy each GPU is")

    refuse.__name__ = name
    return refuse


def patch(face: Face) -> None:
    """Make torch.cuda work on top of ``bindings``."""
    runtime = _runtime(face)

    def lazy_init() -> None:
        # C++ factories call this before every first use; nothing is opened until something is really made.
        face.api.check_process()
        if not count():
            raise no_devices()
        torch.cuda._initialized = True  # checkpoints keep the generator's state only of a device that is in use

    def synchronize(device: Any = None) -> None:
        index_of(device)
        face.api.check_process()
        face.api.synchronize()

    def mem_get_info(device: Any = None) -> tuple[int, int]:
        index_of(device)
        return memory.mem_get_info(face)

    def list_gpu_processes(device: Any = None) -> str:
        return f"GPU:{index_of(device)}\nthe processes of a remote device are not shown; `wooly tasks` lists the tasks"

    owners = (torch.cuda, torch.cuda.memory, torch.cuda.random, torch.cuda._utils)
    values: dict[str, Any] = {
        "_lazy_init": lazy_init,
        "init": lazy_init,
        "is_initialized": lambda: not bindings.in_bad_fork(face),
        "_is_in_bad_fork": lambda: bindings.in_bad_fork(face),
        "_exchange_device": torch._C._cuda_exchangeDevice,
        "_maybe_exchange_device": torch._C._cuda_maybeExchangeDevice,
        "_device_count_nvml": lambda: -1,  # counts this machine's GPUs; the caller then asks the C function
        "_cudart": runtime,
        "cudart": lambda: runtime,
        "synchronize": synchronize,
        "mem_get_info": mem_get_info,
        "list_gpu_processes": list_gpu_processes,
        "device_memory_used": lambda device=None: memory.stats()["allocated_bytes"]["all"]["current"],
        "current_device": bindings.current_device,
        **{name: _not_measured(name) for name in ("utilization", "memory_usage", "temperature", "power_draw", "clock_rate")},
    }
    put_all(owners, values)
    put(torch.cuda, "_get_device_properties", lambda index: _properties(face, index))
    put(torch.cuda, "_CudaDeviceProperties", DeviceProperties)
    if torch.version.cuda is None:
        put(torch.version, "cuda", bindings.CUDA_VERSION)
    _nvtx()


def _nvtx() -> None:
    """Profiler ranges: accepted and dropped, because the tool that would show them watches a local GPU."""
    from torch.cuda import nvtx

    depth = 0

    def range_push(msg: str) -> int:
        nonlocal depth
        depth += 1
        return depth - 1

    def range_pop() -> int:
        nonlocal depth
        depth = max(depth - 1, 0)
        return depth

    values = {
        "range_push": range_push,
        "range_pop": range_pop,
        "range_start": lambda msg: 0,
        "range_end": lambda range_id: None,
        "mark": lambda msg: None,
    }
    put_all((nvtx,), values)
