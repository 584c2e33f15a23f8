"""CUDA C++ to PTX: options, errors, names, headers, and math that stays symbolic."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from wis.frontends.ptx import import_ptx
from wis.kernel.model import Math
from wis.kernel.ops import BY_CODE
from wooly.errors import CompileError, ToolchainMissing
from wooly.kernels import nvrtc
from wooly.kernels.nvrtc import SYMBOLIC, compile_to_ptx, nvrtc_version

pytestmark = pytest.mark.skipif(importlib.util.find_spec("nvidia") is None, reason="the extra `kernels` is not installed")


def _ops(body: str, before: str = "", options: tuple[str, ...] = ()) -> list[str]:
    """Names of the ops of a kernel with ``float *a, double *d, int n`` and this body."""
    text = compile_to_ptx(f'{before}\nextern "C" __global__ void k(float *a, double *d, int n) {{ {body} }}', options).text
    kernel = import_ptx(text, "k.cu", Math.NATIVE).entries[0].kernel
    return [BY_CODE[op.op].name for block in kernel.blocks for op in block.code]


def test_version() -> None:
    assert nvrtc_version() >= (12, 0)


@pytest.mark.parametrize("function", SYMBOLIC)
def test_math_functions_stay_symbolic(function: str) -> None:
    arguments = ", ".join(("a[1]", "a[2]")[: SYMBOLIC[function]])
    named = [name for name in _ops(f"a[0] = {function}({arguments});") if name == function[:-1]]
    assert named == [function[:-1]]


@pytest.mark.parametrize(
    ("expression", "name"),
    [("exp(a[1])", "exp"), ("std::exp(a[1])", "exp"), ("::pow(a[1], 2.5f)", "pow"), ("std::sin(a[1])", "sin"), ("tanh(a[1])", "tanh")],
)
def test_their_overloads_too(expression: str, name: str) -> None:
    assert _ops(f"a[0] = {expression};", "#include <cmath>").count(name) == 1


def test_both_of_sine_and_cosine() -> None:
    ops = _ops("float s, c; sincosf(a[1], &s, &c); a[0] = s + c;")
    assert (ops.count("sin"), ops.count("cos")) == (1, 1)


def test_double_functions_are_the_compilers_code() -> None:
    assert not {"exp", "sin", "log"} & set(_ops("d[0] = exp(d[1]) + sin(d[2]) + log(d[3]);"))


def test_fast_math_uses_approximations() -> None:
    assert "exp2" in _ops("a[0] = __expf(a[1]);")
    assert _ops("a[0] = __fdividef(a[1], a[2]);").count("div") == 1


def test_contraction_is_the_options_to_decide() -> None:
    assert "fma" in _ops("a[0] = a[1] * a[2] + a[3];")
    assert "fma" not in _ops("a[0] = a[1] * a[2] + a[3];", options=("--fmad=false",))


def test_symbolic_math_can_be_switched_off() -> None:
    source = 'extern "C" __global__ void k(float *a) { a[0] = expf(a[1]); }'
    assert "__wis_expf" not in compile_to_ptx(source, symbolic_math=False).text


def test_names_of_templates() -> None:
    source = "template <class T> __global__ void add(T *a, T b) { a[threadIdx.x] += b; }"
    ptx = compile_to_ptx(source, name_expressions=("add<float>", "add<long long>"))
    entries = {entry.name for entry in import_ptx(ptx.text).entries}
    assert {ptx.names["add<float>"], ptx.names["add<long long>"]} == entries


def test_lines_of_the_source() -> None:
    text = compile_to_ptx('extern "C" __global__ void k(int *a) {\n\n  a[0] = 7;\n}', name="mine.cu").text
    kernel = import_ptx(text).entries[0].kernel
    assert kernel.file == "mine.cu"
    assert 3 in kernel.lines


def test_an_architecture_as_others_spell_it() -> None:
    assert ".target sm_80" in compile_to_ptx('extern "C" __global__ void k() {}', ("--gpu-architecture=sm_80",)).text


@pytest.mark.parametrize(
    "header",
    ["stdint.h", "cstdint", "cmath", "math.h", "float.h", "cfloat", "limits.h", "climits", "stddef.h", "cstddef", "stdio.h", "assert.h",
     "cassert", "cuda_runtime.h", "cuda_fp16.h", "cuda_bf16.h"],
)  # fmt: skip
def test_headers(header: str) -> None:
    compile_to_ptx(f'#include <{header}>\nextern "C" __global__ void k(float *a) {{ a[0] = INFINITY; }}')


def test_headers_have_what_people_use() -> None:
    before = "#include <cstdint>\n#include <cmath>\n#include <cassert>\n#include <climits>\n#include <cfloat>\n"
    body = "assert(n > 0); std::uint64_t x = n; a[0] = M_PI + FLT_MAX + INT_MAX + std::sqrt(a[1]) + (float)x + std::abs(a[2]);"
    assert "raise" in _ops(body, before)


def test_a_source_that_does_not_compile() -> None:
    with pytest.raises(CompileError, match=r"mine\.cu does not compile") as caught:
        compile_to_ptx("__global__ void k(int *a) { a[0] = nosuch; }", name="mine.cu")
    assert "mine.cu(1): error: identifier" in caught.value.log


@pytest.mark.parametrize(
    ("source", "options"), [("int \0 x;", ()), ('extern "C" __global__ void k() {}', ("--no-such-option",)), ("", ("-arch=compute_1",))]
)
def test_other_failures_are_compile_errors(source: str, options: tuple[str, ...]) -> None:
    with pytest.raises(CompileError):
        compile_to_ptx(source, options)


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(CompileError):
        compile_to_ptx("template <class T> __global__ void f(T *a) {}", name_expressions=("g<float>",))


def test_without_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "_roots", list)
    nvrtc._library.cache_clear()
    try:
        with pytest.raises(ToolchainMissing, match=r"pip install '\.\[kernels\]'"):
            compile_to_ptx("")
    finally:
        nvrtc._library.cache_clear()


def test_the_builtins_are_found_beside_the_compiler(tmp_path: Path) -> None:
    """torch pins a compiler whose library has no RPATH: it opens its builtins by name only. The same is made here of the installed one."""
    installed = next(path for path in nvrtc._roots() if any((path / "lib").glob("libnvrtc.so.*")))
    folder = tmp_path / "nvidia" / installed.name
    folder.mkdir(parents=True)
    (folder / "include").symlink_to(installed / "include")
    (folder / "lib").mkdir()
    for path in (installed / "lib").glob("libnvrtc*"):
        if path.name.startswith("libnvrtc.so"):
            (folder / "lib" / path.name).write_bytes(path.read_bytes().replace(b"\0$ORIGIN\0", b"\0/absent\0"))
        else:
            (folder / "lib" / path.name).symlink_to(path)
    program = "from wooly.kernels.nvrtc import _roots, compile_to_ptx; print(_roots()[0])\n"
    program += 'print(compile_to_ptx("extern \\"C\\" __global__ void k(float *a) { a[0] = 1; }").text)'
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(folder))
    assert ".entry k(" in done.stdout
