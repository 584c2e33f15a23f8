"""Runs cases on kernel devices and reports differences as sentences."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from jit.kernels.launch import KernelLaunch
from tests.conformance.kernels.binding import Bound, Prepared, bind, build
from tests.golden.cuda.case import Case, Given
from tests.support.kernel_devices import KernelDevice

__all__ = ["FUEL", "Result", "run_case", "differences", "partition_faults", "partitions"]

Array = npt.NDArray[Any]
FUEL: Final = 500_000_000
"""Thread-instructions of a case's launch: far more than any takes, so a loop that does not end shows as such."""


@dataclass
class Result:
    """One case on one device. ``faults``: what is wrong. ``state``: what the kernel left, by argument or variable; where threads compete,
    only what does not depend on their order."""

    device: str
    faults: list[str] = field(default_factory=list)
    state: dict[int | str, Array] = field(default_factory=dict)
    instructions: int = 0
    seconds: float = 0.0


def run_case(case: Case, name: str, device: KernelDevice) -> Result:
    """The case, whole, judged against its answer."""
    result, prepared, given = Result(name), build(case), case.given()
    bound = bind(prepared, given)
    start = time.perf_counter()
    result.instructions = _launch(case, prepared, device, bound, [(0, prod(case.grid))], result.faults)
    result.seconds = time.perf_counter() - start
    result.state = _state(given, bound)
    for key, memory in bound.memories.items():
        if not memory.intact:
            result.faults.append(f"memory around {key!r} was written")
        if key in given.expect:
            result.faults += _wrong(key, result.state[key], np.asarray(given.expect[key]).ravel(), case)
        elif key not in given.order_free and bound.before[key] != memory.inside.tobytes():
            result.faults.append(f"{key!r} was changed")
    result.faults += [f"the module has no {key!r}" for key in given.expect if key not in bound.memories]
    return result


def _state(given: Given, bound: Bound) -> dict[int | str, Array]:
    """What memory holds, as arrays of its elements' types, without what depends on the order of threads."""
    state = {}
    for key, memory in bound.memories.items():
        like = given.args[key] if isinstance(key, int) else given.expect.get(key)
        left = memory.inside.copy() if like is None else memory.inside.copy().view(np.asarray(like).dtype)
        state[key] = given.order_free[key](left) if key in given.order_free else left
    return state


def _launch(
    case: Case, prepared: Prepared, device: KernelDevice, bound: Bound, pieces: Sequence[tuple[int, int]], faults: list[str]
) -> int:
    made = device.prepare(prepared.verified, case.block, case.shared)
    instructions = 0
    for first, count in pieces:
        launch = KernelLaunch(case.grid, case.block, case.shared, first, count, FUEL)
        outcome = device.run(made, launch, bound.params)
        instructions += outcome.instructions
        if outcome.trap is not None:
            site = outcome.trap.site
            line = prepared.verified.sites[site].line if site < len(prepared.verified.sites) else 0
            faults.append(f"trapped: {outcome.trap} (line {line})")
        if outcome.out_of_fuel:
            faults.append("ran out of fuel")
    return instructions


def _wrong(key: int | str, left: Array, expected: Array, case: Case) -> list[str]:
    if left.shape != expected.shape:
        return [f"{key!r} holds {left.shape[0]} elements, the answer {expected.shape[0]}"]
    if left.dtype != expected.dtype:
        return [f"{key!r} is {left.dtype}, the answer {expected.dtype}"]
    bad = ~_equal(left, expected)
    if case.rtol or case.atol:
        with np.errstate(all="ignore"):
            apart = np.abs(left.astype(np.float64) - expected.astype(np.float64))
            bad &= ~(apart <= case.atol + case.rtol * np.abs(expected.astype(np.float64)))
    if not bad.any():
        return []
    at = int(np.flatnonzero(bad)[0])
    return [f"{key!r}: {int(bad.sum())} of {bad.size} elements are wrong, first at {at}: {left[at]!r}, the answer is {expected[at]!r}"]


def _equal(a: Array, b: Array) -> Array:
    """Bit by bit, but any NaN is any other."""
    raw = np.dtype(f"u{a.dtype.itemsize}")
    same: Array = a.view(raw) == b.view(raw)
    return same if a.dtype.kind not in "fV" else same | (np.isnan(a.astype(np.float64)) & np.isnan(b.astype(np.float64)))


def differences(a: Result, b: Result, *, counts: bool) -> Iterator[str]:
    """What two devices do not agree on."""
    for key, left in a.state.items():
        same = _equal(left, b.state[key])
        if not same.all():
            at = int(np.flatnonzero(~same)[0])
            yield f"{key!r} differs between {a.device} and {b.device}, first at {at}: {left[at]!r}, {b.state[key][at]!r}"
    if counts and a.instructions != b.instructions:
        yield f"{a.device} counted {a.instructions} instructions, {b.device} {b.instructions}"


def partitions(blocks: int) -> list[list[tuple[int, int]]]:
    """Three ways to cut a grid: the last block first, in thirds backwards, every block alone in a scattered order."""
    third = -(-blocks // 3)
    thirds = [(at, min(third, blocks - at)) for at in range(0, blocks, third)]
    scattered = sorted(range(blocks), key=lambda b: (b * 7919 % blocks, b))
    return [[(blocks - 1, 1), (0, blocks - 1)], thirds[::-1], [(b, 1) for b in scattered]]


def partition_faults(case: Case, whole: Result, device: KernelDevice) -> list[str]:
    """What changes when a grid with a slice certificate is run in pieces; nothing may."""
    prepared, given = build(case), case.given()
    found: list[str] = []
    for pieces in partitions(prod(case.grid)):
        bound = bind(prepared, given)
        instructions = _launch(case, prepared, device, bound, pieces, found)
        cut = Result(f"{whole.device} in {len(pieces)} pieces", [], _state(given, bound), instructions)
        found += differences(whole, cut, counts=not case.racy)
    return found
