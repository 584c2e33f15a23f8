"""The compile process: results, refusals, deadlines, deaths; after each of them the next job is done."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest

from jit.cache import ObjectCache
from jit.compiling.process import CompileLimits, CompileProcess, pausing_after
from jit.errors import KernelRefused, Unfinished
from jit.host.toolchain import Toolchain, c_function

PLAIN = "define i64 @answer() {\n  ret i64 42\n}\n"
# No processor has this intrinsic: LLVM ends the process that asks for it.
FATAL = "declare i32 @llvm.amdgcn.workitem.id.x()\ndefine i32 @f() {\n  %a = call i32 @llvm.amdgcn.workitem.id.x()\n  ret i32 %a\n}\n"


def bomb(n: int) -> str:
    """A module that takes long to compile: ``n`` divisions in one block, every one of which counts."""
    lines = ["define i64 @bomb(i64 %x0, i64 %y) {", "  %a0 = add i64 %x0, 0"]
    for i in range(n):
        lines += [f"  %x{i + 1} = sdiv i64 %a{i}, %x{i // 2}", f"  %a{i + 1} = xor i64 %x{i // 3}, %x{i + 1}"]
    return "\n".join([*lines, f"  ret i64 %a{n}", "}", ""])


@pytest.fixture(scope="module")
def process() -> Iterator[CompileProcess]:
    process = CompileProcess()
    yield process
    process.close()


def compiles(process: CompileProcess) -> None:
    assert process.compile("llvm", b"\0" + PLAIN.encode())[:4] == b"\x7fELF"


def test_an_object_comes_back(process: CompileProcess) -> None:
    compiles(process)


def test_text_that_llvm_refuses_is_a_refusal(process: CompileProcess) -> None:
    with pytest.raises(KernelRefused, match="refused this kernel"):
        process.compile("llvm", b"\0define nonsense")
    compiles(process)


def test_a_compiler_that_aborts_is_a_refusal(process: CompileProcess) -> None:
    with pytest.raises(KernelRefused, match="gave up"):
        process.compile("llvm", b"\0" + FATAL.encode())
    compiles(process)


def test_a_compiler_that_takes_too_long_is_ended() -> None:
    process = CompileProcess(CompileLimits(cpu_ms=300))
    try:
        with pytest.raises(KernelRefused, match="more than 300 ms"):
            process.compile("llvm", b"\1" + bomb(200_000).encode())
    finally:
        process.close()


def test_a_compiler_on_a_busy_machine_has_four_times_its_limit() -> None:
    limits = CompileLimits(cpu_ms=1000)
    assert limits.left_s(0.0, 0.0) == 1.0
    assert limits.left_s(0.25, 2.0) == 0.75  # it waited for its turn
    assert limits.left_s(1.0, 1.0) == 0.0
    assert limits.left_s(0.5, 3.75) == 0.25
    assert limits.left_s(0.0, 4.0) == 0.0


def test_a_compiler_that_takes_too_much_memory_is_ended() -> None:
    process = CompileProcess(CompileLimits(address_space_bytes=400 << 20))
    try:
        with pytest.raises(KernelRefused):
            process.compile("llvm", b"\1" + bomb(400_000).encode())
    finally:
        process.close()


def test_foreign_modules_go_through_the_guard(process: CompileProcess) -> None:
    toolchain = Toolchain(ObjectCache(None), process)
    with pytest.raises(KernelRefused, match="gave up"):
        toolchain.functions("fatal", ("f",), lambda: FATAL, foreign=True)
    address = toolchain.functions("plain", ("answer",), lambda: PLAIN, foreign=True)["answer"]
    assert c_function(address, ctypes.c_int64)() == 42


def test_a_caller_that_wants_to_pause_is_interrupted_between_jobs(process: CompileProcess) -> None:
    """Never before the first: every piece makes progress."""
    for _ in range(2):
        with pausing_after(0):
            compiles(process)
            with pytest.raises(Unfinished):
                compiles(process)
    with pausing_after(3600 * 10**9):
        compiles(process)
        compiles(process)
    compiles(process)
