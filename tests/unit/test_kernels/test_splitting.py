"""CUDA sources, split into what the C++ compiler of this machine gets and what the CUDA compiler gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from wooly.errors import CompileError
from wooly.kernels.splitting import Split, inline_headers, split

NOTHING = ""


def halves(source: str) -> Split:
    """Checks that both parts keep the lines."""
    found = split(source, lambda name: name == "math.h")
    assert found.host.count("\n") == found.device.count("\n") == source.count("\n")
    return found


@pytest.mark.parametrize(
    ("source", "host", "device"),
    [
        ("int f(int a) { return a; }", "int f(int a) { return a; }", NOTHING),
        ("__device__ int f(int a) { return a; }", NOTHING, "__device__ int f(int a) { return a; }"),
        ("__host__ __device__ int f() {}", "__host__ __device__ int f() {}", "__host__ __device__ int f() {}"),
        ("constexpr int f(int a) { return a; }", "constexpr int f(int a) { return a; }", "constexpr int f(int a) { return a; }"),
        ("template <int N> struct A { int a; };", "template <int N> struct A { int a; };", "template <int N> struct A { int a; };"),
        ("struct A { __device__ int f() { return __ldg(p); } int* p; };", "struct A {  int* p; };",
         "struct A { __device__ int f() { return __ldg(p); } int* p; };"),
        ("struct A { std::vector<int> a; };", "struct A { std::vector<int> a; };", NOTHING),
        ("torch::Tensor f(torch::Tensor x);", "torch::Tensor f(torch::Tensor x);", NOTHING),
        ("using namespace at;", "using namespace at;", NOTHING),
        ("enum class Kind { A, B };", "enum class Kind { A, B };", "enum class Kind { A, B };"),
        ("#include <vector>", "#include <vector>", NOTHING),
        ("#include <math.h>", "#include <math.h>", "#include <math.h>"),
        ('PYBIND11_MODULE(NAME, m) { m.def("f", &f); }', 'PYBIND11_MODULE(NAME, m) { m.def("f", &f); }', NOTHING),
        ("static __device__ int count = 0;", "static __device__ int count = 0;", " __device__ int count = 0;"),
        ('extern "C" { int f(); }', 'extern "C" { int f(); }', 'extern "C" {  }'),
        ("static const int a[] = {1, 2};", "static const int a[] = {1, 2};", "static const int a[] = {1, 2};"),
        ("#if 0\nit's { not C++\n#if 1\n#else\n#endif\n#endif\nint f();", "#if 0\nit's { not C++\n#if 1\n#else\n#endif\n#endif\nint f();",
         "#if 0\nit's { not C++\n#if 1\n#else\n#endif\n#endif\n"),
        ("static int calls = count();", "static int calls = count();", NOTHING),
        ("void f(int a, cudaStream_t s = 0);", "void f(int a, cudaStream_t s = 0);", NOTHING),
        ("struct A { A(int x) : a(x), b{x} { std::log(x); } int a, b; };", "struct A { A(int x) : a(x), b{x} { std::log(x); } int a, b; };",
         "struct A {  int a, b; };"),
        ("struct A { A() = default; cudaStream_t s; };", "struct A { A() = default; cudaStream_t s; };", NOTHING),
        ("struct A { __device__ bool operator==(A b) { return true; } int a; };", "struct A {  int a; };",
         "struct A { __device__ bool operator==(A b) { return true; } int a; };"),
        ("__device__ void operator+=(A &a, A b) { a.x += b.x; }", NOTHING, "__device__ void operator+=(A &a, A b) { a.x += b.x; }"),
        ("#include <c10/cuda/CUDAGuard.h>", NOTHING, NOTHING),
        ("#include <vector> /* of\nC++ */\nint f();", "#include <vector> /* of\nC++ */\nint f();", "\n\n"),
        ("constexpr int f(int a) { return std::max(a, 1); }", "constexpr int f(int a) { return std::max(a, 1); }",
         "constexpr int f(int a) { return std::max(a, 1); }"),
    ],
)  # fmt: skip
def test_each_declaration_goes_where_it_is_used(source: str, host: str, device: str) -> None:
    found = halves(source)
    assert (found.host, found.device) == (host, device)


def test_a_kernel_is_a_stub_on_the_host() -> None:
    found = halves("namespace a { namespace { __global__ void k(const float *x, int n = 3) { } } }")
    assert '{ ::wooly::Launch wooly_launch(WOOLY_SOURCE, "a::k", {std::string()}); if (wooly_launch.named()) return; ' in found.host
    assert "wooly_launch.add(x); wooly_launch.add(n); wooly_launch.run(); }" in found.host
    assert found.device == "namespace a { inline namespace wooly_local { __global__ void k(const float *x, int n = 3) { } } }"
    assert found.names == ("a::k",)


def test_an_instance_of_a_template_is_named_by_its_arguments() -> None:
    found = halves("template <typename T, int N = 4, bool B> static __global__ void __launch_bounds__(N) k(T x[]) {}")
    assert '"k", {std::string(), ::wooly::type_name<T>(), ::wooly::value_name(N), ::wooly::value_name(B)}' in found.host
    assert found.names == ()
    assert "static" not in found.device
    assert halves("template <> __global__ void k<float>(float* x) {}").names == ("k<float>",)


@pytest.mark.parametrize(
    ("source", "host"),
    [
        ("void f() { k<<<1, 2>>>(x); }", "void f() { (::wooly::configure(1, 2), k(x)); }"),
        ("void f() { a::k<float, 2><<<dim3(1, 2), n >> 3, 0, s>>>(x, g(1)); }",
         "void f() { (::wooly::configure(dim3(1, 2), n >> 3, 0, s), a::k<float, 2>(x, g(1))); }"),
        ("#define RUN(k) k<<<1, 2>>>(x)", "#define RUN(k) (::wooly::configure(1, 2), k(x))"),
        ("#define RUN(k) k<int> \\\n<<<1, 2>>>(x)", "#define RUN(k) (::wooly::configure(1, 2), k<int> (x))\n"),
        ("void f() { k<(N > 4), T><<<{1, 2, 3}, 2>>>(x); }", "void f() { (::wooly::configure({1, 2, 3}, 2), k<(N > 4), T>(x)); }"),
        ("void f() { auto g = &k<T>; (*g)<<<1, 2>>>(x); }", "void f() { auto g = &k<T>; (::wooly::configure(1, 2), (*g)(x)); }"),
        ('void f() { g("<<<"); /* k<<<1, 1>>>() */ }', 'void f() { g("<<<"); /* k<<<1, 1>>>() */ }'),
        ("std::ostream& f() { return a << b << c; }", "std::ostream& f() { return a << b << c; }"),
    ],
)  # fmt: skip
def test_launches_become_calls(source: str, host: str) -> None:
    assert halves(source).host == host


def test_macros_that_stand_for_attributes() -> None:
    found = halves("#define INLINE __device__ __forceinline__\n#define BOTH __host__ INLINE\nINLINE int f() {}\nBOTH int g() {}\n")
    assert "f()" not in found.host and "g()" in found.host
    assert "f()" in found.device and "g()" in found.device


def test_macros_that_define_kernels() -> None:
    source = """#define KERNEL(name, op) \\
  __global__ void name##_kernel(float* x, float by) { x[0] = x[0] op by; } /* #op */ \\
  void name(float* x) { name##_kernel<<<1, 1>>>(x, 2); }
#define TWICE(name) KERNEL(name, *)
namespace ops {
KERNEL(add, +)
TWICE(mul);
}
"""
    found = halves(source)
    assert found.names == ("ops::add_kernel", "ops::mul_kernel")
    assert "__global__ void add_kernel(float* x, float by) { x[0] = x[0] + by; }" in found.device
    assert "void mul(float* x) { (::wooly::configure(1, 1), mul_kernel(x, 2)); }" in found.host
    assert "void add(float* x)" not in found.device


def test_macros_before_the_name_of_a_kernel() -> None:
    found = halves("template <typename T> C10_LAUNCH_BOUNDS_1(512) __global__ void BOUNDS(3) k(T x) {}")
    assert '"k", {std::string(), ::wooly::type_name<T>()}); ' in found.host and "wooly_launch.add(x);" in found.host


def test_parameter_packs() -> None:
    found = halves("template <int N, typename... T> __global__ void k(T... x) {}")
    assert "{std::string(), ::wooly::value_name(N), ::wooly::type_name<T>()...}" in found.host
    assert "(wooly_launch.add(x), ...);" in found.host


def test_variables_are_named_for_the_compiler() -> None:
    assert halves("namespace a { __constant__ float w[4]; __device__ int n; }\nextern __constant__ int far;").names == ("&a::w", "&a::n")


def test_accessors_are_given_as_pointer_and_sizes() -> None:
    found = halves("__global__ void k(const torch::PackedTensorAccessor32<float, 2> x, int n) { use(x[0][n]); }")
    kind = "torch::PackedTensorAccessor32<float, 2>"
    assert f"k(typename {kind}::PtrType x__data, const typename {kind}::Dims x__dims, int n) {{ const {kind} " in found.device
    assert "wooly_launch.add(x); wooly_launch.add(n);" in found.host


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("void f() {", "line 1: this bracket is not closed in the same file"),
        (
            "\ntemplate <template <typename> class F> __global__ void k(int x) {}",
            "line 2: kernel k has template parameters of a kind that only nvcc takes",
        ),
        ("\n#include <thrust/sort.h>", "line 2: thrust/sort.h launches on a GPU of this machine; use torch's operations in its place"),
        ("\nvoid f() { thrust::sort(a, b); }", "line 2: thrust::sort launches on a GPU of this machine"),
        ("void f() { cub::DeviceScan::Sum(a, n, x, y, 3); }", "line 1: cub::DeviceScan launches on a GPU of this machine"),
        ("void f() { g([=] __host__ __device__ (int i) {}); }", "line 1: a lambda for the device has no name there"),
        ("__device__ void f() { k<<<1, 1>>>(); }", "line 1: a kernel that launches kernels is not portable: launch them from the host"),
        ("#define K(n) __global__ void n(int) {}\n\nK(a)", "line 3: macro K: line 1: parameter 0 of this kernel has no name"),
        ("__global__ void k(int) {}", "line 1: parameter 0 of this kernel has no name"),
        ("void f() { k<<<1, 2; }", "line 1: this launch is not understood"),
    ],
)
def test_what_is_not_understood_is_refused_with_its_line(source: str, message: str) -> None:
    with pytest.raises(CompileError, match=message):
        halves(source)


def test_own_headers_are_part_of_the_source(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "b.cuh").write_text('#pragma once\n#include "../a.cuh"\nint b;\n')
    (tmp_path / "a.cuh").write_text('#include "b.cuh"\nint a;\n')
    (tmp_path / "k.cu").write_text('#include <vector>\n#include "a.cuh"\nint k;\n')
    text = inline_headers(tmp_path / "k.cu", [tmp_path / "more"])
    assert [line for line in text.split("\n") if line] == [
        '#line 1 "k.cu"', "#include <vector>", '#line 1 "a.cuh"', '#line 1 "b.cuh"', "int b;", '#line 2 "a.cuh"', "int a;",
        '#line 3 "k.cu"', "int k;",
    ]  # fmt: skip


def test_sources_in_other_encodings(tmp_path: Path) -> None:
    (tmp_path / "k.cu").write_bytes(b"// caf\xe9\r\n#define A \\\r\n  1\r\nint a;\r\n")
    assert split(inline_headers(tmp_path / "k.cu", []), bool).host.endswith("#define A \\\n  1\nint a;\n")


def test_a_refusal_names_the_file_and_the_line(tmp_path: Path) -> None:
    (tmp_path / "a.cuh").write_text("int a;\n\n__global__ void k(int) {}\n")
    (tmp_path / "k.cu").write_text('#include "a.cuh"\n')
    with pytest.raises(CompileError, match=r"^a\.cuh, line 3: parameter 0 of this kernel has no name$"):
        split(inline_headers(tmp_path / "k.cu", []), bool)
    (tmp_path / "k.cu").write_text("\n#include <thrust/sort.h>\n")
    with pytest.raises(CompileError, match=r"^k\.cu, line 2: thrust/sort\.h launches on a GPU"):
        split(inline_headers(tmp_path / "k.cu", []), bool)


def test_the_device_does_not_see_the_header_of_the_hosts_library() -> None:
    parts = split("#include <curand.h>\n#include <curand_kernel.h>\n__global__ void k(int* x) { x[0] = 1; }", lambda name: False)
    assert "<curand.h>" not in parts.device and "<curand_kernel.h>" in parts.device
