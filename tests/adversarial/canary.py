"""The canary: a tenant beside the attacker that keeps data in buffers, shared and local memory and checks its results."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from jit.kernels.launch import KernelLaunch
from tests.conformance.kernels.binding import Memory
from tests.support.kernel_devices import KernelDevice
from wis.kernel.text import parse_kernel
from wis.kernel.verify import verify_kernel

__all__ = ["SECRET", "BLOCK", "KERNEL", "Canary"]

SECRET: Final = 0x5EC2E75E
"""What the canary leaves all over its shared and local memory: no other session may ever read it."""
BLOCK: Final = 64
_WORDS: Final = 4096

KERNEL: Final = f"""
kernel 2 canary
math strict
threads {BLOCK}
param buf i32 r
param buf i32 w
shared i32[{_WORDS}]
local 256
regs i32 i32 i32 i32 pred i32 i32 i32
block 0
  r0 = special(tid.x)
  r1 = const(4)
  r2 = mul r0, r1
  r3 = const({SECRET})
  r7 = const({BLOCK * 4})
  r6 = const(0)
  br 1
block 1
  store(s0 i32) r2, r3
  store(local i32) r6, r3
  r2 = add r2, r7
  r6 = add r6, r1
  r5 = const({_WORDS * 4})
  r4 = lt_u r2, r5
  cbr r4, 1, 2
block 2
  bar 3
block 3
  r2 = special(ctaid.x)
  r5 = special(ntid.x)
  r2 = mul r2, r5
  r2 = add r2, r0
  r2 = mul r2, r1
  r5 = load(p0 i32) r2
  r6 = mul r0, r1
  r7 = load(s0 i32) r6
  r5 = add r5, r7
  store(p1 i32) r2, r5
  ret
"""


class Canary:
    """One session's data and kernel on a device that others use too."""

    def __init__(self, device: KernelDevice) -> None:
        self._device = device
        self._prepared = device.prepare(verify_kernel(parse_kernel(KERNEL)), (BLOCK, 1, 1))
        self.data: npt.NDArray[np.uint32] = np.random.default_rng(7).integers(0, 2**32, 4 * BLOCK, dtype=np.uint32)
        self._input = Memory(self.data.tobytes())
        self._kept = Memory(np.full(4 * BLOCK, SECRET, np.uint32).tobytes())
        self._expected = (self.data + np.uint32(SECRET)).tobytes()

    @property
    def pointers(self) -> tuple[int, ...]:
        """Where its memory really lies in this process: addresses that an attacker forges."""
        return tuple(int(m.inside.__array_interface__["data"][0]) for m in (self._input, self._kept))

    def traces(self, memory: bytes) -> int:
        """How often anything that only the canary keeps stands in ``memory``, at whatever byte: its secret, and words of its input."""
        words = {SECRET.to_bytes(4, "little"), *(int(word).to_bytes(4, "little") for word in self.data)}
        return sum(memory[at : at + 4] in words for at in range(len(memory) - 3))

    def sing(self) -> Any:
        """Run its kernel; its result must be its own, and its other memory as it was."""
        out = Memory(bytes(len(self._expected)))
        outcome = self._device.run(self._prepared, KernelLaunch((4, 1, 1), (BLOCK, 1, 1)), [self._input.inside, out.inside])
        assert outcome.trap is None and not outcome.out_of_fuel
        assert out.inside.tobytes() == self._expected, "the canary's result changed"
        assert self._input.inside.tobytes() == self.data.tobytes(), "the canary's input changed"
        assert bool((self._kept.inside.view(np.uint32) == SECRET).all()), "the canary's memory changed"
        assert self._input.intact and self._kept.intact and out.intact
        return outcome.instructions
