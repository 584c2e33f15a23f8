"""The text form of kernels and modules: prints any of them, also broken ones with findings beside the lines; parses what it prints.

::

    kernel 2 vadd
    math strict
    threads 256
    param buf f32 r
    param i64
    shared f32[256]
    shared u8[0]
    dynamic 1
    local 64
    constants 0000803f00000040
    file "vadd.cu"
    regs i32 i64 f32 f32 pred
    block 0
      r0 = special(tid.x) @4
      r1 = sext r0
      r2 = ld(p0 f32) r1
      r2, r3 = load(p0 f32x2 +16 volatile) r0
      st(s0 f32) r1, r2
      sync 1, 0
    block 1
      call 0 (r2) -> (r3), 2
    block 2
      ret
    function 0 twice (r0) -> (r1)
    regs f32 f32
    block 0
      r1 = add r0, r0
      ret

Parameters are p0, p1, ... and shared arrays s0, s1, ... in order of their lines; registers r0, r1, ... have the types of the ``regs`` line
above. Memory in an access is ``pN``, ``sN``, ``local``, ``const`` or ``arena``; ``x2``: elements side by side; ``+16``: bytes added to the
offset. ``@4``: the line of the source file. A block ends in ``br B``, ``cbr rP, YES, NO``, ``switch rI, [B, ...], DEFAULT``, ``bar B``,
``sync B, BARRIER[, rCOUNT]``, ``arrive B, BARRIER, rCOUNT``, ``call F (rA, ...) -> (rR, ...), B`` or ``ret``. Constants are written as
values of their register's type, or as ``bits:0x..``. Names that are no identifiers stand in quotes, as in JSON. ``;`` starts a comment.
What cannot be said so is written in numbers, behind ``#``.
"""

from wis.kernel.text.modules import parse_module, print_module
from wis.kernel.text.parser import parse_kernel
from wis.kernel.text.printer import print_kernel

__all__ = ["print_kernel", "parse_kernel", "print_module", "parse_module"]
