"""torch.cuda: availability, properties, random states, the few of its Python functions that cannot stay torch's own, and
``torch.cuda._compile_kernel``, torch's own way to a CUDA C++ kernel. torch.accelerator and the module of our backend's own name
(``torch.wooly``) give the answers of torch.cuda.
"""

from __future__ import annotations

import functools
import uuid
from collections import OrderedDict
from collections.abc import Callable, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any, Final, NoReturn

import torch

from wooly.device.backend import BACKEND
from wooly.device.face import bindings, memory
from wooly.device.face.api import Face, put, put_all, wrapping
from wooly.device.face.devices import count, current, index_of, no_devices, number_of

__all__ = ["NAME_SUFFIX", "DeviceProperties", "backend_module", "patch"]

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
        self.clock_rate, self.memory_clock_rate, self.memory_bus_width = 1_410_000, 1_215_000, 5120  # kHz, kHz, bits
        self.gcnArchName = name
        self.pci_bus_id = self.pci_device_id = self.pci_domain_id = 0

    def __repr__(self) -> str:
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory >> 20}MB, multi_processor_count={self.multi_processor_count}, uuid={self.uuid})"
        )


def _properties(face: Face, index: int) -> DeviceProperties:
    info = face.apis[index_of(index)].info()
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
        face.apis[index_of(None)].synchronize()
        return success

    return _CudaRuntime(
        cudaMemGetInfo=lambda device=0: memory.mem_get_info(face, index_of(device)),
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
        face.api.check_process()
        face.apis[index_of(device)].synchronize()

    def mem_get_info(device: Any = None) -> tuple[int, int]:
        return memory.mem_get_info(face, index_of(device))

    def list_gpu_processes(device: Any = None) -> str:
        return f"GPU:{number_of(device)}\nthe processes of a remote device are not shown; `wooly tasks` lists the tasks"

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
        "device_memory_used": lambda device=None: memory.stats(face, index_of(device))["allocated_bytes"]["all"]["current"],
        "current_device": current,
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

    emit: Any = torch.autograd.profiler.emit_nvtx  # torch's own asks C++ for its NVTX profiler, which a CPU build lacks
    put(emit, "__enter__", lambda self: self)
    put(emit, "__exit__", lambda self, kind, value, trace: False)


def patch_accelerator(face: Face) -> None:
    """Point torch.accelerator at torch.cuda (which has its face on)."""
    cuda: Any = torch.cuda
    module: Any = torch.accelerator
    put(torch._C, "_get_accelerator", lambda check=None: torch.device("cuda"))  # process groups and FSDP choose their device by it

    def current_accelerator(check_available: bool = False) -> torch.device:
        return torch.device("cuda")

    def memory_stats(device_index: Any = None, /) -> OrderedDict[str, Any]:
        return OrderedDict(cuda.memory_stats(device_index))

    def get_device_capability(device: Any = None, /) -> dict[str, Any]:
        cuda._get_device_index(device, optional=True)
        return {"supported_dtypes": {torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.bool}}

    values: dict[str, Any] = {
        "current_accelerator": current_accelerator,
        "current_device_index": cuda.current_device,
        "current_device_idx": cuda.current_device,
        "set_device_index": cuda.set_device,
        "set_device_idx": cuda.set_device,
        "device_index": cuda.device,
        "get_device_capability": get_device_capability,
        "memory_stats": memory_stats,
        "empty_host_cache": lambda: None,
        "get_memory_info": cuda.mem_get_info,
    }
    for name in (
        "current_stream",
        "set_stream",
        "synchronize",
        "empty_cache",
        "memory_allocated",
        "max_memory_allocated",
        "memory_reserved",
        "max_memory_reserved",
        "reset_peak_memory_stats",
        "reset_accumulated_memory_stats",
    ):
        values[name] = getattr(cuda, name)
    put_all((module, module.memory), {name: value if isinstance(value, type) else _another(value) for name, value in values.items()})


def _another(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same as another object: dynamo has a table of functions, and torch.cuda's stand in it already."""

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return called


class _BackendModule(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)  # a module's own: torch.cuda's file and spec are not ours
        return getattr(torch.cuda, name)


def backend_module() -> ModuleType:
    """What to register under the backend's name."""
    module = _BackendModule(f"torch.{BACKEND}", __doc__)
    module.get_amp_supported_dtype = lambda: [torch.float16, torch.bfloat16]  # type: ignore[attr-defined]  # autocast asks for it
    return module


class _CompiledKernel:
    """Called as torch's is: ``kernel(grid, block, args, shared_mem, stream)``; launches are in order with the device's other work."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw

    def __call__(
        self,
        grid: Sequence[int] = (1, 1, 1),
        block: Sequence[int] = (1, 1, 1),
        args: Sequence[Any] | None = None,
        shared_mem: int = 0,
        stream: Any = None,
    ) -> None:
        self._raw(grid, block, args or (), shared_mem=shared_mem)

    def set_shared_memory_config(self, shared_mem_bytes: int) -> None:
        """Nothing needs to be configured; too much is an error of the launch."""


def patch_compiler(face: Face) -> None:
    original = torch.cuda._compile_kernel

    @wrapping(original)
    def compile_kernel(
        kernel_source: str,
        kernel_name: str,
        compute_capability: str | None = None,
        cuda_include_dirs: Sequence[str] | None = None,
        nvcc_options: Sequence[str] | None = None,
    ) -> _CompiledKernel:
        from wooly.kernels.raw import RawKernel  # the compiler's library is looked for when it is first needed

        options = [f"-arch=compute_{compute_capability}"] if compute_capability else []
        options += [f"-I{folder}" for folder in cuda_include_dirs or ()]
        raw = RawKernel(kernel_source, kernel_name, (*options, *(nvcc_options or ())))
        raw.compile()
        return _CompiledKernel(raw)

    put(torch.cuda, "_compile_kernel", compile_kernel)
