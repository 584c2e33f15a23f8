"""A device of the shared engine whose kernels run in the definition of the kernel tier, or on a kernel device: no driver is needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jit.accel.device import BUFFER_WORDS, GRID_WORDS, Bytes, Facts, Matrix, Request
from jit.kernels.launch import KernelLaunch
from tests.support.kernel_devices import KernelDevice, ReferenceKernels
from wis.dtypes import DType
from wis.kernel.model import BufferParam, RegType
from wis.kernel.traps import trap_key

__all__ = ["InterpretedDevice"]

_FLOATS = {RegType.F16: np.uint16, RegType.BF16: np.uint16, RegType.F32: np.uint32, RegType.F64: np.uint64}


class _Compiled:
    def __init__(self, request: Request, scratch_bytes: int) -> None:
        self.request, self.scratch_bytes = request, scratch_bytes


class InterpretedDevice:
    """``unified`` False: memory that the engine must copy from and to. ``scratch_bytes``: what blocks are said to need. ``kernels``: what
    runs kernels, None: the definition."""

    def __init__(
        self, *, unified: bool = True, products: frozenset[DType] = frozenset(), scratch_bytes: int = 0, kernels: KernelDevice | None = None
    ) -> None:
        self._scratch_bytes = scratch_bytes
        self._kernels = kernels if kernels is not None else ReferenceKernels()
        self.facts = Facts("interpreter", 1, unified, products)
        self.launches = 0
        self.compiled = 0
        self.freed = False

    def allocate(self, nbytes: int) -> Bytes:
        return np.zeros(max(nbytes, 1), np.uint8)

    def reserve(self, nbytes: int) -> Bytes | None:
        return np.zeros(nbytes, np.uint8)

    def part(self, buffer: Bytes, offset: int, nbytes: int) -> Bytes:
        return buffer[offset : offset + nbytes]

    def copy(self, source: Bytes, source_offset: int, target: Bytes, target_offset: int, nbytes: int) -> None:
        target[target_offset : target_offset + nbytes] = source[source_offset : source_offset + nbytes]

    def write(self, buffer: Bytes, offset: int, data: Bytes) -> None:
        buffer[offset : offset + data.size] = data

    def read(self, buffer: Bytes, offset: int, nbytes: int) -> Bytes:
        found = buffer[offset : offset + nbytes]
        return found if self.facts.unified else found.copy()

    def zero(self, buffer: Bytes, offset: int, nbytes: int) -> None:
        buffer[offset : offset + nbytes] = 0

    def view(self, buffer: Bytes) -> Bytes | None:
        return buffer if self.facts.unified else None

    def compile(self, requests: Sequence[Request]) -> list[_Compiled]:
        self.compiled += len(requests)
        return [_Compiled(request, self._scratch_bytes) for request in requests]

    def launch(
        self, kernel: _Compiled, count: int, buffers: Sequence[Bytes], table: Bytes, at: int, state: Bytes, scratch: Bytes | None
    ) -> int:
        self.launches += 1
        verified, words = kernel.request.verified, table.view(np.uint64)[at:] if table.size % 8 == 0 else table[8 * at :].view(np.uint64)
        params: list[Any] = []
        addresses: list[int] = []
        rest = iter(buffers)
        place = 0
        for param in verified.kernel.params:
            if isinstance(param, BufferParam):
                offset, nbytes, address = (int(word) for word in words[place : place + BUFFER_WORDS])
                params.append(next(rest)[offset : offset + nbytes])
                addresses.append(address)
                place += BUFFER_WORDS
            else:
                params.append(_number(RegType(param.reg_type), int(words[place])))
                addresses.append(0)
                place += 1
        x, y, z, first, blocks = (int(word) for word in words[place : place + GRID_WORDS])
        assert blocks == count
        assert not kernel.scratch_bytes or (scratch is not None and scratch.size >= count * kernel.scratch_bytes)
        known = state[:32].view(np.uint64)
        fuel = None if int(known[2]) == (1 << 64) - 1 else max(0, int(known[2]) - int(known[1]))
        request = kernel.request
        where = KernelLaunch((x, y, z), request.block, request.dynamic_bytes, first, count, fuel)
        prepared = self._kernels.prepare(verified, request.block, request.dynamic_bytes)
        outcome = self._kernels.run(prepared, where, params, addresses)
        known[1] += np.uint64(outcome.instructions)
        if outcome.trap is not None:
            known[0] = min(known[0], np.uint64(trap_key(outcome.trap)))
        return count

    def elapsed_ns(self, marks: Sequence[int]) -> list[int]:
        """As if a block took a microsecond."""
        return [1000 * count for count in marks]

    def product(self, dtype: DType, out: Matrix, a: Matrix, b: Matrix) -> None:
        size = dtype.itemsize
        result, left, right = (
            np.ndarray(x.shape, dtype.numpy, x.buffer, x.offset, tuple(s * size for s in x.strides)) for x in (out, a, b)
        )
        np.matmul(left, right, out=result)

    def wait(self, mark: Any) -> None:
        """Everything is done when it is asked."""

    def finish(self) -> None:
        """Everything is done when it is asked."""

    def close(self) -> None:
        self.freed = True


def _number(kind: RegType, word: int) -> Any:
    if kind in _FLOATS:
        bits = np.asarray(word, np.uint64).astype(_FLOATS[kind])
        name = {RegType.F16: DType.F16, RegType.BF16: DType.BF16, RegType.F32: DType.F32, RegType.F64: DType.F64}[kind]
        return float(bits.view(name.numpy))
    return word - (word >> 63 << 64) if kind is RegType.I64 else word
