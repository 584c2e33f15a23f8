"""Memory of the interpreter: the regions that a batch of threads can access, the effect of an access, and atomics: threads with the same
address take their turns in order of their numbers.

An access is judged in bytes: outside of its memory as a whole, then misaligned; what is neither is carried out. Loads that are not give
zeros, stores nothing, and both trap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wis.dtypes import DType
from wis.kernel.interpret.scalar import Array
from wis.kernel.model import LOCAL_BASE, SHARED_BASE, Atomic, BufferParam, Kernel, Space, TrapKind, shared_bytes, shared_offsets
from wis.kernel.model import Access as Rights

__all__ = ["FOLDS", "AccessSite", "BatchMemory", "Region", "Typed", "atomic"]

Indices = npt.NDArray[np.int64]
Typed = tuple[int, int, int]  # space, which, element type


@dataclass(frozen=True, slots=True)
class AccessSite:
    """The origin of an access: the function that reports traps, the threads (numbers in the batch), the op's number among those that
    trap."""

    trap: Callable[[TrapKind, Indices, int], None]
    threads: Indices
    site: int


@dataclass(frozen=True, slots=True)
class Region:
    """One memory. ``data`` holds it once (``stride`` 0) or every ``stride`` bytes for every unit of ``per`` threads; it starts ``start``
    bytes into its unit. Starts and strides are multiples of 16."""

    data: npt.NDArray[np.uint8]
    nbytes: int
    rights: int
    per: int = 1
    stride: int = 0
    start: int = 0

    def elements(self, dtype: int) -> Array:
        """The data as elements, bools as bytes."""
        kind = np.dtype(np.uint8) if dtype == DType.BOOL else DType(dtype).numpy
        return self.data[: len(self.data) // kind.itemsize * kind.itemsize].view(kind)

    def index(self, place: Array, itemsize: int, threads: Indices) -> Array:
        """Where the elements at byte offsets ``place`` of these threads are in ``elements``."""
        if not self.stride:
            return place // itemsize
        return (place + (threads // self.per * self.stride + self.start)) // itemsize


_BOTH = int(Rights.READ_WRITE)


class BatchMemory:
    """Everything that the threads of a batch reach. ``buffers``: u8 arrays by parameter; ``addresses``: of parameters, for ARENA."""

    def __init__(
        self, kernel: Kernel, buffers: dict[int, Array], addresses: Sequence[int], blocks: int, threads: int, dynamic_bytes: int
    ) -> None:
        self._addresses = addresses
        self._global = {
            n: Region(data, len(data), param.access) for n, data in buffers.items() if isinstance(param := kernel.params[n], BufferParam)
        }
        total = shared_bytes(kernel, dynamic_bytes)
        stride = -(-total // 16) * 16
        shared = np.zeros(blocks * stride, np.uint8)
        self._offsets = shared_offsets(kernel)
        ends = [offset + array.n * DType(array.dtype).itemsize for offset, array in zip(self._offsets, kernel.shared, strict=True)]
        ends[-1:] = [total] if ends else []
        self._shared = [Region(shared, end - start, _BOTH, threads, stride, start) for start, end in zip(self._offsets, ends, strict=True)]
        local_stride = -(-kernel.local_bytes // 16) * 16
        self._local = Region(np.zeros(blocks * threads * local_stride, np.uint8), kernel.local_bytes, _BOTH, 1, local_stride)
        self._const = Region(np.frombuffer(kernel.constants, np.uint8), len(kernel.constants), int(Rights.READ))
        self._arena = [(addresses[n], region) for n, region in self._global.items()]
        self._arena += [(SHARED_BASE, Region(shared, total, _BOTH, threads, stride)), (LOCAL_BASE, self._local)]

    def address(self, space: int, which: int) -> int:
        """Of a memory's first byte, in ARENA."""
        if space == Space.GLOBAL:
            return self._addresses[which]
        return SHARED_BASE + self._offsets[which] if space == Space.SHARED else LOCAL_BASE

    def parts(
        self, access: AccessSite, typed: Typed, offset: Array, displacement: int, count: int, need: int
    ) -> Iterator[tuple[Region, Indices | None, Array]]:
        """The accesses that are carried out: in which memory, which of the threads (None: all), index of the first element of each.

        ``need``: the rights (bits) that ARENA asks of a buffer; the verifier has checked those of GLOBAL.
        """
        space, which, dtype = typed
        place = (offset.view(np.uint32) if offset.dtype == np.int32 else offset).astype(np.int64) + np.int64(displacement)
        itemsize = DType(dtype).itemsize
        if space != Space.ARENA:
            yield from self._judged(access, self._region(space, which), None, place, itemsize, count)
            return
        lost = np.ones(len(place), np.bool_)
        for base, region in self._arena:
            found = lost & (place >= base) & (place - np.int64(base) < region.nbytes)
            if found.any():
                lost &= ~found
                chosen = np.flatnonzero(found)
                if region.rights & need == need:
                    yield from self._judged(access, region, chosen, place[chosen] - np.int64(base), itemsize, count)
                else:
                    access.trap(TrapKind.OUTSIDE, access.threads[chosen], access.site)
        if lost.any():
            access.trap(TrapKind.OUTSIDE, access.threads[lost], access.site)

    def _region(self, space: int, which: int) -> Region:
        if space == Space.GLOBAL:
            return self._global[which]
        if space == Space.SHARED:
            return self._shared[which]
        return self._local if space == Space.LOCAL else self._const

    def _judged(
        self, access: AccessSite, region: Region, chosen: Indices | None, place: Array, itemsize: int, count: int
    ) -> Iterator[tuple[Region, Indices | None, Array]]:
        width = itemsize * count
        threads = access.threads if chosen is None else access.threads[chosen]
        outside = (place < 0) | (place > region.nbytes - width)
        good = ~outside & (place % width == 0)
        if not good.all():
            if outside.any():
                access.trap(TrapKind.OUTSIDE, threads[outside], access.site)
            misaligned = ~outside & ~good
            if misaligned.any():
                access.trap(TrapKind.MISALIGNED, threads[misaligned], access.site)
            kept = np.flatnonzero(good)
            place, threads = place[kept], threads[kept]
            chosen = kept if chosen is None else chosen[kept]
        if len(place):
            yield region, chosen, region.index(place, itemsize, threads)

    def load(self, access: AccessSite, typed: Typed, offset: Array, displacement: int, targets: Sequence[np.dtype[Any]]) -> list[Array]:
        """Elements side by side at each offset, one for each of ``targets``, the registers' types."""
        results = [np.zeros(len(offset), target) for target in targets]
        for region, chosen, index in self.parts(access, typed, offset, displacement, len(targets), int(Rights.READ)):
            elements = region.elements(typed[2])
            for k, result in enumerate(results):
                found = _read(elements[index + k], typed[2], result.dtype)
                if chosen is None:
                    results[k] = found
                else:
                    result[chosen] = found
        return results

    def store(self, access: AccessSite, typed: Typed, offset: Array, displacement: int, values: Sequence[Array]) -> None:
        """Values side by side at each offset. Of threads that store to one place, the last one's stays."""
        for region, chosen, index in self.parts(access, typed, offset, displacement, len(values), int(Rights.WRITE)):
            elements = region.elements(typed[2])
            for k, value in enumerate(values):
                elements[index + k] = (value if chosen is None else value[chosen]).astype(elements.dtype)

    def _elements_inside(self, access: AccessSite, space: int, which: int, dtype: int, index: Array) -> tuple[Region, Array, Array]:
        """For the element-indexed ops: the memory, which threads are inside of it, the position of each."""
        region, itemsize = self._region(space, which), DType(dtype).itemsize
        inside = (index >= 0) & (index < region.nbytes // itemsize)
        if not inside.all():
            access.trap(TrapKind.OUTSIDE, access.threads[~inside], access.site)
        return region, inside, region.index(np.where(inside, index, 0) * itemsize, itemsize, access.threads)

    def load_element(self, access: AccessSite, space: int, which: int, dtype: int, index: Array, target: np.dtype[Any]) -> Array:
        """The element at each index; outside: 0, and a trap."""
        region, inside, position = self._elements_inside(access, space, which, dtype, index)
        if inside.all():
            return _read(region.elements(dtype)[position], dtype, target)
        result = np.zeros(len(index), target)
        result[inside] = _read(region.elements(dtype)[position[inside]], dtype, target)
        return result

    def store_element(self, access: AccessSite, space: int, which: int, dtype: int, index: Array, values: Array) -> None:
        """Store at each index; outside: nothing, and a trap."""
        region, inside, position = self._elements_inside(access, space, which, dtype, index)
        elements = region.elements(dtype)
        elements[position[inside]] = values[inside].astype(elements.dtype)


def _read(elements: Array, dtype: int, target: np.dtype[Any]) -> Array:
    return np.asarray(elements != 0) if dtype == DType.BOOL else elements.astype(target)


FOLDS: Final[dict[int, Any]] = {
    Atomic.ADD: np.add,
    Atomic.MIN: np.minimum,
    Atomic.MAX: np.maximum,
    Atomic.AND: np.bitwise_and,
    Atomic.OR: np.bitwise_or,
    Atomic.XOR: np.bitwise_xor,
}
"""Functions whose order does not matter on integers, as NumPy ufuncs."""


def atomic(
    memory: BatchMemory,
    access: AccessSite,
    typed: Typed,
    offset: Array,
    displacement: int,
    function: int,
    operands: Sequence[Array],
    wants_old: bool,
) -> Array | None:
    """Change memory; the old values as registers (0 where nothing was done) when they are wanted."""
    result = np.zeros(len(offset), operands[0].dtype) if wants_old else None
    for region, chosen, index in memory.parts(access, typed, offset, displacement, 1, int(Rights.READ_WRITE)):
        elements = region.elements(typed[2])
        given = [(x if chosen is None else x[chosen]).view(elements.dtype) for x in operands]
        if function in FOLDS and not wants_old:
            FOLDS[function].at(elements, index, given[0])
            continue
        old = _in_turn(elements, index, function, given)
        if result is not None:
            result[slice(None) if chosen is None else chosen] = old.view(result.dtype)
    return result


def _in_turn(elements: Array, index: Array, function: int, given: Sequence[Array]) -> Array:
    """The value each thread found; ``elements`` hold the last ones afterwards."""
    order = np.argsort(index, kind="stable")
    alone = np.diff(index[order], prepend=-1, append=-1) != 0
    if alone.all():
        old = elements[index]
        elements[index] = _new(function, old, given)
        return old
    if function in FOLDS and elements.dtype.kind in "iu":
        return _scanned(elements, index, order, FOLDS[function], given[0])
    return _one_by_one(elements, index, function, given)


def _new(function: int, old: Array, given: Sequence[Array]) -> Array:
    value = given[0]
    if function in FOLDS:
        return np.asarray(FOLDS[function](old, value))
    if function == Atomic.CAS:
        return np.where(old == value, given[1], old)
    if function == Atomic.INC:
        return np.where(old >= value, np.zeros((), old.dtype), old + np.ones((), old.dtype))
    if function == Atomic.DEC:
        return np.where((old == 0) | (old > value), value, old - np.ones((), old.dtype))
    return value  # EXCH


def _scanned(elements: Array, index: Array, order: Array, fold: Any, value: Array) -> Array:
    """Integer folds are associative: a running fold over the threads of each place, by doubling distances."""
    place, running = index[order], value[order]
    distance = 1
    first = np.flatnonzero(np.diff(place, prepend=-1))
    longest = int(np.diff(first, append=len(place)).max())
    while distance < longest:
        same = place[distance:] == place[:-distance]
        running[distance:] = np.where(same, fold(running[:-distance], running[distance:]), running[distance:])
        distance *= 2
    start = elements[place]
    found = start.copy()
    later = np.ones(len(place), np.bool_)
    later[first] = False
    behind = np.flatnonzero(later)
    found[behind] = fold(start[behind], running[behind - 1])
    last = np.append(first[1:] - 1, len(place) - 1)
    elements[place[last]] = fold(start[last], running[last])
    old = np.empty_like(found)
    old[order] = found
    return old


def _one_by_one(elements: Array, index: Array, function: int, given: Sequence[Array]) -> Array:
    step = _step(function, elements.dtype)
    current: dict[int, Any] = dict(zip(index.tolist(), elements[index].tolist(), strict=True))
    operands = [x.tolist() for x in given]
    found = []
    for place, *values in zip(index.tolist(), *operands, strict=True):
        old = current[place]
        found.append(old)
        current[place] = step(old, *values)
    elements[list(current)] = np.array(list(current.values()), elements.dtype)
    return np.array(found, elements.dtype)


def _step(function: int, dtype: np.dtype[Any]) -> Callable[..., Any]:
    if function == Atomic.ADD:  # a float sum; that of two f32 rounds from f64 as if rounded once
        return _add_f32 if dtype == np.float32 else lambda old, x: old + x
    return _STEPS[function]


def _add_f32(old: float, x: float) -> float:
    return float(np.float32(old + x))


_STEPS: Final[dict[int, Callable[..., Any]]] = {
    Atomic.EXCH: lambda old, x: x,
    Atomic.CAS: lambda old, expected, new: new if old == expected else old,
    Atomic.INC: lambda old, x: 0 if old >= x else old + 1,
    Atomic.DEC: lambda old, x: x if old == 0 or old > x else old - 1,
}
