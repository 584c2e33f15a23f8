"""Compiles CUDA C++ to PTX by NVRTC from NVIDIA's wheel: needs neither a GPU nor a driver nor a toolkit.

The single-precision math functions (expf, sinf, powf, ...) stay calls of ``__wis_*``, so that the import gives them the meaning that the
kernel's math policy says; everything else is what the compiler makes of it.
"""

from __future__ import annotations

import ctypes
import importlib.util
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

from wooly.errors import CompileError, ToolchainMissing
from wooly.remedies import install_extra

__all__ = ["Ptx", "compile_to_ptx", "nvrtc_version", "INCLUDE", "SYMBOLIC"]

DEFAULT_ARCH: Final = "compute_90"
INCLUDE: Final = Path(__file__).parent / "include"
"""Headers of ours for device code."""
_PRELUDE: Final = "wooly_prelude.h"
_MISSING: Final = f"the CUDA compiler, which needs no GPU, is not installed; {install_extra('kernels')}"

SYMBOLIC: Final[dict[str, int]] = {
    **dict.fromkeys(
        ("expf", "exp2f", "exp10f", "expm1f", "logf", "log2f", "log10f", "log1pf", "sinf", "cosf", "tanf", "asinf", "acosf", "atanf",
         "sinhf", "coshf", "tanhf", "asinhf", "acoshf", "atanhf", "erff", "erfcf", "erfinvf", "lgammaf"), 1),
    **dict.fromkeys(("powf", "atan2f", "hypotf"), 2),
}  # fmt: skip
"""Functions that stay symbolic, with the number of their arguments."""


@dataclass(frozen=True, slots=True)
class Ptx:
    """``names``: the name in the PTX of each name expression that was asked for; ``log``: what the compiler remarked."""

    text: str
    names: dict[str, str] = field(default_factory=dict)
    log: str = ""


class _Failed(Exception):
    def __init__(self, call: str, code: int) -> None:
        super().__init__(f"{call}: error {code}")
        self.code = code


def compile_to_ptx(
    source: str, options: Sequence[str] = (), name_expressions: Iterable[str] = (), *, name: str = "kernel.cu", symbolic_math: bool = True
) -> Ptx:
    """Compile ``source``.

    ``options`` are NVRTC's; ours come first (``-arch=compute_90``, C++17 as the compiler's default, ``-default-device``, line numbers,
    relocatable code, our and the CUDA headers' folders), so the caller's win. ``name_expressions``: kernels to be named in C++
    (``"scale<float>"``), which also instantiates templates. With ``symbolic_math`` False, math functions become the compiler's own code.
    Raises CompileError with the compiler's log, ToolchainMissing without the compiler.
    """
    library = _library()
    given = [_renamed(option) for option in options]
    flags = [*([] if any(_is_arch(option) for option in given) else [f"-arch={DEFAULT_ARCH}"]), *_flags(), *given]
    headers = {_PRELUDE: _prelude(symbolic_math)}
    expressions = list(name_expressions)
    program = ctypes.c_void_p()
    _check(
        library,
        "nvrtcCreateProgram",
        ctypes.byref(program),
        _bytes(source),
        _bytes(name),
        len(headers),
        _strings(headers.values()),
        _strings(headers),
    )
    try:
        for expression in expressions:
            _check(library, "nvrtcAddNameExpression", program, _bytes(expression))
        code = library.nvrtcCompileProgram(program, len(flags), _strings(flags))
        log = _text(library, "nvrtcGetProgramLog", program).strip()
        if code:
            raise CompileError(f"{name} does not compile:\n{log}" if log else f"the compiler failed: {_reason(library, code)}", log=log)
        names = {expression: _lowered(library, program, expression) for expression in expressions}
        return Ptx(_text(library, "nvrtcGetPTX", program), names, log)
    except _Failed as error:
        raise CompileError(f"the compiler failed: {error}: {_reason(library, error.code)}", log="") from None
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def nvrtc_version() -> tuple[int, int]:
    """The compiler's CUDA version. Raises ToolchainMissing."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    _check(_library(), "nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
    return major.value, minor.value


def _renamed(option: str) -> str:
    """CuPy and torch give ``sm_NN``, which asks for machine code; the text for people is the virtual architecture's."""
    return re.sub(r"^(-arch|--gpu-architecture)([= ])sm_", r"\1\2compute_", option)


def _is_arch(option: str) -> bool:
    return option.startswith(("-arch", "--gpu-architecture"))


def _flags() -> list[str]:
    flags = ["-default-device", "-lineinfo", "--relocatable-device-code=true", f"--pre-include={_PRELUDE}", f"-I{INCLUDE}"]
    return [*flags, *(f"-I{folder}" for folder in _cuda_headers())]


@cache
def _prelude(symbolic_math: bool) -> str:
    """What every source sees first: the functions that stay symbolic, and macros that nvcc's headers give but NVRTC's do not."""
    lines = ["#pragma once"]
    for function, arity in SYMBOLIC.items() if symbolic_math else ():
        params = ", ".join(f"float {letter}" for letter in "xy"[:arity])
        body = f"({params}) {{ return __wis_{function}({', '.join('xy'[:arity])}); }}"
        # The overload for float (exp, std::exp) is the compiler's own as well, and would not go through the function with the f.
        lines += [
            f'extern "C" __device__ float __wis_{function}({params});',
            f'extern "C" __device__ inline float {function}{body}',
            f"__device__ inline float {function[:-1]}{body}",
        ]
    for function in ('extern "C" __device__ inline void sincosf', "__device__ inline void sincos") if symbolic_math else ():
        lines.append(f"{function}(float x, float *s, float *c) {{ *s = __wis_sinf(x); *c = __wis_cosf(x); }}")
    for macro, value in (
        ("INFINITY", "__int_as_float(0x7f800000)"),
        ("NAN", "__int_as_float(0x7fffffff)"),
        ("HUGE_VAL", "__longlong_as_double(0x7ff0000000000000LL)"),
        ("HUGE_VALF", "__int_as_float(0x7f800000)"),
    ):
        lines += [f"#ifndef {macro}", f"#define {macro} {value}", "#endif"]
    return "\n".join(lines) + "\n"


def _roots() -> list[Path]:
    """Folders that NVIDIA's wheels install into (``nvidia/cu13``, ``nvidia/cuda_nvrtc``, ...)."""
    spec = importlib.util.find_spec("nvidia")
    places = list(spec.submodule_search_locations or ()) if spec else []
    return [folder for place in places for folder in sorted(Path(place).iterdir(), reverse=True) if folder.is_dir()]


def _cuda_headers() -> list[Path]:
    """Of the CUDA runtime, and those of the C++ library for it where they are installed (cuda/std, cub, cooperative groups need them)."""
    folders = [folder / "include" for folder in _roots()]
    runtime = [folder for folder in folders if (folder / "cuda_fp16.h").is_file()][:1]
    return [*runtime, *[folder / "cccl" for folder in folders if (folder / "cccl" / "nv" / "target").is_file()][:1]]


@cache
def _library() -> ctypes.CDLL:
    pattern = "bin/**/nvrtc64_*_0.dll" if sys.platform == "win32" else "lib/libnvrtc.so.*"
    found = [path for folder in _roots() for path in sorted(folder.glob(pattern), reverse=True) if "alt" not in path.name]
    for path in found:
        try:
            for builtins in path.parent.glob("libnvrtc-builtins.so.*"):  # the compiler opens it by name, and may lack an RPATH to it
                ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
            library = ctypes.CDLL(str(path))
        except OSError:
            continue
        library.nvrtcGetErrorString.restype = ctypes.c_char_p
        return library
    raise ToolchainMissing(_MISSING)


def _check(library: ctypes.CDLL, call: str, *arguments: object) -> None:
    code = getattr(library, call)(*arguments)
    if code:
        raise _Failed(call, code)


def _reason(library: ctypes.CDLL, code: int) -> str:
    text: bytes = library.nvrtcGetErrorString(code)
    return text.decode()


def _text(library: ctypes.CDLL, call: str, program: ctypes.c_void_p) -> str:
    size = ctypes.c_size_t()
    _check(library, f"{call}Size", program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    _check(library, call, program, buffer)
    return buffer.value.decode(errors="replace")


def _lowered(library: ctypes.CDLL, program: ctypes.c_void_p, expression: str) -> str:
    result = ctypes.c_char_p()
    _check(library, "nvrtcGetLoweredName", program, _bytes(expression), ctypes.byref(result))
    assert result.value is not None
    return result.value.decode()


def _bytes(text: str) -> bytes:
    if "\0" in text:
        raise CompileError("the source or an option has a zero byte in it", log="")
    return text.encode()


def _strings(texts: Iterable[str]) -> ctypes.Array[ctypes.c_char_p]:
    items = [_bytes(text) for text in texts]
    return (ctypes.c_char_p * len(items))(*items)
