"""Attacks by foreign addresses: other tenants' buffers, edges of shared and local memory, freed and read-only memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.adversarial.attack import CANARY_HANDLE, HANDLE, Completes, Refused, Shot, Traps, address, attack, attack_at, cuda, launch, wisk
from tests.adversarial.attacks.bounds import holds, words, zeros
from tests.conformance.kernels.binding import Bound
from wis.errors import VerifyError
from wis.kernel.model import LOCAL_BASE, SHARED_BASE, TrapKind

OUTSIDE = Traps(TrapKind.OUTSIDE)

_PEEK = """
kernel 2 peek
math strict
threads 32
param buf i64 r
param buf i32 rw
{more}regs i64 i64 i32 i64 i64 i32
block 0
  r0 = const(0)
  r5 = const({new})
  r4 = addr(p1)
  br 1
block 1
  r1 = load(p0 i64) r0
  {access}
  r2 = load(arena i32) r1
  r3 = const(8)
  r0 = add r0, r3
  store(p1 i32) r0, r2
  br 2
block 2
  ret
"""


def peek(forged: Sequence[int], access: str = "store(arena i32) r1, r5", more: str = "", new: int = 0x0BADF00D, **given: Any) -> Shot:
    """Thread 0 takes its address from p0, pokes it, and shows what it reads there in p1[2]."""
    text = _PEEK.format(access=access, more=more, new=new)
    return wisk(text, [np.array(forged, np.uint64).view(np.int64), words(8)], launch(block=1), **given)


def unread(bound: Bound) -> None:
    """What was read was zero, and nothing else changed."""
    holds(1, [1, 2, 0, 4, 5, 6, 7, 8])(bound)


def forged(*what: int) -> Shot:
    return peek(what, after=unread, constant=(0,))


@attack_at("pointers/where the canary's input really lies", OUTSIDE)
def real_input(pointers: Sequence[int]) -> Shot:
    """The address in this process of the buffer that the canary's kernel reads: no address of this launch."""
    return forged(pointers[0])


@attack_at("pointers/where the canary's other memory really lies", OUTSIDE)
def real_kept(pointers: Sequence[int]) -> Shot:
    """The address in this process of a buffer that is in no launch of the canary, and its last word."""
    return forged(pointers[1] + 4 * 255)


@attack("pointers/another tenant's handle", OUTSIDE)
def other_handle() -> Shot:
    """The address that the canary's buffer has in the canary's session."""
    return forged(address(CANARY_HANDLE))


@attack("pointers/address zero", OUTSIDE)
def null() -> Shot:
    """A null pointer."""
    return forged(0)


@attack("pointers/all ones", OUTSIDE)
def all_ones() -> Shot:
    """The last four bytes of 64 bits."""
    return forged(2**64 - 4)


@attack("pointers/sign bit", OUTSIDE)
def sign_bit() -> Shot:
    """The least signed address."""
    return forged(2**63)


@attack("pointers/before a buffer", OUTSIDE)
def before() -> Shot:
    """Four bytes before its own first buffer."""
    return forged(address(HANDLE) - 4)


@attack("pointers/behind a buffer", OUTSIDE)
def behind() -> Shot:
    """Right behind its own second buffer, where nothing of its own lies."""
    return forged(address(HANDLE + 1) + 32)


@attack("pointers/freed", OUTSIDE)
def freed() -> Shot:
    """A handle of its own session whose buffer was freed: not among the launch's parameters."""
    return forged(address(HANDLE + 2))


@attack("pointers/shared memory that there is not", OUTSIDE)
def no_shared() -> Shot:
    """The start of shared memory, in a kernel without any."""
    return forged(SHARED_BASE)


@attack("pointers/local memory that there is not", OUTSIDE)
def no_local() -> Shot:
    """The start of local memory, in a kernel without any."""
    return forged(LOCAL_BASE)


@attack("pointers/below shared memory", OUTSIDE)
def below_shared() -> Shot:
    """Four bytes before shared memory."""
    return peek([SHARED_BASE - 4], more="shared i32[8]\n", after=unread)


@attack("pointers/above shared memory", OUTSIDE)
def above_shared() -> Shot:
    """Right behind shared memory."""
    return peek([SHARED_BASE + 32], more="shared i32[8]\n", after=unread)


@attack("pointers/between shared arrays", OUTSIDE)
def between_shared() -> Shot:
    """Straddles the end of all shared memory by half a word... of eight bytes."""
    return peek([SHARED_BASE + 28], access="store(arena i64) r1, r1", more="shared i32[8]\n", after=lambda b: None)


@attack("pointers/below local memory", OUTSIDE)
def below_local() -> Shot:
    """Four bytes before the thread's own memory: that of the thread before, perhaps."""
    return peek([LOCAL_BASE - 4], more="local 64\n", after=unread)


@attack("pointers/above local memory", OUTSIDE)
def above_local() -> Shot:
    """Right behind the thread's own memory: that of the next thread, perhaps."""
    return peek([LOCAL_BASE + 64], more="local 64\n", after=unread)


@attack("pointers/own memory by address", Completes())
def own() -> Shot:
    """Its own buffer by its address: allowed, so that the refusals above are not for want of anything that works."""
    return peek([address(HANDLE + 1) + 20], after=holds(1, [1, 2, 0x0BADF00D, 4, 5, 0x0BADF00D, 7, 8]))


@attack("pointers/write to a read-only buffer", OUTSIDE)
def read_only() -> Shot:
    """A store by address to the buffer that is declared for reading."""
    return peek([address(HANDLE)], access="store(arena i32) r1, r5\n  r1 = const(0)", after=unread, constant=(0,))


@attack("pointers/atomic on a read-only buffer", OUTSIDE)
def read_only_atomic() -> Shot:
    """An atomic by address on the buffer that is declared for reading."""
    return peek([address(HANDLE)], access="r2 = atom(add arena i32) r1, r5\n  r1 = const(0)", after=unread, constant=(0,))


@attack("pointers/read of a write-only buffer", OUTSIDE)
def write_only() -> Shot:
    """A load by address from a buffer that is declared for writing: gives zero, not what lies there."""
    text = _PEEK.replace("param buf i32 rw", "param buf i32 w").format(access="r1 = mov r4", more="", new=0)
    return wisk(text, [np.zeros(1, np.int64), words(8)], launch(block=1), after=unread)


@attack("pointers/store to a parameter declared read-only", Refused(VerifyError, "access"))
def declared_read_only() -> Shot:
    """A plain store to a parameter that is declared for reading."""
    text = "kernel 2 k\nmath strict\nthreads 32\nparam buf i32 r\nregs i64 i32\n"
    text += "block 0\n  r0 = const(0)\n  r1 = const(1)\n  store(p0 i32) r0, r1\n  ret\n"
    return wisk(text, [words(8)], launch())


@attack("pointers/straddles two adjacent buffers", OUTSIDE)
def straddles() -> Shot:
    """Two buffers whose addresses follow each other: an access over the seam belongs to none."""
    at = address(HANDLE)
    return peek([at + 4], access="store(arena i64) r1, r1\n  r1 = const(0)", addresses=[at, at + 8], after=unread, constant=(0,))


@attack("pointers/real addresses of this process", OUTSIDE)
def real_addresses() -> Shot:
    """Where its own memory really lies in the process, in case a back end takes addresses at their word."""
    shot = peek([0], after=unread)
    table = shot.bound.memories[0].inside
    table.view(np.uint64)[0] = shot.bound.memories[1].inside.__array_interface__["data"][0]
    return shot


@attack("pointers/linked list with a forged link", OUTSIDE)
def linked_list() -> Shot:
    """A kernel that follows pointers stored in a buffer; one of them leads to the canary."""
    source = """struct Node { Node *next; int value; int pad; };
    extern "C" __global__ void k(Node *nodes, int *out, int steps) {
        Node *at = nodes;
        int sum = 0;
        for (int i = 0; i < steps && at; i++) {
            sum += at->value;
            at->value = -1;
            at = at->next;
        }
        *out = sum;
    }"""
    nodes = np.zeros((3, 2), np.int64)
    nodes[:, 0] = address(HANDLE) + 16, address(HANDLE) + 32, address(CANARY_HANDLE)
    nodes[:, 1] = 5, 6, 7
    return cuda(source, [nodes, zeros(1), np.int32(10)], launch(block=1), after=holds(1, [18]))


@attack("pointers/difference of two buffers", OUTSIDE)
def difference() -> Shot:
    """From one buffer to another by the difference of their addresses: what is derived from a pointer stays in its buffer."""
    source = """extern "C" __global__ void k(const int *a, const int *b, int *out, const long long *apart) {
        const int *p = (const int *)((const char *)a + *apart);
        if (*apart == (const char *)b - (const char *)a) out[threadIdx.x] = p[threadIdx.x] + b[0];
    }"""
    apart = np.array([address(1)], np.int64)
    return cuda(source, [words(32), words(32) * 2, zeros(32), apart], launch(), after=holds(2, [2] * 32))


@attack("pointers/integer made a pointer", OUTSIDE)
def cast() -> Shot:
    """A pointer made of an integer argument, read and written, over a whole grid of guesses at handles."""
    source = """extern "C" __global__ void k(long long first, int *out) {
        int *p = (int *)((first + blockIdx.x * blockDim.x + threadIdx.x) << 20);
        atomicAdd(out, *p);
        *p = 0x0BADF00D;
    }"""
    return cuda(source, [np.int64(CANARY_HANDLE - 100), zeros(1)], launch(grid=16, block=128), after=holds(1, [0]))
