"""Runs a few PTX instructions in the interpreter."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from wis.frontends.ptx import import_ptx
from wis.kernel.interpret import Launch, launch
from wis.kernel.model import BufferParam, Math
from wis.kernel.module import Module
from wis.kernel.traps import Trap
from wis.kernel.verify import VerifiedKernel, verify_kernel

__all__ = ["HEADER", "bits_of", "value_of", "kernel_of", "module_of", "run", "evaluate", "same"]

HEADER = ".version 8.0\n.target sm_90\n.address_size 64\n"
_SIZES = {"8": 1, "16": 2, "32": 4, "64": 8}


def size_of(type_: str) -> int:
    if type_ in ("f16x2", "bf16x2"):
        return 4
    return _SIZES[type_.lstrip("abcdefgopqrstu")]


def bits_of(type_: str, value: float) -> int:
    """The bits of a value: numbers of a float type are encoded, everything else is taken modulo the width."""
    if isinstance(value, float):
        if type_ == "bf16":
            return struct.unpack("<I", struct.pack("<f", value))[0] >> 16
        code, integer = {"f16": ("<e", "<H"), "f32": ("<f", "<I"), "f64": ("<d", "<Q")}[type_]
        return int(struct.unpack(integer, struct.pack(code, value))[0])
    return value & (1 << 8 * size_of(type_)) - 1


def value_of(type_: str, bits: int) -> float:
    """The number that bits mean; packed and untyped ones as they are."""
    if type_ in ("f16", "f32", "f64"):
        code, integer = {"f16": ("<e", "<H"), "f32": ("<f", "<I"), "f64": ("<d", "<Q")}[type_]
        return float(struct.unpack(code, struct.pack(integer, bits))[0])
    if type_ == "bf16":
        return float(struct.unpack("<f", struct.pack("<I", bits << 16))[0])
    width = 8 * size_of(type_)
    return bits - (1 << width) if type_[0] == "s" and bits >> width - 1 else bits


def same(type_: str, a: int, b: int) -> bool:
    """Equal bits, or both NaN."""
    x, y = value_of(type_, a), value_of(type_, b)
    return a == b or (isinstance(x, float) and isinstance(y, float) and math.isnan(x) and math.isnan(y))


def module_of(text: str) -> Module:
    return import_ptx(HEADER + text, "snippet.ptx")


def kernel_of(text: str, math_: Math = Math.STRICT) -> VerifiedKernel:
    """The one kernel of a text, without header, verified."""
    return verify_kernel(import_ptx(HEADER + text, "snippet.ptx", math_).entries[0].kernel)


def run(
    verified: VerifiedKernel, params: Sequence[Any], block: int = 1, grid: int = 1, dynamic_bytes: int = 0
) -> tuple[list[Any], Trap | None]:
    """Launch with arrays (of any type; what they hold afterwards comes back) and numbers."""
    given = [np.ascontiguousarray(p).view(np.uint8).reshape(-1).copy() if isinstance(p, np.ndarray) else p for p in params]
    assert len(given) == len(verified.kernel.params)
    outcome = launch(verified, Launch((grid, 1, 1), (block, 1, 1), dynamic_bytes=dynamic_bytes), given, 10_000_000)
    assert not outcome.out_of_fuel
    after = [
        g.view(p.dtype) if isinstance(p, np.ndarray) and isinstance(k, BufferParam) else p
        for g, p, k in zip(given, params, verified.kernel.params, strict=True)
    ]
    return after, outcome.trap


def evaluate(code: str, out: str, inputs: Sequence[tuple[str, float]]) -> int:
    """The bits of register ``r`` of type ``out`` after ``code`` ran with registers ``a``, ``b``, ... holding the inputs.

    Also declared: predicates ``p``, ``q``, and ``t32``, ``u32``, ``t64``, ``f32``, ``h16`` to work with;
    ``out`` holds the result's address,
    behind which 8 bytes of room are.
    """
    lines, data = [], b""
    for name, (type_, value) in zip("abcde", inputs, strict=False):
        register = {1: "b16", 2: "b16"}.get(size_of(type_)) or (type_ if type_ in ("f32", "f64") else f"b{8 * size_of(type_)}")
        memory = f"b{8 * size_of(type_)}" if type_ not in ("s8",) else "s8"
        lines.append(f".reg .{register} {name}; ld.global.{memory} {name}, [in+{len(data)}];")
        data += bits_of(type_, value).to_bytes(size_of(type_), "little").ljust(8, b"\0")
    size = size_of(out)
    held = "b16" if size <= 2 else out if out in ("f32", "f64") else f"b{8 * size}"
    text = f""".visible .entry k(.param .u64 pin, .param .u64 pout) {{
        .reg .pred p, q; .reg .b32 t32, u32; .reg .b64 t64, in, out; .reg .f32 f32; .reg .b16 h16; .reg .{held} r;
        ld.param.u64 in, [pin]; cvta.to.global.u64 in, in; ld.param.u64 out, [pout]; cvta.to.global.u64 out, out;
        {" ".join(lines)}
        {code}
        st.global.b{8 * size} [out], r; ret; }}"""
    verified = kernel_of(text)
    after, trap = run(verified, [np.frombuffer(data.ljust(40, b"\0"), np.uint8), np.zeros(16, np.uint8)])
    assert trap is None, trap
    return int.from_bytes(after[-1][:size].tobytes(), "little")
