"""Accesses of every width at every place around the ends of a memory, on every back end, judged by the rule alone.

The rule: an access of w bytes at byte p of a memory of n bytes is made when 0 <= p, p + w <= n and p is a multiple of w. Otherwise a load
gives 0, a store does nothing, and the launch reports the least thread's first such access: outside, or else misaligned. Byte offsets are
64-bit numbers; an offset register of 32 bits counts from 0 to 2^32 - 1, and a displacement is added to it exactly.

One kernel a width makes an access in every way in which code is generated for it: lanes that are one access apart (forwards, backwards),
lanes that all have one place, lanes with a place each, alone or with others in one block of code, by element, by address; in a buffer, in
shared and in local memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest

from jit.errors import ToolchainError
from jit.kernels.launch import KernelLaunch
from tests.conformance.kernels.binding import Memory
from tests.support.kernel_devices import KERNEL_DEVICES, KernelDevice
from wis.kernel.model import TrapKind
from wis.kernel.text import parse_kernel
from wis.kernel.verify import verify_kernel

THREADS = 32
INNER = 48
"""Bytes of the shared and of the local memory."""
FILL = 0x77
SLOT = 16
"""Bytes of the result of one load of one thread."""
WIDTHS = {1: ("u8", 1), 2: ("u16", 1), 4: ("i32", 1), 8: ("i32x2", 2), 16: ("i32x4", 4)}


@dataclass
class Access:
    """An access of the kernel: what its lanes' places are made of, and what it touches."""

    kind: str  # load, store, element, shared, local
    form: str  # forth, back, same, table
    displacement: int = 0
    slot: int = -1
    site: int = -1


@dataclass
class Kernel:
    """The text of a kernel, and its accesses in order."""

    width: int
    bits: int
    accesses: list[Access] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    sites: int = 0
    slots: int = 0

    def text(self) -> str:
        """Registers: i32 r0-r3 data, r4 thread, r5 its out; places r6 forth, r7 back, r8 same, r9 table; r10, r11 scratch; i64 r12."""
        kind, count = WIDTHS[self.width]
        place = f"i{self.bits}"
        data = ", ".join(f"r{i}" for i in range(count))
        self.lines, self.accesses, self.sites, self.slots = [], [], 0, 0
        load, store = f"load({{}} {kind}{{}}) ", f"store({{}} {kind}{{}}) "
        for form, register in (("forth", 6), ("back", 7), ("same", 8), ("table", 9)):
            self._block()
            self._access("load", form, data, load.format("p0", ""), f"r{register}")
            self._block()
            self._access("store", form, data, store.format("p1", ""), f"r{register}")
            self._block()
            for displacement in (3 * self.width, -2 * self.width):
                self._access("load", form, data, load.format("p0", f" {displacement:+d}"), f"r{register}", displacement)
            self._access("store", form, data, store.format("p1", f" {5 * self.width:+d}"), f"r{register}", 5 * self.width)
            self._block()
            self._access("load", form, data, load.format("p0", f" {40 * self.width:+d}"), f"r{register}", 40 * self.width)
            self._block()
            if self.bits == 64:
                self.lines += [" r12 = addr(p0)", f" r12 = add r12, r{register}"]
                self._access("load", form, data, load.format("arena", ""), "r12")
                self.lines += [" r12 = addr(p1)", f" r12 = add r12, r{register}"]
                self._access("store", form, data, store.format("arena", ""), "r12")
                if count == 1:
                    self._block()
                    self._access("element", form, data, f"ld(p0 {kind}) ", f"r{register}")
            self._block()
            self._access("shared", form, data, store.format("s0", ""), f"r{register}")
            self._block()
            self._access("local", form, data, load.format("local", ""), f"r{register}")
        body = "\n".join(self.lines)
        fill = f"{FILL * 0x01010101}"
        convert = ["r11 = const(1)", "r6 = mul r4, r10", "r7 = sub r8, r6", "r6 = add r8, r6"]
        if self.bits == 64:
            convert = [f"r12 = const({self.width})", "r13 = sext r4", "r6 = mul r13, r12", "r7 = sub r8, r6", "r6 = add r8, r6"]
        return (
            f"kernel 2 edges\nmath native\nthreads {THREADS}\nparam buf u8 r\nparam buf u8 rw\nparam buf {place} r\nparam {place}\n"
            f"param buf u8 w\nparam buf u8 w\nshared i32[{INNER // 4}]\nlocal {INNER}\n"
            f"regs i32 i32 i32 i32 i32 i32 {place} {place} {place} {place} i32 i32 i64 i64 i32 pred\nblock 0\n"
            f" r4 = special(tid.x)\n r10 = const({self.slots * SLOT})\n r5 = mul r4, r10\n r10 = const({self.width})\n r8 = param(p3)\n "
            + "\n ".join(convert)
            + f"\n r13 = sext r4\n r9 = ld(p2 {place}) r13\n r14 = const(0)\n r11 = const({fill})\n"
            + "".join(f" store(local i32 +{at}) r14, r11\n" for at in range(0, INNER, 4))
            + f" br 1\nblock 1\n r11 = const(4)\n r11 = mul r4, r11\n r10 = const({INNER})\n r15 = lt_u r11, r10\n cbr r15, 2, 3\n"
            f"block 2\n r10 = const(0)\n store(s0 i32) r11, r10\n br 3\nblock 3\n sync 4, 0\nblock 4\n r10 = const({fill})\n"
            f"{body}\n{self._end()}"
        )

    def _end(self) -> str:
        """All wait for each other; then shared memory is copied out."""
        last = self._number + 1
        return (
            f" sync {last}, 0\nblock {last}\n cbr r15, {last + 1}, {last + 2}\nblock {last + 1}\n r0 = load(s0 i32) r11\n"
            f" store(p5 i32) r11, r0\n br {last + 2}\nblock {last + 2}\n ret\n"
        )

    @property
    def _number(self) -> int:
        return 4 + sum(line.startswith("block") for line in self.lines)

    def _block(self) -> None:
        if self.lines:
            number = self._number + 1
            self.lines += [f" br {number}", f"block {number}"]

    def _access(self, kind: str, form: str, data: str, text: str, register: str, displacement: int = 0) -> None:
        loads = kind in ("load", "element", "local")
        access = Access(kind, form, displacement)
        if loads:
            access.slot = self.slots
            self.lines += [f" {data} = {text}{register}", f" store(p4 {WIDTHS[self.width][0]} +{self.slots * SLOT}) r5, {data}"]
            self.slots += 1
        else:
            count = WIDTHS[self.width][1]
            self.lines += [f" {text}{register}, {', '.join(['r10'] * count)}"]
        self.accesses.append(access)

    def number_sites(self, text: str) -> None:
        """The place of every access among the ops that may trap."""
        mine = iter(self.accesses)
        trapping, own = 0, False
        for line in text.splitlines():
            own |= line == "block 4"
            if any(word in line for word in ("load(", "store(", "ld(")):
                if own and "store(p4" not in line and "p5" not in line and "r0 = load(s0" not in line:
                    next(mine).site = trapping
                trapping += 1


def place_of(kernel: Kernel, access: Access, base: int, table: list[int], thread: int) -> int:
    """The byte (for an access by element: the element) that the thread's access begins at."""
    offset = {"forth": base + thread * kernel.width, "back": base - thread * kernel.width, "same": base, "table": table[thread]}[
        access.form
    ]
    if kernel.bits == 32:
        return offset % (1 << 32) + access.displacement
    place = (offset + access.displacement) % (1 << 64)
    return place - (1 << 64) if place >= 1 << 63 else place


def expected(kernel: Kernel, n: int, data: bytes, base: int, table: list[int]) -> tuple[bytes, bytes, bytes, tuple[int, int, int] | None]:
    """(results, sink, shared memory, (thread, site, kind) of the trap) by the rule."""
    width = kernel.width
    results, sink, shared = bytearray(THREADS * kernel.slots * SLOT), bytearray(n), bytearray(INNER)
    traps = []
    for thread in range(THREADS):
        for access in kernel.accesses:
            place = place_of(kernel, access, base, table, thread)
            if access.kind == "element":
                place, size = place * width, n // width * width
            else:
                size = INNER if access.kind in ("shared", "local") else n
            if not 0 <= place <= size - width:
                traps.append((thread, access.site, TrapKind.OUTSIDE))
            elif place % width:
                traps.append((thread, access.site, TrapKind.MISALIGNED))
            elif access.slot >= 0:
                at = (thread * kernel.slots + access.slot) * SLOT
                results[at : at + width] = bytes([FILL] * width) if access.kind == "local" else data[place : place + width]
            else:
                (shared if access.kind == "shared" else sink)[place : place + width] = bytes([FILL] * width)
    return bytes(results), bytes(sink), bytes(shared), min(traps, default=None)


def bases(n: int, width: int, bits: int) -> list[int]:
    """Places around the beginning and the end, for lanes that go forth, back and nowhere; and far ones, where 32 and 64 bits end."""
    near = {edge + away * width + step for edge in (0, n, INNER) for away in (-32, -31, -1, 0, 31, 32) for step in (-1, 0, 1)}
    half, whole = 1 << (bits - 1), 1 << bits
    far = {edge + away * width for edge in (half, -half, whole) for away in (-32, -1, 0, 1, 31, 32)} | {
        1 << 62,
        -(1 << 62),
        1 << 32,
        -(1 << 32),
    }
    return sorted(near | {(place + half) % whole - half for place in far})


@pytest.fixture(scope="module", params=list(KERNEL_DEVICES))
def device(request: pytest.FixtureRequest) -> Iterator[tuple[str, KernelDevice]]:
    try:
        made = KERNEL_DEVICES[request.param]()
    except ToolchainError as error:
        pytest.skip(f"this machine has no {request.param}: {error}")
    yield request.param, made
    made.close()


@pytest.mark.parametrize("bits", [64, 32])
@pytest.mark.parametrize("width", WIDTHS)
def test_accesses_around_the_ends_of_a_memory(device: tuple[str, KernelDevice], width: int, bits: int) -> None:
    name, runs = device
    kernel = Kernel(width, bits)
    text = kernel.text()
    kernel.number_sites(text)
    verified = verify_kernel(parse_kernel(text))
    prepared = runs.prepare(verified, (THREADS, 1, 1))
    rng = np.random.default_rng(width * bits)
    every = {"host": 3, "opencl": 9}.get(name, 60)  # the others take longer for a launch
    outcomes = set()
    launches = [(n, base) for n in sorted({0, width - 1, width, width + 1, 80 * width + 1}) for base in bases(n, width, bits)]
    for n, base in launches[width % every :: every]:
        data = rng.integers(1, 256, n, np.uint8).tobytes()
        steps = rng.permutation(np.arange(-16, 16)) * (1 if rng.random() < 0.5 else width)
        kind = np.int32 if bits == 32 else np.int64
        table = [int(x) for x in np.array([base], kind) + steps.astype(kind)]
        memories = [Memory(data), Memory(bytes(n)), Memory(np.array(table, kind).tobytes())]
        results, shared = Memory(bytes(THREADS * kernel.slots * SLOT)), Memory(bytes(INNER))
        params = [*(m.inside for m in memories), base, results.inside, shared.inside]
        outcome = runs.run(prepared, KernelLaunch((1, 1, 1), (THREADS, 1, 1)), params)
        want = expected(kernel, n, data, base, table)
        got = outcome.trap and (outcome.trap.thread, outcome.trap.site, outcome.trap.kind)
        at = f"{n} bytes, base {base}"
        assert all(memory.intact for memory in (*memories, results, shared)), at
        assert memories[0].inside.tobytes() == data, at
        assert (got, memories[1].inside.tobytes()) == (want[3], want[1]), at
        wrong = np.flatnonzero(results.inside != np.frombuffer(want[0], np.uint8))
        assert not len(wrong), f"{at}: {kernel.accesses[0]} slot {divmod(int(wrong[0]) // SLOT, kernel.slots)}"
        assert shared.inside.tobytes() == want[2], at
        outcomes.add(outcome.trap and outcome.trap.kind)
    if name == "host":
        assert outcomes >= {TrapKind.OUTSIDE} | ({TrapKind.MISALIGNED} if width > 1 else set())
