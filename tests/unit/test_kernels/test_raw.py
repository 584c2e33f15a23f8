"""Kernels in CUDA C++ on our device: called as CuPy's are, in order with the torch operations around them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import wooly
from tests.support.device import address_of
from tests.support.loopback import LoopbackLink
from wooly.errors import CompileError, DeviceAssertError, KernelArgumentError, KernelLaunchError, OutOfFuelError
from wooly.link import Flush

SAXPY = r"""
extern "C" __global__ void saxpy(int n, float a, const float *x, float *y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}
"""
saxpy = wooly.RawKernel(SAXPY, "saxpy")


def test_a_kernel_runs_between_operations_in_one_batch(flushes: list[Flush]) -> None:
    x = torch.arange(1000, dtype=torch.float32, device="cuda")
    y = x + 1
    saxpy((4,), (256,), (1000, 2.0, x, y))
    z = y * 2
    expected = (2 * np.arange(1000, dtype=np.float32) + np.arange(1000, dtype=np.float32) + 1) * 2
    assert (z.cpu().numpy() == expected).all()
    assert sum(bool(flush.program) for flush in flushes) == 1, "operations and launch travel in one batch"
    assert [len(flush.kernels) for flush in flushes if flush.program] == [1]


def test_grid_and_numbers_are_no_part_of_the_program(flushes: list[Flush]) -> None:
    x, y = torch.ones(512, device="cuda"), torch.zeros(512, device="cuda")
    torch.cuda.synchronize()
    flushes.clear()
    for n in (100, 200, 512):
        saxpy((-(-n // 256),), (256,), (n, float(n), x, y))
        torch.cuda.synchronize()
    programs = {(flush.program, flush.dims_digest) for flush in flushes if flush.program}
    assert len(programs) == 1
    assert y.sum().item() == 100 * 812 + 100 * 712 + 312 * 512


@pytest.mark.parametrize("grid", [4, (4,), (4, 1), (4, 1, 1), np.int64(4)])
def test_sizes_are_given_as_one_number_or_up_to_three(grid: object) -> None:
    x, y = torch.ones(1000, device="cuda"), torch.zeros(1000, device="cuda")
    saxpy(grid, 256, (np.int32(1000), np.float32(3), x, y))  # type: ignore[arg-type]  # a NumPy integer is one, too
    assert (y.cpu() == 3).all()


def test_a_view_is_memory_from_its_first_element_on() -> None:
    x, y = torch.arange(10.0, device="cuda"), torch.zeros(10, device="cuda")
    saxpy(1, 32, (4, 1.0, x[3:], y[5:]))
    assert y.tolist() == [0, 0, 0, 0, 0, 3, 4, 5, 6, 0]


def test_one_tensor_may_be_two_arguments() -> None:
    x = torch.arange(10.0, device="cuda")
    saxpy(1, 32, (10, 1.0, x, x))
    assert x.tolist() == [2.0 * i for i in range(10)]


def test_a_data_pointer_is_as_good_as_its_tensor() -> None:
    x, y = torch.arange(10.0, device="cuda"), torch.zeros(10, device="cuda")
    saxpy(1, 32, (5, 1.0, x.data_ptr() + 4, y.data_ptr()))
    assert y.tolist() == [1, 2, 3, 4, 5, 0, 0, 0, 0, 0]


def test_unwritten_memory_is_zero() -> None:
    y = torch.empty(64, device="cuda")
    saxpy(1, 64, (64, 0.0, y, y))
    assert (y.cpu() == 0).all()


def test_integers_are_taken_as_the_declared_type_holds_them() -> None:
    source = """
    extern "C" __global__ void f(unsigned char a, signed char b, unsigned short c, short d, unsigned e, bool g, long long *out) {
        out[0] = a; out[1] = b; out[2] = c; out[3] = d; out[4] = e; out[5] = g;
    }
    """
    out = torch.zeros(6, dtype=torch.int64, device="cuda")
    wooly.RawKernel(source, "f")(1, 1, (-1, 200, -1, 65535, -1, True, out))
    assert out.tolist() == [255, -56, 65535, -1, 2**32 - 1, 1]


@pytest.mark.parametrize(
    ("address", "first"),
    [("((a + 15) & ~15ull) + 4 * threadIdx.x", 4), ("4 * threadIdx.x + (a & ~15ull)", 0), ("((a | 1) & ~3ull) + 4 * threadIdx.x", 1)],
)
def test_a_pointer_is_aligned_as_a_number(address: str, first: int) -> None:
    source = 'extern "C" __global__ void f(unsigned long long a, int *out) { out[threadIdx.x] = *(int *)(ADDRESS); }'
    x, out = torch.arange(16, dtype=torch.int32, device="cuda"), torch.zeros(4, dtype=torch.int32, device="cuda")
    wooly.RawKernel(source.replace("ADDRESS", address), "f")(1, 4, (x[1:] if first else x, out))
    assert out.tolist() == list(range(first, first + 4))


def test_a_rounded_number_is_no_pointer() -> None:
    source = """
    extern "C" __global__ void f(const char *a, const char *b, long long n, int *out) {
        const char *from = n > 5 ? a : b;
        out[threadIdx.x] = *(const int *)(from + (n & ~3ll) + 4 * threadIdx.x);
    }
    """
    x, out = torch.arange(16, dtype=torch.int32, device="cuda"), torch.zeros(4, dtype=torch.int32, device="cuda")
    wooly.RawKernel(source, "f")(1, 4, (x, x, 9, out))
    assert out.tolist() == [2, 3, 4, 5]


def test_null_pointers() -> None:
    source = 'extern "C" __global__ void f(const float *a, float *b) { b[threadIdx.x] = a ? 1.0f : 2.0f; }'
    b = torch.zeros(4, device="cuda")
    wooly.RawKernel(source, "f")(1, 4, (None, b))
    assert b.tolist() == [2, 2, 2, 2]
    wooly.RawKernel(source, "f")(1, 4, (torch.ones(1, device="cuda"), b))
    assert b.tolist() == [1, 1, 1, 1]
    chosen = 'extern "C" __global__ void g(const float *a, float *b) { b[threadIdx.x] = a ? a[threadIdx.x] : 2.0f; }'
    wooly.RawKernel(chosen, "g")(1, 4, (None, b))
    assert b.tolist() == [2, 2, 2, 2]


def test_an_instance_of_a_template_is_named_by_its_expression() -> None:
    source = "template <typename T> __global__ void fill(T *out, T value) { out[threadIdx.x] = value; }"
    module = wooly.RawModule(source, name_expressions=["fill<float>", "fill<long long>"])
    a, b = torch.zeros(3, device="cuda"), torch.zeros(3, dtype=torch.int64, device="cuda")
    module.get_function("fill<float>")((1,), (3,), (a, 1.5))
    module.get_function("fill<long long>")((1,), (3,), (b, 1 << 40))
    assert a.tolist() == [1.5] * 3 and b.tolist() == [1 << 40] * 3


def test_variables_of_a_module_are_shared_by_its_kernels_and_seen_from_python() -> None:
    source = """
    __constant__ int scale[2] = {3, 5};
    __device__ unsigned counter;
    extern "C" __global__ void bump() { atomicAdd(&counter, scale[threadIdx.x & 1]); }
    extern "C" __global__ void fetch(unsigned *out) { *out = counter; }
    """
    module = wooly.RawModule(source)
    out = torch.zeros(1, dtype=torch.int32, device="cuda")
    module.get_function("bump")(2, 4)
    module.get_function("fetch")(1, 1, (out,))
    assert out.item() == 2 * (3 + 5 + 3 + 5)
    module.get_global("scale").view(torch.int32).copy_(torch.tensor([1, 1], dtype=torch.int32))
    module.get_function("bump")(1, 4)
    assert module.get_global("counter").view(torch.int32).item() == 36


def test_a_struct_is_given_as_a_numpy_record() -> None:
    source = """
    struct P { float a; int n; double b; };
    extern "C" __global__ void f(P p, double *out) { if (threadIdx.x < p.n) out[threadIdx.x] = p.a * p.b; }
    """
    record = np.zeros((), np.dtype([("a", "f4"), ("n", "i4"), ("b", "f8")]))
    record["a"], record["n"], record["b"] = 2, 3, 0.25
    out = torch.zeros(4, dtype=torch.float64, device="cuda")
    wooly.RawKernel(source, "f")(1, 4, (record, out))
    assert out.tolist() == [0.5, 0.5, 0.5, 0]


SCATTER = """
struct P { const float *x; int n; float by; float *y; const float *bias; };
extern "C" __global__ void f(P p) { if (threadIdx.x < p.n) p.y[threadIdx.x] = p.x[threadIdx.x] * p.by + (p.bias ? p.bias[0] : 0); }
"""
PARAMS = np.dtype([("x", "u8"), ("n", "i4"), ("by", "f4"), ("y", "u8"), ("bias", "u8")])


def params(x: int, y: int, bias: int = 0) -> np.ndarray[Any, Any]:
    return np.array((x, 3, 2.0, y, bias), PARAMS)


def test_pointers_in_a_struct_are_addresses() -> None:
    """Also of the middle of a buffer that takes more than one unit of addresses."""
    kernel = wooly.RawKernel(SCATTER, "f")
    x, y = torch.arange(600_000.0, device="cuda"), torch.zeros(4, device="cuda")
    kernel(1, 4, (params(address_of(x[500_000:]), address_of(y[1:])),))
    assert y.tolist() == [0, 1_000_000, 1_000_002, 1_000_004]
    kernel(1, 4, (params(address_of(x), address_of(y), address_of(x[5:])),))
    assert y.tolist() == [5, 7, 9, 1_000_004]


def test_an_address_of_nothing_is_refused_before_the_launch() -> None:
    kernel = wooly.RawKernel(SCATTER, "f")
    y = torch.zeros(4, device="cuda")
    with pytest.raises(KernelArgumentError, match=r"points to 0x7fff00000000 at byte 0, which is no memory of the device"):
        kernel(1, 4, (params(0x7FFF00000000, address_of(y)),))
    released = address_of(torch.zeros(4, device="cuda"))
    with pytest.raises(KernelArgumentError, match="is no memory of the device"):
        kernel(1, 4, (params(released, address_of(y)),))
    assert y.tolist() == [0, 0, 0, 0]


def test_dynamic_shared_memory() -> None:
    source = """
    extern "C" __global__ void reverse(const int *in, int *out) {
        extern __shared__ int s[];
        s[threadIdx.x] = in[threadIdx.x];
        __syncthreads();
        out[threadIdx.x] = s[blockDim.x - 1 - threadIdx.x];
    }
    """
    x = torch.arange(64, dtype=torch.int32, device="cuda")
    out = torch.empty_like(x)
    wooly.RawKernel(source, "reverse")(1, 64, (x, out), shared_mem=256)
    assert out.tolist() == list(range(63, -1, -1))


def test_torch_s_own_way_to_a_kernel() -> None:
    kernel = torch.cuda._compile_kernel(SAXPY, "saxpy")
    x, y = torch.ones(100, device="cuda"), torch.zeros(100, device="cuda")
    kernel(grid=(1, 1, 1), block=(128, 1, 1), args=[100, 4.0, x, y])
    assert (y.cpu() == 4).all()


def test_a_ptx_file(tmp_path: Path) -> None:
    from wooly.kernels.nvrtc import compile_to_ptx

    path = tmp_path / "saxpy.ptx"
    path.write_text(compile_to_ptx(SAXPY).text)
    x, y = torch.ones(100, device="cuda"), torch.zeros(100, device="cuda")
    wooly.RawModule(path=path).get_function("saxpy")(1, 128, (100, 4.0, x, y))
    assert (y.cpu() == 4).all()


def test_what_was_compiled_is_found_again_on_disk(cache_folder: Path) -> None:
    from wooly.kernels import build

    kernel = wooly.RawKernel(SAXPY.replace("saxpy", "again"), "again")
    kernel.compile()
    build._built.clear()
    files = {path: path.stat().st_mtime_ns for path in (cache_folder / "wooly" / "kernels").iterdir()}
    wooly.RawKernel(SAXPY.replace("saxpy", "again"), "again").compile()
    assert {path: path.stat().st_mtime_ns for path in (cache_folder / "wooly" / "kernels").iterdir()} == files
    for path in files:
        path.write_bytes(path.read_bytes()[:-3])
    build._built.clear()
    wooly.RawKernel(SAXPY.replace("saxpy", "again"), "again").compile()  # damaged files are as good as absent


# --- mistakes


def gpu(n: int = 4) -> torch.Tensor:
    return torch.zeros(n, device="cuda")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), r"takes 4 arguments \(.*\), 0 were given"),
        ((1, 2.0, 3.0, 4.0), "argument 2 .* is a pointer"),
        ((1, 2.0, torch.zeros(3), torch.zeros(3)), "argument 2 .* is a tensor on cpu; .* move it there"),
        ((1, 2.0, np.zeros(3), np.zeros(3)), "argument 2 .* takes a cuda tensor, not ndarray"),
        ((1.5, 2.0, None, None), "argument 0 .* takes a whole number"),
        ((1 << 40, 2.0, None, None), "argument 0 .* does not fit"),
        ((1, "2", None, None), "argument 1 .* takes a number"),
        ((1, 2j, None, None), "argument 1 .* takes a number"),
    ],
)
def test_wrong_arguments_are_named(args: tuple[object, ...], message: str) -> None:
    with pytest.raises(KernelArgumentError, match=message):
        saxpy(1, 1, args)


def test_a_cuda_tensor_is_no_number() -> None:
    with pytest.raises(KernelArgumentError, match="takes a number"):
        saxpy(1, 1, (1, gpu(1), gpu(), gpu()))


@pytest.mark.parametrize(
    ("grid", "block", "message"),
    [
        (0, 1, "grid"), ((1, 2, 3, 4), 1, "grid"), (1, -3, "block"), (1, 1025, "1025 threads"), (1, (32, 32, 2), "2048 threads"),
        ((1 << 20, 1 << 12, 1), 1, "grid of"),
    ],
)  # fmt: skip
def test_launches_beyond_the_limits(grid: object, block: object, message: str) -> None:
    with pytest.raises(KernelLaunchError, match=message):
        saxpy(grid, block, (1, 2.0, gpu(), gpu()))  # type: ignore[arg-type]  # that is the point


def test_too_much_shared_memory() -> None:
    source = 'extern "C" __global__ void f(int *a) { extern __shared__ int s[]; s[threadIdx.x] = 1; a[0] = s[0]; }'
    with pytest.raises(KernelLaunchError, match="shared memory"):
        wooly.RawKernel(source, "f")(1, 1, (gpu(),), shared_mem=1 << 20)


def test_a_misaligned_pointer() -> None:
    source = 'extern "C" __global__ void f(const float4 *a, float4 *b) { b[threadIdx.x] = a[threadIdx.x]; }'
    x = torch.arange(16.0, device="cuda")
    out = torch.zeros(16, device="cuda")
    kernel = wooly.RawKernel(source, "f")
    kernel(1, 3, (x[4:], out))
    assert out.tolist()[:12] == [float(i) for i in range(4, 16)]
    with pytest.raises(KernelLaunchError, match="multiple of 16"):
        kernel(1, 1, (x[1:], out))


def test_errors_of_the_compiler_carry_its_log() -> None:
    with pytest.raises(CompileError, match="undefined"):
        wooly.RawKernel('extern "C" __global__ void f(int *a) { a[0] = nonsense; }', "f").compile()


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(CompileError, match="g"):
        wooly.RawKernel('extern "C" __global__ void f(int *a) { a[0] = 1; }', "g").compile()
    with pytest.raises(CompileError, match=r"no variable 'x'.* none"):
        wooly.RawModule(SAXPY).get_global("x")


def test_an_access_outside_names_kernel_block_thread_and_line(fresh_link: LoopbackLink) -> None:
    source = '\nextern "C" __global__ void wild(float *a, int n) {\n    a[blockIdx.x * blockDim.x + threadIdx.x + n] = 1.0f;\n}\n'
    a = gpu(64)
    wooly.RawKernel(source, "wild")(2, 32, (a, 5))
    with pytest.raises(
        DeviceAssertError, match=r"kernel wild: store of .32 .* outside of it; in block \(1, 0, 0\), thread \(27, 0, 0\).*:3"
    ) as caught:
        torch.cuda.synchronize()
    assert isinstance(caught.value, torch.AcceleratorError)


def test_an_endless_kernel_is_ended(fresh_link: LoopbackLink) -> None:
    source = 'extern "C" __global__ void spin(volatile int *a) { while (a[0] == 0) { } }'
    wooly.RawKernel(source, "spin")(1, 32, (torch.zeros(1, dtype=torch.int32, device="cuda"),))
    with pytest.raises(OutOfFuelError, match="spin"):
        torch.cuda.synchronize()


WMMA = r"""
#include <mma.h>
using namespace nvcuda;
extern "C" __global__ void product(const half *a, const half *b, float *c, int n, int depth) {
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> x;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> y;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> total;
    wmma::fill_fragment(total, 0.0f);
    for (int k = 0; k < depth; k += 16) {
        wmma::load_matrix_sync(x, a + blockIdx.y * 16 * depth + k, depth);
        wmma::load_matrix_sync(y, b + blockIdx.x * 16 * depth + k, depth);
        wmma::mma_sync(total, x, y, total);
    }
    for (int i = 0; i < total.num_elements; i++) total.x[i] *= 2;
    wmma::store_matrix_sync(c + blockIdx.y * 16 * n + blockIdx.x * 16, total, n, wmma::mem_row_major);
}
"""


def test_matrix_fragments_of_cuda() -> None:
    torch.manual_seed(2)
    a, b = torch.randn(32, 48).half(), torch.randn(16, 48).half()
    c = torch.empty(32, 16, device="cuda")
    wooly.RawKernel(WMMA, "product", ("--gpu-architecture=compute_80",))((1, 2), (32,), (a.cuda(), b.cuda(), c, 16, 48))
    assert torch.allclose(c.cpu(), 2 * (a.float() @ b.float().T), atol=1e-4)
