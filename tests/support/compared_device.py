"""A device of the shared engine that executes every launch a second time, by the definition, and compares the bytes of all its memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jit.accel.device import BUFFER_WORDS, Bytes, Device, Facts, Request
from tests.support.interpreted_device import InterpretedDevice
from tests.support.kernel_devices import KernelDevice
from tests.unit.test_jit.conftest import ulps
from wis.dtypes import DType
from wis.kernel.model import Atomic, BufferParam, Math
from wis.kernel.ops import BY_CODE, NAMED, Sig

__all__ = ["Compared", "Tally"]


@dataclass
class Tally:
    """``kernels``: by name, the greatest distance of a result from the definition's in units of the last place, over all launches."""

    launches: int = 0
    kernels: dict[str, float] = field(default_factory=dict)
    inexact: set[str] = field(default_factory=set)  # names of those that have no strict form, or whose threads add floats in any order

    @property
    def equal(self) -> int:
        """Kernels of which every launch left the same bits (any NaN is any NaN)."""
        return sum(not off for off in self.kernels.values())

    @property
    def wrong(self) -> list[str]:
        """Kernels that must leave the same bits and did not."""
        return [name for name, off in self.kernels.items() if off and name not in self.inexact]

    @property
    def near(self) -> list[float]:
        """How far those are off that may be."""
        return [off for name, off in self.kernels.items() if off and name in self.inexact]

    def merge(self, other: Tally) -> None:
        """Count what another process executed."""
        self.launches += other.launches
        self.inexact |= other.inexact
        for name, off in other.kernels.items():
            self.kernels[name] = max(off, self.kernels.get(name, 0.0))


class _Compiled:
    def __init__(self, inner: Any, second: Any, request: Request) -> None:
        self.inner, self.second, self.request = inner, second, request

    @property
    def scratch_bytes(self) -> int:
        return int(self.inner.scratch_bytes)


class Compared:
    """``inner`` with that check. ``kernels``: what stands for the definition; None: the definition itself. ``most``: launches of each
    kernel that are compared, 0: all."""

    def __init__(self, inner: Device, kernels: KernelDevice | None = None, most: int = 0) -> None:
        self._inner: Any = inner
        self._most, self._seen = most, Counter[str]()
        self._second = InterpretedDevice(unified=False, kernels=kernels)
        self.tally = Tally()

    @property
    def facts(self) -> Facts:
        facts: Facts = self._inner.facts
        return facts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def compile(self, requests: Sequence[Request]) -> list[_Compiled]:
        made = zip(self._inner.compile(requests), self._second.compile(requests), requests, strict=True)
        return [_Compiled(inner, second, request) for inner, second, request in made]

    def launch(self, kernel: _Compiled, count: int, buffers: Sequence[Any], table: Any, at: int, state: Any, scratch: Any) -> Any:
        inner, name = self._inner, kernel.request.verified.kernel.name
        self._seen[name] += 1
        if self._most and self._seen[name] > self._most:
            return inner.launch(kernel.inner, count, buffers, table, at, state, scratch)
        places = {buffer.address: buffer for buffer in buffers}
        before = {address: inner.read(buffer, 0, buffer.nbytes) for address, buffer in places.items()}
        words, begun = inner.read(table, 0, table.nbytes), inner.read(state, 0, state.nbytes)
        mark = inner.launch(kernel.inner, count, buffers, table, at, state, scratch)
        inner.finish()
        second: Any = kernel.second
        self._second.launch(second, count, [before[b.address] for b in buffers], words, at, begun, None)
        off = self._off(kernel.request, [b.address for b in buffers], words[8 * at :].view(np.uint64), before, places)
        if kernel.request.options.check:
            after = inner.read(state, 0, 16)
            off = max(off, 0.0 if after.tobytes() == begun[:16].tobytes() else np.inf)
        self._note(kernel.request, off)
        return mark

    def _off(self, request: Request, addresses: list[int], words: Any, want: dict[int, Bytes], places: dict[int, Any]) -> float:
        """The greatest difference in units of the last place; infinite where other bytes than those of results changed."""
        found = {address: self._inner.read(buffer, 0, buffer.nbytes) for address, buffer in places.items()}
        worst, place, rest = 0.0, 0, iter(addresses)
        for param in request.verified.kernel.params:
            if not isinstance(param, BufferParam):
                place += 1
                continue
            offset, nbytes = int(words[place]), int(words[place + 1])
            place += BUFFER_WORDS
            address, dtype = next(rest), DType(param.dtype)
            a, b = (x[address][offset : offset + nbytes // dtype.itemsize * dtype.itemsize] for x in (found, want))
            if dtype.is_float and a.tobytes() != b.tobytes():
                worst = max(worst, float(_distance(a.view(dtype.numpy), b.view(dtype.numpy)).max()))
                b[:] = a
        return worst if all(found[address].tobytes() == want[address].tobytes() for address in found) else np.inf

    def _note(self, request: Request, off: float) -> None:
        kernel = request.verified.kernel
        self.tally.launches += 1
        self.tally.kernels[kernel.name] = max(off, self.tally.kernels.get(kernel.name, 0.0))
        codes = [op for block in request.verified.core.blocks for op in block.code]
        native = kernel.math == Math.NATIVE and any(BY_CODE[op.op].name in NAMED for op in codes)
        adds = any(BY_CODE[op.op].sig in (Sig.ATOM, Sig.RED) and DType(op.attrs[2]).is_float and op.attrs[3] == Atomic.ADD for op in codes)
        if native or adds:
            self.tally.inexact.add(kernel.name)


def _distance(a: Any, b: Any) -> Any:
    bits = np.dtype(f"u{a.dtype.itemsize}")
    off = ulps(a, b)
    return np.where((off == 0) & (a.view(bits) != b.view(bits)) & ~np.isnan(b.astype(np.float64)), 0.5, off)  # 0 and -0
