"""Kernels on the host back end give what the definition gives: shapes of blocks, masks, barriers, edges of memory, fuel, traps."""

from __future__ import annotations

import ctypes
import mmap
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jit.errors import Interrupted, KernelRefused
from jit.host.simt.function import kernel_text
from jit.kernels.launch import CHECKED, KernelLaunch, KernelOptions
from tests.support.kernel_devices import HostKernels, ReferenceKernels
from tests.support.kernel_runs import differences, run_case
from tests.support.wis_kernels import seeded_case
from tests.unit.test_simt.running import agree, host, kernel
from wis.kernel.model import TrapKind
from wis.kernel.verify import verify_kernel

VADD = kernel((Path(__file__).parents[2] / "golden" / "wis" / "kernels" / "vadd.wisk").read_text())

COORDINATES = kernel(
    """
kernel 2 coordinates
math native
threads 64
param buf i32 w
param i64
regs i32 i32 i32 i32 i32 i32 i64
block 0
  r0 = special(ctaid.x)
  r1 = special(ctaid.y)
  r2 = special(ctaid.z)
  r3 = special(nctaid.x)
  r4 = special(nctaid.y)
  r5 = mul r2, r4
  r5 = add r5, r1
  r5 = mul r5, r3
  r5 = add r5, r0
  r6 = sext r5
  r3 = const(100)
  r4 = mul r2, r3
  r4 = add r4, r1
  r4 = mul r4, r3
  r4 = add r4, r0
  st(p0 i32) r6, r4
  ret
"""
)
"""Block number n writes 10000 z + 100 y + x to element n."""

PHASES = kernel(
    """
kernel 2 phases
math native
threads 96
param buf i32 rw
param i32
shared i32[96]
regs i32 i32 i32 i32 i32 i32 i64 pred
block 0
  r0 = special(tid.x)
  r6 = zext r0
  r1 = ld(p0 i32) r6
  r2 = param(p1)
  r3 = const(0)
  r4 = const(1)
  br 1
block 1
  st(s0 i32) r6, r3
  sync 2, 0
block 2
  r3 = add r3, r4
  sync 3, 0
block 3
  r5 = ld(s0 i32) r6
  r5 = mul r5, r0
  r1 = add r1, r5
  r7 = lt_s r3, r2
  cbr r7, 1, 4
block 4
  sync 5, 0
block 5
  st(p0 i32) r6, r1
  ret
"""
)
"""Each thread adds what it is times 0, 1, 2, ... to its element. Between the second and the third barrier the sum is not looked at, between
the third and the first only there."""

OVERTAKEN = kernel(
    """
kernel 2 overtaken
math native
threads 96
param buf i32 rw
param i32
shared i32[96]
regs i32 i32 i32 i32 i32 i32 i64 pred i64
block 0
  r0 = special(tid.x)
  r6 = zext r0
  r8 = const(0)
  r1 = const(0)
  r2 = param(p1)
  r3 = const(0)
  r4 = const(1)
  br 1
block 1
  r5 = add r3, r0
  st(s0 i32) r6, r5
  bar 2
block 2
  r3 = add r3, r4
  r5 = ld(s0 i32) r8
  r1 = add r1, r5
  r7 = lt_s r3, r2
  cbr r7, 1, 3
block 3
  st(p0 i32) r6, r1
  ret
"""
)
"""Each thread sums up what the first has stored in each round, without a barrier between that load and the next round's store."""

ENDLESS = kernel(
    """
kernel 2 endless
math native
threads 64
param i32
regs i32 pred
block 0
  r0 = param(p0)
  br 1
block 1
  r1 = eq r0, r0
  cbr r1, 1, 2
block 2
  ret
"""
)


def _floats(n: int) -> np.ndarray:
    return np.random.default_rng(n).standard_normal(n).astype(np.float32).view(np.uint8)


@pytest.mark.parametrize("block", [(256, 1, 1), (100, 1, 1), (16, 1, 1), (8, 2, 1), (33, 1, 1), (1, 1, 1)])
@pytest.mark.parametrize("n", [1, 777, 1024])
def test_every_shape_of_block(block: tuple[int, int, int], n: int) -> None:
    agree(VADD, (-(-n // block[0]), 1, 1), block, [_floats(n), _floats(n), _floats(n), n])


@pytest.mark.parametrize("grid", [(3, 2, 4), (1, 5, 3), (7, 1, 1), (1, 1, 6)])
@pytest.mark.parametrize("piece", [1, 2, 5, 24])
def test_blocks_know_their_place_in_the_grid(grid: tuple[int, int, int], piece: int) -> None:
    total = grid[0] * grid[1] * grid[2]
    found, block, device = np.zeros(4 * total, np.uint8), (32, 1, 1), host()
    prepared = device.prepare(COORDINATES, block)
    for first in range(0, total, piece):
        device.run(prepared, KernelLaunch(grid, block, first=first, count=min(piece, total - first)), [found, 0])
    x, y, z = (number.reshape(-1) for number in np.meshgrid(*map(np.arange, grid), indexing="ij"))
    order = np.argsort(x + grid[0] * (y + grid[1] * z))
    np.testing.assert_array_equal(found.view(np.int32), (10000 * z + 100 * y + x)[order])


def test_the_first_trap_is_reported() -> None:
    outcome = agree(VADD, (4, 1, 1), (256, 1, 1), [_floats(1000), _floats(900), _floats(800), 1000])
    assert outcome.trap is not None
    assert (outcome.trap.kind, outcome.trap.cta, outcome.trap.thread, outcome.trap.site) == (TrapKind.OUTSIDE, 3, 32, 2)


def test_an_index_whose_bytes_wrap_is_outside() -> None:
    verified = kernel(
        """
kernel 2 far
math native
threads 64
param buf i32 rw
param i64
regs i64 i32
block 0
  r0 = param(p1)
  r1 = ld(p0 i32) r0
  st(p0 i32) r0, r1
  ret
"""
    )
    for index in (1 << 62, -(1 << 62), -1, 1 << 61, 4):
        outcome = agree(verified, (1, 1, 1), (33, 1, 1), [np.ones(16, np.uint8), index])
        assert outcome.trap is not None and outcome.trap.kind is TrapKind.OUTSIDE


@pytest.mark.parametrize("back", ["br 0", "bar 0"])
@pytest.mark.parametrize("threads", [40, 64])
def test_a_loop_whose_head_is_the_first_block(back: str, threads: int) -> None:
    verified = kernel(
        f"""
kernel 2 head
math native
threads 64
param buf i32 rw
regs i32 i32 i32 pred i64 i32
block 0
  r0 = special(tid.x)
  r4 = sext r0
  r1 = ld(p0 i32) r4
  r5 = const(1)
  r2 = add r1, r5
  st(p0 i32) r4, r2
  r3 = lt_s r2, r0
  cbr r3, 1, 2
block 1
  {back}
block 2
  ret
"""
    )
    agree(verified, (1, 1, 1), (threads, 1, 1), [np.zeros(4 * threads, np.uint8)])


def test_threads_that_wait_apart_trap() -> None:
    """Half of a warp waits at one barrier, half at another: neither completes."""
    verified = kernel(
        """
kernel 2 apart
math native
threads 32
regs i32 i32 pred
block 0
  r0 = special(tid.x)
  r1 = const(7)
  r2 = lt_s r0, r1
  cbr r2, 1, 2
block 1
  sync 3, 1
block 2
  sync 3, 2
block 3
  ret
"""
    )
    outcome = agree(verified, (2, 1, 1), (32, 1, 1), [])
    assert outcome.trap is not None
    assert (outcome.trap.kind, outcome.trap.cta, outcome.trap.thread) == (TrapKind.BARRIER, 0, 0)


@pytest.mark.parametrize("seed", range(24))
def test_random_kernels(seed: int) -> None:
    case = seeded_case(seed, 30)
    verified = verify_kernel(case.kernel)
    assert not differences(run_case(ReferenceKernels(), verified, case), run_case(host(), verified, case))


@pytest.mark.parametrize("seed", range(40))
def test_random_kernels_in_blocks_of_one_thread(seed: int) -> None:
    case = seeded_case(500 + seed, 30)
    case = replace(case, block=(1, 1, 1))
    verified = verify_kernel(case.kernel)
    assert not differences(run_case(ReferenceKernels(), verified, case), run_case(host(), verified, case))


def test_kernels_that_trap_nowhere_do_the_same_without_checks() -> None:
    compared = 0
    for seed in range(60):
        case = seeded_case(900 + seed, 20)
        verified = verify_kernel(case.kernel)
        want = run_case(ReferenceKernels(), verified, case)
        if want.outcome.trap is None:
            compared += 1
            assert not differences(want, run_case(host(), verified, case, options=KernelOptions(check=False))), seed
    assert compared >= 10


def test_a_block_of_one_thread_is_scalar_code() -> None:
    text = kernel_text(VADD, "kernel", (1, 1, 1), 0, CHECKED)
    assert re.findall(r"<\d+ x ", text) == []


BROADCAST = """
kernel 2 broadcast
math native
threads 128
param buf i32 w
param i32
regs i32 i64 i32 i32 i32 pred i32 i32
block 0
  r0 = special(tid.x)
  r1 = zext r0
  r2 = const({source})
  r3 = const(31)
  r4 = const(-1)
  r7 = param(p1)
  r5 = lt_s r0, r7
  cbr r5, 1, 2
block 1
  r6, r5 = shfl(idx) r0, r2, r3, r4
  st(p0 i32) r1, r6
  br 2
block 2
  ret
"""


@pytest.mark.parametrize(("threads", "running"), [(64, 64), (64, 40), (48, 48), (128, 97)])
@pytest.mark.parametrize("source", [0, 7, 31])
def test_one_lane_to_all_others(threads: int, running: int, source: int) -> None:
    """All lanes run, or only some, of which the source may be none."""
    agree(kernel(BROADCAST.format(source=source)), (2, 1, 1), (threads, 1, 1), [np.zeros(4 * threads, np.uint8), running])


def test_a_broadcast_among_all_lanes_is_a_scalar() -> None:
    """Without the branch the lanes are together: one element is taken out of the vector."""
    together = BROADCAST.replace("  r5 = lt_s r0, r7\n  cbr r5, 1, 2\n", "  br 1\n").format(source=3)
    assert "extractelement <32 x i32>" in kernel_text(kernel(together), "kernel", (64, 1, 1), 0, CHECKED)
    agree(kernel(together), (2, 1, 1), (64, 1, 1), [np.zeros(256, np.uint8), 0])


def test_fuel_ends_an_endless_kernel() -> None:
    outcome = agree(ENDLESS, (4, 1, 1), (64, 1, 1), [1], fuel=100_000)
    assert outcome.out_of_fuel and outcome.instructions > 100_000


def test_fuel_that_is_just_enough() -> None:
    params = [_floats(512), _floats(512), _floats(512), 512]
    spent = agree(VADD, (2, 1, 1), (256, 1, 1), params).instructions
    assert not agree(VADD, (2, 1, 1), (256, 1, 1), params, fuel=spent).out_of_fuel
    assert agree(VADD, (2, 1, 1), (256, 1, 1), params, fuel=spent - 1).out_of_fuel


def test_an_endless_kernel_can_be_interrupted() -> None:
    device = HostKernels(None, 2)
    prepared = device.prepare(ENDLESS, (64, 1, 1))
    errors: list[BaseException] = []

    def run() -> None:
        try:
            device.run(prepared, KernelLaunch((4, 1, 1), (64, 1, 1)), [1])
        except Interrupted as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    while thread.is_alive():
        device.runner.interrupt()  # the first ones may come before the launch
        thread.join(0.01)
    device.close()
    assert len(errors) == 1


def test_slices_give_what_the_whole_gives() -> None:
    n = 5000
    a, b, whole, parts = _floats(n), _floats(n), np.zeros(4 * n, np.uint8), np.zeros(4 * n, np.uint8)
    device, grid, block = host(), (-(-n // 64), 1, 1), (64, 1, 1)
    prepared = device.prepare(VADD, block)
    total = device.run(prepared, KernelLaunch(grid, block), [a, b, whole, n]).instructions
    spent = 0
    for first in range(0, grid[0], 7):
        count = min(7, grid[0] - first)
        spent += device.run(prepared, KernelLaunch(grid, block, first=first, count=count), [a, b, parts, n]).instructions
    assert spent == total
    np.testing.assert_array_equal(parts, whole)


def test_a_compiled_kernel_is_found_again(tmp_path: Path) -> None:
    for compiled in (True, False):
        device = HostKernels(tmp_path, 1)
        before = len(list(tmp_path.iterdir()))
        device.prepare(VADD, (64, 1, 1))
        assert (len(list(tmp_path.iterdir())) > before) is compiled
        device.close()


@pytest.mark.parametrize("options", [KernelOptions(check=False), KernelOptions(fuel=False), KernelOptions(meter=False, fuel=False)])
def test_options_change_no_result(options: KernelOptions) -> None:
    n, device = 1000, host()
    a, b, c = _floats(n), _floats(n), np.zeros(4 * n, np.uint8)
    outcome = device.run(device.prepare(VADD, (256, 1, 1), options=options), KernelLaunch((4, 1, 1), (256, 1, 1)), [a, b, c, n])
    np.testing.assert_array_equal(c.view(np.float32), a.view(np.float32) + b.view(np.float32))
    assert bool(outcome.instructions) is options.meter


@pytest.mark.parametrize("n", [1, 5, 200, 300])
def test_lanes_that_do_not_run_read_nothing_when_nothing_is_checked(n: int) -> None:
    """The inputs end where readable memory ends."""
    device = host()
    prepared = device.prepare(VADD, (256, 1, 1), options=KernelOptions(check=False, meter=False, fuel=False))
    with _page() as a, _page() as b:
        a, b, c = a[-4 * n :], b[-4 * n :], np.zeros(4 * n, np.uint8)
        a[:], b[:] = _floats(n), _floats(n + 1)[: 4 * n]
        device.run(prepared, KernelLaunch((2, 1, 1), (256, 1, 1)), [a, b, c, n])
        np.testing.assert_array_equal(c.view(np.float32), a.view(np.float32) + b.view(np.float32))


@contextmanager
def _page() -> Iterator[np.ndarray]:
    """A page of memory with one behind it that must not be touched."""
    memory = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    whole = np.frombuffer(memory, np.uint8)
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    behind = whole.ctypes.data + mmap.PAGESIZE
    assert protect(behind, mmap.PAGESIZE, 0) == 0
    yield whole[: mmap.PAGESIZE]
    assert protect(behind, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE) == 0


@pytest.mark.parametrize("rounds", [0, 1, 5])
def test_registers_that_nothing_reads_between_two_barriers_keep_their_values(rounds: int) -> None:
    data = np.arange(100, 196, dtype=np.int32)
    want = data + np.arange(96, dtype=np.int32) * sum(range(max(rounds, 1)))
    agree(PHASES, (1, 1, 1), (96, 1, 1), [memory := data.view(np.uint8), rounds])
    np.testing.assert_array_equal(memory.view(np.int32), want)


@pytest.mark.parametrize("rounds", [1, 4])
def test_a_thread_does_not_overtake_a_load_of_what_it_overwrites(rounds: int) -> None:
    memory, device = np.zeros(4 * 96, np.uint8), host()
    prepared = device.prepare(OVERTAKEN, (96, 1, 1))
    outcome = device.run(prepared, KernelLaunch((1, 1, 1), (96, 1, 1)), [memory, rounds])
    assert memory.view(np.int32).tolist() == [sum(range(rounds))] * 96
    assert outcome.instructions == 96 * (8 + 3 * rounds + 5 * rounds + 2)


@pytest.mark.parametrize(("block", "dynamic"), [((0, 1, 1), 0), ((257, 1, 1), 0), ((32, 1, 1), 16)])
def test_what_is_refused(block: tuple[int, int, int], dynamic: int) -> None:
    with pytest.raises(KernelRefused):
        host().prepare(VADD, block, dynamic)


def test_a_launch_that_does_not_fit() -> None:
    prepared = host().prepare(VADD, (32, 1, 1))
    cases: tuple[tuple[KernelLaunch, list[Any]], ...] = (
        (KernelLaunch((1, 1, 1), (64, 1, 1)), [_floats(1), _floats(1), _floats(1), 1]),
        (KernelLaunch((1, 1, 1), (32, 1, 1), first=1, count=1), [_floats(1), _floats(1), _floats(1), 1]),
        (KernelLaunch((1, 1, 1), (32, 1, 1)), [_floats(1), _floats(1)]),
        (KernelLaunch((1, 1, 1), (32, 1, 1)), [_floats(1), 1, _floats(1), 1]),
    )
    for launch, params in cases:
        with pytest.raises(KernelRefused):
            host().run(prepared, launch, params)
