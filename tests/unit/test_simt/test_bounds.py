"""What becomes too much code is refused, before the compiler sees it."""

from __future__ import annotations

import pytest

from jit.errors import KernelRefused
from jit.host.simt.function import kernel_text
from jit.kernels.launch import CHECKED
from wis.kernel.text import parse_kernel
from wis.kernel.verify import verify_kernel


def test_a_kernel_that_becomes_too_much_code_is_refused() -> None:
    """A thousand ways to go for lanes apart: what a way costs grows with their number."""
    ways = range(1, 1001)
    lines = [
        "kernel 2 ways\nmath strict\nthreads 64\nparam buf i32 rw\nregs i32 i64 i32\nblock 0\n  r0 = special(tid.x)\n  r1 = sext r0",
        f"  r2 = ld(p0 i32) r1\n  switch r2, [{', '.join(map(str, ways))}], 1001",
        *(f"block {way}\n  r2 = add r2, r0\n  st(p0 i32) r1, r2\n  br 1001" for way in ways),
        "block 1001\n  ret\n",
    ]
    with pytest.raises(KernelRefused, match="too much code"):
        kernel_text(verify_kernel(parse_kernel("\n".join(lines))), "f", (64, 1, 1), 0, CHECKED)
