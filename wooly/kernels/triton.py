"""Triton on the device: Triton compiles a kernel to PTX on this machine, without a GPU, and the launch is recorded like one of a
``RawModule``.

Triton asks a *driver* for the target, for the launcher and for the loader of binaries, and a *backend* for the stages of compilation
(triton/backends/driver.py and compiler.py). Ours are NVIDIA's for compute capability 8.0 that end with PTX; they take NVIDIA's place in the
table of backends, because Triton accepts one active driver only. Capability 8.0 is the last one whose matrix instructions are warp-wide
(``mma.sync``); later ones have instructions of four warps and asynchronous copies by descriptors, which are not portable.
"""

from __future__ import annotations

import struct
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import torch

from wis.kernel.limits import KERNEL_LIMITS
from wis.kernel.model import WARP, Math
from wis.kernel.module import ArgKind
from wooly.device.backend import is_ours, offset_of
from wooly.errors import CompileError
from wooly.kernels.build import build_ptx
from wooly.kernels.raw import Function, Variables

__all__ = ["TritonLauncher", "TritonUtilities", "replace_nvidia"]

CAPABILITY: Final = 80
TIMED: Final = 3
"""Launches by which an autotuner judges a form of a kernel, after one that compiles it."""


class TritonUtilities:
    """What Triton calls ``driver.utils``: device properties and the loader of binaries. ``math``: how kernels compute."""

    def __init__(self, math: Math = Math.STRICT) -> None:
        self._math = math

    def get_device_properties(self, device: int) -> dict[str, int]:
        """Of the device, by Triton's names. Sizes in bytes, rates in kHz, the width of the bus in bits.

        Shared memory is what any node accepts. A node does not report its rates and bus: an A100's stand here, the GPU of this capability,
        for models of speed that choose among forms of a kernel.
        """
        found = torch.cuda.get_device_properties(device)
        return {
            "max_shared_mem": KERNEL_LIMITS.dynamic_shared_bytes_max,
            "max_num_regs": 65_536,
            "multiprocessor_count": found.multi_processor_count,
            "warpSize": WARP,
            "sm_clock_rate": 1_410_000,
            "mem_clock_rate": 1_215_000,
            "mem_bus_width": 5_120,
        }

    def load_binary(self, name: str, ptx: bytes, shared_bytes: int, device: int) -> tuple[Any, Any, int, int, int]:
        """Module, kernel, registers and spilled registers of a thread (not known here: 0), most threads of a block. Raises CompileError."""
        text = ptx.decode()
        if "vprintf" in text:
            warnings.warn(f"{name}: tl.device_print prints nothing on a remote device; store values into a tensor", stacklevel=2)
        built = build_ptx(text, file=f"{name}.ptx", math=self._math, drops_prints=True)
        function = Function(built, built.entry(name), Variables(built))
        return built, function, 0, 0, function.launcher.verified.kernel.threads_max

    def unload_module(self, module: Any) -> None:
        """Nothing: the node forgets kernels that are not used."""

    def set_printf_fifo_size(self, nbytes: int) -> None:
        """Nothing: kernels do not print."""


class TritonLauncher:
    """Launches of one compiled kernel.

    ``src`` has the types of the arguments by name: ``*fp32`` for a pointer, ``i32``, ``constexpr`` for what is part of the code, a tuple of
    these, or ``tensordesc<...>``. ``metadata``: what compilation decided. Raises CompileError for a cooperative grid.
    """

    def __init__(self, src: Any, metadata: Any) -> None:
        if getattr(metadata, "launch_cooperative_grid", False):
            raise CompileError(f"{metadata.name}: grid-wide synchronisation is not portable; split the kernel into launches")
        self._types: Final = tuple(src.signature.values())
        self._threads: Final = (WARP * metadata.num_warps, 1, 1)
        self._shared_bytes: Final[int] = metadata.shared
        self._taken = 0  # arguments of the kernel; known at the first launch
        self._scratch: Final = tuple(
            (getattr(metadata, f"{kind}_scratch_size", 0) or 0, getattr(metadata, f"{kind}_scratch_align", 1) or 1)
            for kind in ("global", "profile")
        )

    def __call__(self, grid_x: int, grid_y: int, grid_z: int, stream: int, function: Function, *rest: Any) -> None:
        """Record one launch. ``rest``: packed metadata, the hooks' argument, the hooks before and after a launch, and the arguments of the
        kernel. Raises KernelArgumentError, KernelLaunchError."""
        _, launch_metadata, enter_hook, exit_hook, *args = rest
        blocks = grid_x * grid_y * grid_z
        if enter_hook is not None:
            enter_hook(launch_metadata)
        if blocks > 0:  # an empty grid runs nothing
            given = list(_flattened(self._types, args))
            given += [_scratch(blocks * size, align, stream) if size else None for size, align in self._scratch]
            if not self._taken:  # versions differ in how many pointers to scratch memory a kernel has
                self._taken = sum(1 for argument in function.entry.arguments if argument.kind != ArgKind.VARIABLE)
            function((grid_x, grid_y, grid_z), self._threads, given[: self._taken], shared_mem=self._shared_bytes)
        if exit_hook is not None:
            exit_hook(launch_metadata)


def _flattened(types: Sequence[Any], args: Sequence[Any]) -> Iterator[Any]:
    """The arguments that the kernel takes, in order."""
    for kind, value in zip(types, args, strict=True):
        if isinstance(kind, tuple):
            yield from _flattened(kind, value)
        elif kind == "constexpr":
            continue
        elif kind.startswith("tensordesc"):
            round_tf32 = getattr(value, "round_f32_to_tf32", None)
            yield from (_memory(value.base), *value.shape, *value.strides, value.padding == "nan")
            if round_tf32 is not None:
                yield round_tf32
            yield from (*value.shape, *value.strides)
        elif kind.startswith("*"):
            yield _memory(value)
        elif kind == "fp16":
            yield struct.pack("<e", value)
        elif kind == "bf16":  # Triton's own launcher truncates
            yield np.float32(value).tobytes()[2:]
        else:
            yield value


def _memory(value: Any) -> Any:
    """The tensor of a pointer; ``triton.reinterpret`` wraps one to give it another type."""
    base = getattr(value, "base", None)
    return value if isinstance(value, torch.Tensor) or not isinstance(base, torch.Tensor) else base


def _benchmark(launch: Callable[[], Any], *, quantiles: Sequence[float] | None = None, **unused: Any) -> Any:
    """How long a kernel takes, in ms: quantiles of some launches, or their median. Triton's own benchmark launches for an eighth of a
    second, for which the user would pay. Raises KernelError."""
    Event: Any = torch.cuda.Event
    times_ms = []
    launch()
    for _ in range(TIMED):
        start, end = (Event(enable_timing=True) for _ in range(2))
        start.record()
        launch()
        end.record()
        torch.cuda.synchronize()
        times_ms.append(start.elapsed_time(end))
    found = torch.tensor(times_ms, dtype=torch.float64).quantile(torch.tensor(quantiles or [0.5], dtype=torch.float64)).tolist()
    return found if quantiles else found[0]


def _scratch(nbytes: int, align: int, stream: int) -> Any:
    from triton.runtime import _allocation

    return _allocation._allocator.get()(nbytes, align, stream)


def _attribute(value: Any) -> str:
    """Triton's letter for a pointer to a multiple of 16 bytes. Storages begin at one."""
    tensor = _memory(value)
    if isinstance(tensor, torch.Tensor) and is_ours(tensor):
        return "D" if offset_of(tensor) * tensor.element_size() % 16 == 0 else ""
    return "D" if tensor.data_ptr() % 16 == 0 else ""


def replace_nvidia(backends: Any, math: Math) -> None:
    """Put our driver and backend in the place of NVIDIA's in module ``triton.backends``, which has just been imported."""
    if "nvidia" not in backends.backends:
        return
    from triton.backends.compiler import GPUTarget
    from triton.backends.driver import GPUDriver

    theirs = backends.backends["nvidia"]
    Theirs: Any = theirs.compiler

    class WoolyBackend(Theirs):  # type: ignore[misc]  # Triton's class, untyped
        """NVIDIA's stages, without the last: what is loaded is PTX."""

        supports_native_tensor_specialization = False

        def hash(self) -> str:
            return f"wooly-{super().hash()}"  # what an NVIDIA GPU's process of this machine cached ends with machine code

        def make_cubin(self, src: str, metadata: Any, *rest: Any) -> bytes:
            if "clusterlaunchcontrol" in src or metadata.get("num_ctas", 1) != 1:
                raise CompileError(f"{metadata.get('name')}: clusters of thread blocks are not portable; use num_ctas=1")
            return src.encode()

        @staticmethod
        def get_tensor_specialization(arg: Any, **options: Any) -> str:
            return _attribute(arg) if options.get("align", False) else ""

        @staticmethod
        def get_arg_specialization(arg: Any, ty: str, **options: Any) -> Any:
            if ty == "tensor":
                return _attribute(arg) if options.get("align", False) else ""
            return Theirs.get_arg_specialization(arg, ty, **options)

    class WoolyDriver(GPUDriver):  # type: ignore[misc]  # Triton's class, untyped
        """The device as Triton sees it."""

        def __init__(self) -> None:
            super().__init__()
            self.utils = TritonUtilities(math)
            self.launcher_cls = TritonLauncher

        @staticmethod
        def is_active() -> bool:
            return True

        def get_current_target(self) -> Any:
            return GPUTarget("cuda", CAPABILITY, WARP)

        def get_active_torch_device(self) -> torch.device:
            return torch.device("cuda", self.get_current_device())

        def get_device_interface(self) -> Any:
            return torch.cuda

        def map_python_to_cpp_type(self, ty: str) -> str:
            mapped: str = theirs.driver.map_python_to_cpp_type(self, ty)
            return mapped

        def get_benchmarker(self) -> Any:
            return _benchmark

        def get_empty_cache_for_benchmark(self) -> torch.Tensor:
            return torch.empty(256, dtype=torch.int, device="cuda")  # there is no cache of the device's to clear from here

        def clear_cache(self, cache: torch.Tensor) -> None:
            cache.zero_()

    backends.backends["nvidia"] = backends.Backend(compiler=WoolyBackend, driver=WoolyDriver)
