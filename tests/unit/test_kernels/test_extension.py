"""What the host part of a C++ extension calls for CUDA's runtime, without its C++: memory, variables and launches by address."""

from __future__ import annotations

import ctypes
import gc
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from setuptools import Distribution
from torch.utils import cpp_extension

from tests.support.device import address_of
from wooly.errors import CompileError, KernelArgumentError
from wooly.kernels import extension

SOURCE = """
#include <torch/types.h>
namespace ops {
namespace { __constant__ float weights[2]; }
template <typename T> __global__ void scale(T* x, T by, int n) { if (threadIdx.x < n) x[threadIdx.x] *= by * weights[1]; }
__global__ void shift(float* x, float by) { x[threadIdx.x] += by + weights[0]; }
}
"""


def build(folder: Path, source: str, run: Any = None, **more: Any) -> str:
    """Through torch's function, whose compilation of C++ ``run`` replaces; what the C++ source that it gets calls itself."""
    given: dict[str, Any] = {}

    def _jit_compile(name: str, sources: Any, extra_cflags: Any, extra_cuda_cflags: Any, build_directory: str, with_cuda: Any) -> None:
        given.update(sources=sources, flags=extra_cflags, with_cuda=with_cuda)
        if run is not None:
            run()

    module = SimpleNamespace(
        _jit_compile=_jit_compile,
        _is_cuda_file=lambda path: path.endswith(".cu"),
        BuildExtension=SimpleNamespace(build_extensions=None),
        CUDA_HOME="/usr",
    )
    extension.patch(module)
    (folder / "k.cu").write_text(source)
    module._jit_compile("k", [str(folder / "k.cu"), "bindings.cpp"], None, more.get("flags"), str(folder), None)
    assert given["with_cuda"] is False and given["sources"][1] == "bindings.cpp"
    assert "-DWOOLY_BINDINGS" in given["flags"]
    return name_in(Path(given["sources"][0]))


def name_in(source: Path) -> str:
    """What a C++ source that was made of a CUDA source calls itself. Registers what it would register when it runs."""
    pattern = r'::wooly::register_source\("(.*?)", "(.*?)", R"(\w+)\((.*)\)\3", R"\3\((.*)\)\3"\);'
    ((name, file, _, device, options),) = re.findall(pattern, source.read_text(), re.DOTALL)
    extension.register_source(name, file, device, options)
    return str(name)


def pointer(tensor: torch.Tensor) -> bytes:
    return address_of(tensor).to_bytes(8, "little")


def floats(*values: float) -> bytes:
    return np.array(values, np.float32).tobytes()


@pytest.fixture
def allocated() -> Iterator[int]:
    address = extension.allocate(64)
    yield address
    extension.free(address)


def test_all_kernels_of_a_source_see_what_is_copied_to_its_variables(tmp_path: Path) -> None:
    source = build(tmp_path, SOURCE)
    x = torch.ones(4, device="cuda")
    extension.launch(source, "ops::shift", (1, 1, 1), (4, 1, 1), 0, [pointer(x), floats(1)])
    held = ctypes.create_string_buffer(floats(10, 3))
    extension.copy_to_variable(source, "weights", ctypes.addressof(held), 8, 0)
    extension.launch(source, "ops::shift", (1, 1, 1), (4, 1, 1), 0, [pointer(x), floats(1)])
    extension.launch(source, "ops::scale<float>", (1, 1, 1), (4, 1, 1), 0, [pointer(x[1:]), floats(2), np.int32(2).tobytes()])
    assert x.tolist() == [13, 78, 78, 13]
    with pytest.raises(CompileError, match=r"k\.cu has no __constant__ or __device__ variable bias"):
        extension.copy_to_variable(source, "bias", ctypes.addressof(held), 8, 0)
    with pytest.raises(KernelArgumentError, match="weights has 8 bytes, 12 are copied"):
        extension.copy_to_variable(source, "weights", ctypes.addressof(held), 8, 4)
    back = ctypes.create_string_buffer(4)
    extension.copy_from_variable(source, "weights", ctypes.addressof(back), 4, 4)
    assert back.raw == floats(3)
    extension.fill(extension.address_of_variable(source, "weights"), 0, 8)
    extension.launch(source, "ops::shift", (1, 1, 1), (4, 1, 1), 0, [pointer(x), floats(1)])
    assert x.tolist() == [14, 79, 79, 14]


def test_arguments_are_read_from_an_array_of_pointers(tmp_path: Path) -> None:
    source = build(tmp_path, SOURCE)
    x, by, n = torch.ones(4, dtype=torch.float64, device="cuda"), ctypes.c_double(2), ctypes.c_int(4)
    place = ctypes.c_uint64(int.from_bytes(pointer(x), "little"))
    args = (ctypes.c_void_p * 3)(*(ctypes.addressof(value) for value in (place, by, n)))
    extension.launch_from(source, "ops::scale<double>", (1, 1, 1), (4, 1, 1), 0, ctypes.addressof(args))
    assert x.tolist() == [0, 0, 0, 0], "weights are zeros"


TYPES = """
#include <ATen/ATen.h>
template <typename T> struct Two;
template <> struct Two<int64_t> { static constexpr int value = 2; };
namespace { struct Square { __device__ float operator()(float x) const { return x * x; } }; }
template <typename T> __global__ void fill(T* x) { x[threadIdx.x] = Two<T>::value; }
template <typename F> __global__ void each(float* x, F f) { x[threadIdx.x] = f(x[threadIdx.x]); }
__global__ void count(int64_t* x, const float* y) { gpuAtomicAdd(x, int64_t(3)); printf("%f", y[0]); }
template <typename T> __global__ void most(T* x, T y) { x[0] = std::max(y, std::numeric_limits<T>::lowest()) * std::exp(T(0)) + M_PI * 0; }
"""


def test_types_are_called_as_the_device_calls_them(tmp_path: Path) -> None:
    source = build(tmp_path, TYPES)
    x, y = torch.zeros(4, dtype=torch.int64, device="cuda"), torch.full((4,), 3.0, device="cuda")
    one, four = (1, 1, 1), (4, 1, 1)
    extension.launch(source, "fill<long>", one, four, 0, [pointer(x)])
    extension.launch(source, "count", one, four, 0, [pointer(x), pointer(y)])
    extension.launch(source, "each<(anonymous namespace)::Square>", one, four, 0, [pointer(y), b"\0"])
    assert (x.tolist(), y.tolist()) == ([14, 2, 2, 2], [9, 9, 9, 9])
    half = torch.zeros(1, dtype=torch.float16, device="cuda")
    extension.launch(source, "most<c10::Half>", one, one, 0, [pointer(half), np.float16(-7).tobytes()])
    assert half.tolist() == [-7]
    with pytest.raises(CompileError, match="kernel each is given a type without a name, such as a lambda: write a struct with a"):
        extension.launch(source, "each<run()::{lambda(float)#1}>", one, four, 0, [pointer(y), b"\0"])


ATOMICS = """
#include <ATen/ATen.h>
#include <ATen/cuda/Atomic.cuh>
template <typename T> __global__ void fold(T* x, const T* y, int n) {
  if (threadIdx.x >= n) return;
  gpuAtomicAdd(x + 0, y[threadIdx.x]);
  gpuAtomicMax(x + 1, y[threadIdx.x]);
  gpuAtomicMin(x + 2, y[threadIdx.x]);
  gpuAtomicMul(x + 3, y[threadIdx.x]);
}
"""


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (torch.int8, "signed char"),
        (torch.uint8, "unsigned char"),
        (torch.int16, "short"),
        (torch.int32, "int"),
        (torch.int64, "long"),
        (torch.float32, "float"),
        (torch.float64, "double"),
        (torch.float16, "c10::Half"),
        (torch.bfloat16, "c10::BFloat16"),
    ],
)
def test_atomics_of_torch_take_every_type(tmp_path: Path, dtype: torch.dtype, name: str) -> None:
    source = build(tmp_path, ATOMICS)
    x = torch.tensor([1, 2, 2, 1], dtype=dtype, device="cuda")
    y = torch.tensor([3, 1, 2, 5, 1], dtype=dtype, device="cuda")
    extension.launch(source, f"fold<{name}>", (1, 1, 1), (32, 1, 1), 0, [pointer(x), pointer(y), (5).to_bytes(4, "little")])
    assert x.tolist() == [13, 5, 1, 30]


INFO = """
#include <ATen/cuda/detail/IndexUtils.cuh>
using at::cuda::detail::IndexToOffset;
template <typename T> __global__ void rows(const at::cuda::detail::TensorInfo<T, int> from, T* to, int n) {
  const int at = blockIdx.x * blockDim.x + threadIdx.x;
  const int one = IndexToOffset<T, int, -1>::get(at, from), two = at::cuda::detail::IndexToOffset<T, int, 2>::get(at, from);
  if (at < n) to[at] = from.data[one] + from.data[two];
}
"""


def test_the_layout_of_a_tensor_is_given_by_value(tmp_path: Path) -> None:
    source = build(tmp_path, INFO)
    assert "IndexUtils.cuh" in Path(source.partition(" ")[0]).read_text(), "the host has torch's own"
    x, out = torch.randn(4, 3, device="cuda").t(), torch.zeros(12, device="cuda")
    sizes, strides = (np.array([*values, *(0,) * 23], np.int32).tobytes() for values in (x.size(), x.stride()))
    info = pointer(x) + sizes + strides + np.int64(2).tobytes()
    extension.launch(source, "rows<float>", (1, 1, 1), (32, 1, 1), 0, [info, pointer(out), np.int32(12).tobytes()])
    assert torch.equal(out.view(3, 4), x * 2)


def test_functions_of_an_older_version_launch_the_kernels_of_that_version(tmp_path: Path) -> None:
    """torch keeps a module that is loaded, and builds a changed source as another one."""
    first, second = (build(tmp_path, f"__global__ void k(float* x) {{ x[threadIdx.x] = {n}; }}") for n in (1, 2))
    x = torch.zeros(2, device="cuda")
    extension.launch(second, "k", (1, 1, 1), (2, 1, 1), 0, [pointer(x)])
    assert x.tolist() == [2, 2]
    extension.launch(first, "k", (1, 1, 1), (2, 1, 1), 0, [pointer(x)])
    assert x.tolist() == [1, 1]


def test_arguments_are_checked_before_the_launch(tmp_path: Path) -> None:
    source = build(tmp_path, SOURCE)
    x = torch.ones(4)
    with pytest.raises(KernelArgumentError, match=r"ops::shift: argument 0 points to 0x[0-9a-f]+, which is no memory of the device"):
        extension.launch(source, "ops::shift", (1, 1, 1), (4, 1, 1), 0, [x.data_ptr().to_bytes(8, "little"), floats(1)])
    with pytest.raises(KernelArgumentError, match="ops::shift takes 2 arguments, 1 were given"):
        extension.launch(source, "ops::shift", (1, 1, 1), (4, 1, 1), 0, [floats(1)])


def test_memory_is_copied_between_here_and_the_device(allocated: int) -> None:
    here = (ctypes.c_ubyte * 64)(*range(64))
    back = (ctypes.c_ubyte * 64)()
    extension.copy(allocated, ctypes.addressof(here), 64)
    extension.fill(allocated + 60, 7, 4)
    extension.copy(allocated, allocated + 32, 8)
    extension.copy(ctypes.addressof(back), allocated, 64)
    assert list(back) == [*range(32, 40), *range(8, 60), 7, 7, 7, 7]
    for call in (lambda: extension.fill(allocated, 0, 65), lambda: extension.copy(allocated + 8, ctypes.addressof(here), 64)):
        with pytest.raises(KernelArgumentError, match="are no memory of the device"):
            call()


def test_memory_that_was_given_back_is_no_memory_any_more() -> None:
    before = torch.cuda.memory_allocated()
    address = extension.allocate(1 << 22)
    assert torch.cuda.memory_allocated() == before + (1 << 22)
    extension.free(address)
    gc.collect()
    assert torch.cuda.memory_allocated() == before
    with pytest.raises(KernelArgumentError, match="are no memory of the device"):
        extension.fill(address, 0, 1)
    with pytest.raises(KernelArgumentError, match="is no address from cudaMalloc"):
        extension.free(address)
    extension.free(0)


def test_what_is_no_fault_of_the_source_keeps_its_words(tmp_path: Path) -> None:
    def fail() -> None:
        raise RuntimeError("Ninja is required to load C++ extensions (pip install ninja to get it)")

    with pytest.raises(RuntimeError, match=r"^Ninja is required"):
        build(tmp_path, SOURCE, run=fail)


def test_what_does_not_compile_is_said_in_a_sentence(tmp_path: Path) -> None:
    def fail() -> None:
        raise RuntimeError("Error building extension 'k': [1/2] c++ ...\nk.wooly.cpp:3:1: error: 'thrust' has not been declared\nmore\n")

    with pytest.raises(CompileError, match=r"^extension k: .*: .*error: 'thrust' has not been declared\. Launch its kernels by wooly\.Raw"):
        build(tmp_path, SOURCE, run=fail)


def test_a_package_builds_its_extension_of_what_replaces_its_cuda_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By setuptools and torch's own commands, with a compiler that only writes down how it is called."""
    compiler, calls = tmp_path / "c++", tmp_path / "calls"
    compiler.write_text(f'#!/bin/sh\necho "$@" >> {calls}\n')
    compiler.chmod(0o755)
    for variable in ("CC", "CXX"):
        monkeypatch.setenv(variable, str(compiler))
    monkeypatch.chdir(tmp_path)
    for folder, by in (("one", 2), ("two", 3)):
        Path(folder).mkdir()
        Path(folder, "k.cu").write_text(f'#include "by.h"\n__global__ void k(float* x) {{ x[threadIdx.x] *= BY * PER * {by}; }}')
    Path("one", "by.h").write_text("#define BY 5")
    Path("more").mkdir()
    Path("more", "by.h").write_text("#define BY 7")
    Path("bind.cpp").write_text("")
    parts = cpp_extension.CUDAExtension(
        "package._C",
        ["bind.cpp", "one/k.cu", "two/k.cu"],
        include_dirs=[str(tmp_path / "more")],
        define_macros=[("PER", "100")],
        libraries=["cublas", "m"],
        extra_compile_args={"cxx": ["-O2"], "nvcc": ["-O3", "-gencode=arch=compute_80,code=sm_80"]},
        dlink=True,
    )
    command = cpp_extension.BuildExtension.with_options(use_ninja=False)(Distribution({"ext_modules": [parts]}))
    command.build_lib = command.build_temp = "build"
    command.ensure_finalized()
    command.run()
    compiled = [line.split() for line in calls.read_text().splitlines() if " -c " in line]
    sources = sorted(next(word for word in line if word.endswith(".cpp")) for line in compiled)
    assert sources.pop() == "bind.cpp" and len(sources) == 2
    assert all({"-O2", "-DPER=100", "-include", "-DWOOLY_BINDINGS"} <= set(line) for line in compiled)
    assert "sm_80" not in calls.read_text()
    (version,) = {word for line in compiled for word in line if word.startswith("-DCUDA_VERSION=")}
    major, minor = str(torch.version.cuda).split(".")
    assert version == f"-DCUDA_VERSION={1000 * int(major) + 10 * int(minor)}"
    linked = calls.read_text().splitlines()[-1].split()
    assert "-lm" in linked and not [word for word in linked if word.startswith(("-lcu", "-ltorch_cuda", "-lc10_cuda"))]
    found = []
    for source in sources:
        x = torch.ones(1, device="cuda")
        extension.launch(name_in(Path(source)), "k", (1, 1, 1), (1, 1, 1), 0, [pointer(x)])
        found += x.tolist()
    assert sorted(found) == [1000, 2100]


def test_a_call_without_an_argument_is_refused_in_the_words_of_python(tmp_path: Path) -> None:
    """gsplat learns from them which arguments this version of torch takes."""

    def _jit_compile(name: str, sources: Any, with_cuda: Any) -> None:
        raise AssertionError("it was called")

    module = SimpleNamespace(_jit_compile=_jit_compile, BuildExtension=SimpleNamespace(build_extensions=None), CUDA_HOME="/usr")
    extension.patch(module)
    with pytest.raises(TypeError, match=r"_jit_compile\(\) missing 1 required positional argument: 'with_cuda'"):
        module._jit_compile("k", [str(tmp_path / "k.cu")])


@pytest.mark.parametrize("header", ["curand.h", "curand_kernel.h", "curand_philox4x32_x.h", "cuda_profiler_api.h", "vector_functions.h"])
def test_headers_of_cuda_are_found_in_the_host_part(tmp_path: Path, header: str) -> None:
    build(tmp_path, f"#include <{header}>\n{SOURCE}")
    assert (tmp_path / "wooly_include" / header).is_file()
