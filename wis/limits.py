"""Limits of a program. One frozen record; the node sends its own to the client when a session opens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on one program and its dims."""

    program_bytes_max: int = 2 << 20  # reading it holds up all threads of an executor
    instructions_max: int = 20_000
    buffers_max: int = 40_000
    scalars_max: int = 100_000
    rank_max: int = 16
    ins_max: int = 64
    buffer_bytes_max: int = 1 << 40
    elements_max: int = 1 << 40  # of one operand, counting elements repeated by stride 0: bounds the work of one instruction
    work_max: int = 1 << 50  # element-instructions of one instruction (wis.cost): days of one core, beyond any sensible one
    window_max: int = 1 << 20  # positions of a convolution's or pooling's kernel
    stride_max: int = 1 << 48  # so that every sum of offsets fits 64 bits with room to spare
    kernels_max: int = 256  # named by one program
    findings_max: int = 100  # a broken program of 20,000 instructions need not answer with 20,000 complaints


LIMITS: Final = Limits()

assert LIMITS.rank_max * LIMITS.stride_max < 1 << 62
assert LIMITS.elements_max * 16 < 1 << 62
