"""C++ extensions with CUDA sources, built by ``torch.utils.cpp_extension.load`` and ``load_inline``, or by a package's setup.py with
``CUDAExtension``: the host's part of each source is compiled by the C++ compiler of this machine and runs here; its launches and copies
come to the functions of this module, which record them among the torch operations around them. The device's part travels in the module
that is built, and is compiled by NVRTC when a kernel is first launched.

What the host's part finds of CUDA's runtime is in ``wooly_extension.h``, which calls the functions here by name.
"""

from __future__ import annotations

import ctypes
import inspect
import json
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
from blake3 import blake3

from wis.dtypes import DType
from wis.kernel.module import ArgKind, Argument
from wooly.device.backend import index_of_handle
from wooly.device.recorder import RECORDERS
from wooly.errors import CompileError, KernelArgumentError
from wooly.kernels.build import Built, build_cuda
from wooly.kernels.nvrtc import INCLUDE
from wooly.kernels.raw import Function, RawModule, Region, Variables, region_at
from wooly.kernels.splitting import STD, inline_headers, split

_HOST_HEADER: Final = Path(__file__).with_name("wooly_extension.h")
_OF_CUDA: Final = (
    "ATen/cuda/CUDAContext.h", "ATen/cuda/Exceptions.h", "ATen/cuda/CUDAEvent.h", "ATen/cuda/CUDAUtils.h", "ATen/cuda/Atomic.cuh",
    "ATen/cuda/DeviceUtils.cuh", "ATen/cuda/CUDAGuard.h", "ATen/cuda/CUDAApplyUtils.cuh", "ATen/cuda/CUDAContextLight.h",
    "ATen/cuda/detail/KernelUtils.h", "c10/cuda/CUDAException.h",
    "c10/cuda/CUDAGuard.h", "c10/cuda/CUDAStream.h", "c10/cuda/CUDAFunctions.h", "c10/cuda/CUDAMathCompat.h",
    "c10/cuda/CUDACachingAllocator.h",
    "THC/THC.h", "THC/THCAtomics.cuh", "THC/THCDeviceUtils.cuh", "cub/cub.cuh", "cub/block/block_reduce.cuh", "cuda.h", "cuda_bf16.h",
    "cuda_fp16.h", "cuda_fp16.hpp", "cuda_fp8.h", "cuda_runtime.h", "cuda_runtime_api.h", "cooperative_groups.h",
    "cooperative_groups/reduce.h", "cuda/pipeline", "cuda_profiler_api.h", "curand.h", "curand_kernel.h", "curand_normal.h",
    "curand_philox4x32_x.h", "curand_uniform.h", "device_launch_parameters.h", "driver_types.h", "math_constants.h", "mma.h",
    "vector_functions.h", "vector_types.h",
)  # fmt: skip
"""Headers that are empty in the host's part, where ``wooly_extension.h`` has what is used of them."""

_ON_DEVICE: Final = {
    "wooly_torch.h": re.compile(r"\b(?:c10|at|torch)::|\b(?:Half|BFloat16|gpuAtomic\w+|CUDA_\w*KERNEL_\w+|C10_\w+|WARP_\w+)\b"),
    **{
        f"cub/{scope.lower()}/{scope.lower()}_{name}.cuh": re.compile(rf"\bcub::{scope}{name.title().replace('_', '')}\b")
        for scope, names in (("Block", "load store reduce scan radix_sort exchange histogram"), ("Warp", "reduce scan"))
        for name in names.split()
    },
    **{header: re.compile(rf"\b(?:std|at)::(?:{names.replace(', ', '|')})\b") for header, names in STD.items()},
}
"""Headers of which a source uses something, beside those that all of torch's sources have."""
_OF_ALL: Final = "".join(
    f"#include <{name}>\n" for name in ("algorithm", "cassert", "cfloat", "climits", "cmath", "cstddef", "cstdint", "sys/types.h")
)

_BLOCK: Final = 256
_MEMORY: Final = """
extern "C" __global__ void fill(unsigned char *to, unsigned char value, long long n) {
  long long at = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (at < n) to[at] = value;
}
extern "C" __global__ void copy(unsigned char *to, const unsigned char *from, long long n) {
  long long at = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (at < n) to[at] = from[at];
}
"""
_memory: Final = RawModule(_MEMORY)


class _Source:
    """The device's part of one source. Kernels are compiled when they are first launched; all see the same variables."""

    def __init__(self, name: str, device: str, options: Sequence[str], names: Sequence[str]) -> None:
        """``device``: what the CUDA compiler gets. ``names``: of kernels that are no templates, and of variables."""
        self._name, self._text, self._options, self._names = name, device, tuple(options), tuple(names)
        self._functions: dict[str, Function] = {}
        self._variables: dict[str, torch.Tensor] = {}

    def function(self, name: str) -> Function:
        """A kernel, or the instance of a template. Raises CompileError, ToolchainMissing."""
        if name not in self._functions:
            wanted = name if name in self._names else _on_device(name)
            built, variables = self._built(() if wanted in self._names else (wanted,))
            self._functions[name] = Function(built, built.entry(wanted), variables)
        return self._functions[name]

    def _built(self, more: Sequence[str] = ()) -> tuple[Built, Variables]:
        built = build_cuda(self._text, self._options, (*self._names, *more), file=self._name, drops_prints=True)
        return built, Variables(built, self._variables)

    def variable(self, name: str) -> torch.Tensor:
        """The memory of a variable, named as the source names it where it is copied to. Raises CompileError."""
        self._built()[1].tensors()
        for expression, tensor in self._variables.items():
            if f"::{expression.removeprefix('&')}".endswith(f"::{name}"):
                return tensor
        raise CompileError(f"{self._name} has no __constant__ or __device__ variable {name}")


def _on_device(name: str) -> str:
    """What the instance of a template is called in the device's text, where ``int64_t`` is ``long long``. Raises CompileError."""
    if "{lambda" in name or "{unnamed" in name:
        kernel = name.partition("<")[0]
        raise CompileError(f"kernel {kernel} is given a type without a name, such as a lambda: write a struct with a __device__ operator()")
    return re.sub(r"\blong(?: long)?\b", "long long", name.replace("(anonymous namespace)::", ""))


_sources: Final[dict[str, _Source]] = {}
"""By what a source calls itself."""
_allocated: Final[dict[int, torch.Tensor]] = {}


# -- building


def patch(module: Any) -> None:
    """Let module ``torch.utils.cpp_extension``, which has just been imported, build CUDA sources for the device."""
    original = module._jit_compile
    signature = inspect.signature(original)

    def jit_compile(*args: Any, **kwargs: Any) -> Any:
        try:
            given = signature.bind(*args, **kwargs)
        except TypeError:  # callers read Python's words to learn which arguments this version of torch takes
            return original(*args, **kwargs)
        values = given.arguments
        sources = [values["sources"]] if isinstance(values["sources"], str) else list(values["sources"])
        if not values.get("with_cuda") and not any(module._is_cuda_file(path) for path in sources):
            return original(*args, **kwargs)
        folder = Path(values["build_directory"])
        flags = list(values.get("extra_cuda_cflags") or ())
        includes = [str(path) for path in values.get("extra_include_paths") or ()]
        values["sources"], added = _prepared(module, sources, folder, flags, includes)
        bindings = ["-DWOOLY_BINDINGS"] if values.get("is_python_module", True) else []
        values["extra_cflags"] = [*(values.get("extra_cflags") or ()), *bindings, *added]
        values["with_cuda"] = False
        with _compile_errors(values["name"]):
            return original(*given.args, **given.kwargs)

    module._jit_compile = jit_compile
    _patch_setup(module)


def _patch_setup(module: Any) -> None:
    """Let packages build theirs: many ask first whether CUDA's toolkit is there."""
    build_extensions = module.BuildExtension.build_extensions

    def cuda_extension(name: str, sources: Sequence[str], *args: Any, **kwargs: Any) -> Any:
        for option in ("dlink", "dlink_libraries"):
            kwargs.pop(option, None)
        kwargs["libraries"] = [library for library in kwargs.get("libraries", ()) if not library.startswith(("cu", "nv"))]
        extension = module.CppExtension(name, sources, *args, **kwargs)
        extension.is_of_cuda = True
        return extension

    def build(self: Any) -> None:
        for extension in self.extensions:
            if getattr(extension, "is_of_cuda", False) or any(module._is_cuda_file(path) for path in extension.sources):
                _adapt(module, extension, Path(self.build_temp))
        with _compile_errors(", ".join(extension.name for extension in self.extensions)):
            build_extensions(self)

    module.CUDAExtension, module.BuildExtension.build_extensions = cuda_extension, build
    if module.CUDA_HOME is None and (Path(sys.argv[0]).name == "setup.py" or "setuptools.build_meta" in sys.modules):
        module.CUDA_HOME = str(Path(__file__).with_name("toolkit"))


def _adapt(module: Any, extension: Any, folder: Path) -> None:
    """Let a package's extension be built in ``folder``, of C++ sources. Raises CompileError."""
    given = extension.extra_compile_args
    flags = given if isinstance(given, dict) else {"cxx": list(given), "nvcc": list(given)}
    defined = [f"-D{name}" if value is None else f"-D{name}={value}" for name, value in extension.define_macros]
    device = [*flags.get("nvcc", ()), *defined]
    includes = [str(path) for path in extension.include_dirs if str(path) not in module.include_paths()]
    extension.sources, added = _prepared(module, extension.sources, folder.absolute(), device, includes)
    extension.extra_compile_args = {"cxx": [*flags.get("cxx", ()), "-DWOOLY_BINDINGS", *added]}


def _prepared(
    module: Any, sources: Sequence[str], folder: Path, flags: Sequence[str], includes: Sequence[str]
) -> tuple[list[str], list[str]]:
    """(``sources`` with CUDA sources replaced, flags that the C++ compiler needs for them). ``flags`` are those for CUDA sources. Raises
    CompileError."""
    prepared = [_translated(Path(path), folder, flags, includes) if module._is_cuda_file(path) else path for path in sources]
    defined = [flag for flag in flags if flag.startswith(("-D", "-U"))]
    major, minor = str(torch.version.cuda).split(".")[:2]
    version = f"-DCUDA_VERSION={1000 * int(major) + 10 * int(minor)}"  # packages compare it with torch's
    return prepared, [*defined, version, f"-I{_empty_headers(folder)}", "-include", str(_HOST_HEADER)]


@contextmanager
def _compile_errors(name: str) -> Iterator[None]:
    """Raises CompileError where torch's builder says that a source of extension ``name`` does not compile. Other errors pass: there is no
    compiler or ninja, or the extension raised them when it was imported."""
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        if not text.startswith(("Error building extension", "Error compiling objects for extension")):
            raise
        found = next((f": {line.strip()}" for line in text.splitlines() if re.search(r"\berror:", line)), "")
        raise CompileError(
            f"extension {name}: its host part does not compile for a remote device{found}. "
            f"Launch its kernels by wooly.RawModule, which compiles CUDA C++ for the node"
        ) from error


def _empty_headers(folder: Path) -> Path:
    """A folder of them. It lies in the folder of the build, whose commands name it."""
    include = folder / "wooly_include"
    for name in _OF_CUDA:
        file = include / name
        if not file.is_file():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("")
    return include


def _translated(path: Path, folder: Path, flags: Sequence[str], includes: Sequence[str]) -> str:
    """The C++ source that replaces a CUDA source, of which the device's part is kept. Raises CompileError."""
    try:
        source = inline_headers(path, [Path(include) for include in includes])
    except OSError as error:
        raise CompileError(f"{path}: {error.strerror}") from error
    parts = split(source, lambda name: (INCLUDE / name).is_file())
    heads = [header for header, used in _ON_DEVICE.items() if used.search(parts.device)]
    begin = _OF_ALL + "".join(f"#include <{header}>\n" for header in heads)
    names = [f"using cuda::std::{name};" for header in heads if header in STD for name in STD[header].split(", ")]
    begin += f"namespace std {{ {' '.join(names)} }}\n" if names else ""
    options = ["-w", *_options(flags), *(f"-I{include}" for include in includes)]
    device, compiled = begin + parts.device, json.dumps([options, parts.names])
    target = folder / f"{path.stem}.{blake3(str(path).encode()).hexdigest()[:8]}.wooly.cpp"
    digest = blake3(f"{device}\0{compiled}".encode()).hexdigest()[:12]
    name = f"{target} {digest}"  # modules of older versions keep their kernels
    raw = [f'R"{digest}({part}){digest}"' for part in (device, compiled)]
    text = f"""#define __CUDACC__
static const char *wooly_source() {{
  static bool registered = false;
  if (!registered) registered = ::wooly::register_source("{name}", "{path.name}", {raw[0]}, {raw[1]});
  return "{name}";
}}
#define WOOLY_SOURCE wooly_source()
{parts.host}"""
    if not target.is_file() or target.read_text() != text:  # what is newer is compiled again
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    return str(target)


def _options(flags: Sequence[str]) -> list[str]:
    """Of nvcc's options those that change what a kernel computes."""
    kept = ("-D", "-U", "-I", "-std=", "--std=", "-use_fast_math", "--use_fast_math", "-fmad=", "--fmad=", "-ftz=", "--ftz=")
    return [flag for flag in flags if flag.startswith(kept)]


# -- what the host's part calls


def register_source(source: str, file: str, device: str, options: str) -> None:
    """Register the device's part of ``file``, which calls itself ``source``. ``options``: those of the compiler, and the names of kernels
    and variables, as JSON. A module calls it before its first launch."""
    _sources.setdefault(source, _Source(file, device, *json.loads(options)))


def launch(
    source: str, name: str, grid: tuple[int, int, int], block: tuple[int, int, int], shared_bytes: int, given: Sequence[bytes]
) -> None:
    """Record a launch of kernel ``name``. ``given``: the bytes of each argument.

    Raises CompileError, KernelArgumentError, KernelLaunchError."""
    function, wanted = _function(source, name)
    if len(wanted) != len(given):
        raise KernelArgumentError(f"{name} takes {len(wanted)} arguments, {len(given)} were given")
    args = [_argument(name, place, argument, raw) for place, (argument, raw) in enumerate(zip(wanted, given, strict=True))]
    function(grid, block, args, shared_mem=shared_bytes)


def launch_from(source: str, name: str, grid: tuple[int, int, int], block: tuple[int, int, int], shared_bytes: int, args: int) -> None:
    """Record a launch of kernel ``name``, whose arguments are where the pointers in the array at ``args`` point. Raises CompileError,
    KernelArgumentError, KernelLaunchError."""
    _, wanted = _function(source, name)
    pointers = (ctypes.c_void_p * len(wanted)).from_address(args)
    given = [ctypes.string_at(pointer or 0, _size(argument)) for pointer, argument in zip(pointers, wanted, strict=True)]
    launch(source, name, grid, block, shared_bytes, given)


def _function(source: str, name: str) -> tuple[Function, list[Argument]]:
    """A kernel and the arguments that it takes."""
    function = _sources[source].function(name)
    return function, [argument for argument in function.entry.arguments if argument.kind != ArgKind.VARIABLE]


def _size(argument: Argument) -> int:
    """Of an argument in bytes."""
    if argument.kind == ArgKind.STRUCT:
        return argument.nbytes
    return 8 if argument.kind == ArgKind.BUFFER else DType(argument.dtype).itemsize


def _argument(name: str, place: int, argument: Argument, raw: bytes) -> Any:
    if argument.kind == ArgKind.STRUCT:
        return raw
    if argument.kind == ArgKind.BUFFER:
        address = int.from_bytes(raw, "little")
        region = region_at(address)
        if region is None:
            raise KernelArgumentError(f"{name}: argument {place} points to {address:#x}, which is no memory of the device")
        return region
    dtype = DType(argument.dtype)
    if len(raw) != dtype.itemsize:
        raise KernelArgumentError(f"{name}: argument {place} has {len(raw)} bytes, the kernel takes {dtype.text}")
    if dtype is DType.BOOL or dtype.is_integer:
        return int.from_bytes(raw, "little")
    return torch.frombuffer(bytearray(raw), dtype=torch.float32 if dtype is DType.F32 else torch.float64).item()


def allocate(nbytes: int) -> int:
    """The address of new memory on the current device, in bytes. Raises QuotaExceeded."""
    tensor = torch.empty(max(nbytes, 1), dtype=torch.uint8, device="cuda")
    address = int(tensor.untyped_storage().data_ptr())
    _allocated[address] = tensor
    return address


def free(address: int) -> None:
    """Give back memory from ``allocate``; nothing for a null pointer. Raises KernelArgumentError for any other address."""
    if address and _allocated.pop(address, None) is None:
        raise KernelArgumentError(f"cudaFree: {address:#x} is no address from cudaMalloc")


def fill(address: int, value: int, nbytes: int) -> None:
    """Set bytes of the device. Raises KernelArgumentError."""
    if nbytes:
        _memory.get_function("fill")((-(-nbytes // _BLOCK),), (_BLOCK,), (_checked("cudaMemset", address, nbytes), value, nbytes))


def copy(to: int, source: int, nbytes: int) -> None:
    """Copy between two addresses, each of the device or of this machine; waits where bytes come to this machine. Raises
    KernelArgumentError."""
    if not nbytes:
        return
    target, origin = region_at(to), region_at(source)
    if target is None and origin is None:
        ctypes.memmove(to, source, nbytes)
    elif target is None:
        found = _checked("cudaMemcpy", source, nbytes)
        (data,) = RECORDERS[index_of_handle(found.handle)].fetch([(found.handle, found.offset, nbytes)])
        ctypes.memmove(to, bytes(data), nbytes)
    else:
        target = _checked("cudaMemcpy", to, nbytes)
        beside: Any = (
            _checked("cudaMemcpy", source, nbytes) if origin is not None else _uploaded(source, nbytes, index_of_handle(target.handle))
        )
        _memory.get_function("copy")((-(-nbytes // _BLOCK),), (_BLOCK,), (target, beside, nbytes))


def _uploaded(address: int, nbytes: int, index: int) -> torch.Tensor:
    return torch.frombuffer(bytearray(ctypes.string_at(address, nbytes)), dtype=torch.uint8).to(f"cuda:{index}")


def _checked(call: str, address: int, nbytes: int) -> Region:
    region = region_at(address)
    if region is None or region.nbytes < nbytes:
        raise KernelArgumentError(f"{call}: {nbytes} bytes from {address:#x} are no memory of the device")
    return region


def copy_to_variable(source: str, name: str, address: int, nbytes: int, offset: int) -> None:
    """Copy from an address to a ``__constant__`` or ``__device__`` variable. Raises CompileError, KernelArgumentError."""
    copy(address_of_variable(source, name, offset, nbytes), address, nbytes)


def copy_from_variable(source: str, name: str, address: int, nbytes: int, offset: int) -> None:
    """Copy from a ``__constant__`` or ``__device__`` variable to an address. Raises CompileError, KernelArgumentError."""
    copy(address, address_of_variable(source, name, offset, nbytes), nbytes)


def address_of_variable(source: str, name: str, offset: int = 0, nbytes: int = 0) -> int:
    """Of ``nbytes`` at ``offset`` in a variable. Raises CompileError, KernelArgumentError."""
    variable = _sources[source].variable(name)
    if offset + nbytes > variable.numel():
        raise KernelArgumentError(f"cudaMemcpyToSymbol: {name} has {variable.numel()} bytes, {offset + nbytes} are copied")
    return int(variable.untyped_storage().data_ptr()) + offset


def synchronize() -> None:
    """Wait for the current device. Raises what went wrong there."""
    torch.cuda.synchronize()


def current_device() -> int:
    """Its number."""
    return torch.cuda.current_device()


def device_count() -> int:
    """How many devices there are."""
    return torch.cuda.device_count()


def free_memory() -> int:
    """Of the current device, in bytes."""
    return int(torch.cuda.mem_get_info()[0])


def total_memory() -> int:
    """Of the current device, in bytes."""
    return int(torch.cuda.get_device_properties().total_memory)


def set_device(index: int) -> None:
    """Make another device the current one."""
    torch.cuda.set_device(index)


def multiprocessors() -> int:
    """Of the current device."""
    return torch.cuda.get_device_properties().multi_processor_count
