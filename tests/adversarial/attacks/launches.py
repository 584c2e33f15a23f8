"""Attacks by launches of a harmless kernel with invalid shapes and arguments."""

from __future__ import annotations

from functools import partial

import numpy as np

from jit.errors import KernelRefused
from jit.kernels.launch import KernelLaunch
from tests.adversarial.attack import ATTACKS, Attack, Refused, Shot, wisk
from tests.adversarial.attacks.bounds import words
from wis.kernel.limits import KERNEL_LIMITS

_HARMLESS = """kernel 2 k
math strict
threads {threads}
param buf i32 rw
param i32
{more}regs i32 i32
block 0
  r0 = const(0)
  r1 = param(p1)
  store(p0 i32) r0, r1
  ret
"""


def _shot(where: KernelLaunch, args: list[object] | None = None, more: str = "", threads: int = 1024) -> Shot:
    return wisk(_HARMLESS.format(more=more, threads=threads), [words(8), 5] if args is None else args, where)


def _shape(grid: tuple[int, int, int] = (1, 1, 1), block: tuple[int, int, int] = (32, 1, 1), dynamic: int = 0) -> KernelLaunch:
    return KernelLaunch(grid, block, dynamic, fuel=1_000_000)


_DYNAMIC = "shared u8[0]\ndynamic 1\n"
_MOST = KERNEL_LIMITS.dynamic_shared_bytes_max
_FLOATS = words(8).astype(np.float32)

_LAUNCHES = {
    "grid of 2^31 blocks": partial(_shot, _shape(grid=(2**31, 1, 1))),
    "grid of 2^63 blocks": partial(_shot, _shape(grid=(2**31 - 1, 2**31 - 1, 2))),
    "grid that wraps to one block": partial(_shot, _shape(grid=(2**32 + 1, 1, 1))),
    "grid of nothing": partial(_shot, _shape(grid=(0, 1, 1))),
    "grid of less than nothing": partial(_shot, _shape(grid=(-1, -1, 1))),
    "block of 1025": partial(_shot, _shape(block=(1025, 1, 1))),
    "block of nothing": partial(_shot, _shape(block=(32, 0, 1))),
    "block of less than nothing": partial(_shot, _shape(block=(-32, -1, 1))),
    "block that wraps to one thread": partial(_shot, _shape(block=(65537, 65537, 1))),
    "block over the kernel's own bound": partial(_shot, _shape(block=(96, 1, 1)), threads=64),
    "shared memory over the limit": partial(_shot, _shape(dynamic=_MOST + 1), more=_DYNAMIC),
    "shared memory over the limit with the static part": partial(_shot, _shape(dynamic=_MOST), more="shared i32[8]\n" + _DYNAMIC),
    "shared memory of less than nothing": partial(_shot, _shape(dynamic=-16), more=_DYNAMIC),
    "shared memory for a kernel that takes none": partial(_shot, _shape(dynamic=16)),
    "too few arguments": partial(_shot, _shape(), [words(8)]),
    "too many arguments": partial(_shot, _shape(), [words(8), 5, 5]),
    "number for a buffer": partial(_shot, _shape(), [5, 5]),
    "buffer for a number": partial(_shot, _shape(), [words(8), words(8)]),
    "nothing for a buffer": partial(_shot, _shape(), [None, 5]),
    "slice beyond the grid": partial(_shot, KernelLaunch((4, 1, 1), (32, 1, 1), first=2, count=3)),
    "slice before the grid": partial(_shot, KernelLaunch((4, 1, 1), (32, 1, 1), first=-1, count=2)),
    "slice of less than nothing": partial(_shot, KernelLaunch((4, 1, 1), (32, 1, 1), first=0, count=-1)),
}

for _name, _aim in _LAUNCHES.items():
    ATTACKS[f"launch/{_name}"] = Attack(f"launch/{_name}", f"A launch that is none: {_name}.", Refused(KernelRefused), _aim)
