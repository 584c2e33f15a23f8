"""Data model of kernels: their structure, the layout of a block's shared arrays, and the encoding.

Codes are wire format: never renumber, only append. Registers are mutable; a kernel is not in SSA form. Kernels are encoded as canonical
msgpack; the digest (wis.encoding.digest of the bytes) names a kernel in caches and logs. Version 1 is the first eight fields; its bytes
stay readable.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import msgspec

from wis.dtypes import DType
from wis.errors import DecodeError
from wis.kernel.limits import KERNEL_LIMITS, KernelLimits

__all__ = [
    "KERNEL_VERSION", "WARP", "SHARED_BASE", "LOCAL_BASE", "ADDRESS_SHIFT", "RegType", "Space", "Special", "Access", "Math", "Rounding",
    "Atomic", "Shuffle", "Vote", "Matrix", "Scope", "TrapKind", "BufferParam", "ScalarParam", "Shared", "Op", "Br", "Cbr", "Ret", "Bar",
    "Sync", "Switch", "Call", "Terminator", "Block", "Function", "Kernel", "successors", "branch_register", "terminator_reads",
    "shared_offsets", "shared_bytes", "encode_kernel", "decode_kernel",
]  # fmt: skip

KERNEL_VERSION: Final = 2
WARP: Final = 32
"""Threads that run together: thread ``t`` of a block is lane ``t % 32`` of warp ``t // 32``."""
SHARED_BASE: Final = 1 << 62
"""Address of the block's shared memory in the space ARENA."""
LOCAL_BASE: Final = 3 << 61
"""Address of the thread's local memory in the space ARENA."""
ADDRESS_SHIFT: Final = 20
"""A session's buffer with handle ``h`` has the address ``h << 20``, at the client and on every node."""


class RegType(IntEnum):
    """What a register holds. Integers are signless: signedness is the op's."""

    PRED = 0
    I16 = 1
    I32 = 2
    I64 = 3
    F16 = 4
    BF16 = 5
    F32 = 6
    F64 = 7

    @property
    def text(self) -> str:
        return self.name.lower()

    @property
    def bits(self) -> int:
        """Width in bits; 1 for pred."""
        return (1, 16, 32, 64, 16, 16, 32, 64)[self]


class Space(IntEnum):
    """Which memory a load or store means."""

    GLOBAL = 0  # a buffer parameter
    SHARED = 1  # an array of the block of threads
    LOCAL = 2  # the thread's own bytes
    CONST = 3  # the kernel's constants
    ARENA = 4  # wherever an address leads: the launch's buffers, shared or local memory


class Special(IntEnum):
    """Values that a thread is given. ``ctaid`` and ``nctaid`` are logical: a slice of a grid sees the whole grid's numbers."""

    TID_X = 0
    TID_Y = 1
    TID_Z = 2
    NTID_X = 3
    NTID_Y = 4
    NTID_Z = 5
    CTAID_X = 6
    CTAID_Y = 7
    CTAID_Z = 8
    NCTAID_X = 9
    NCTAID_Y = 10
    NCTAID_Z = 11
    LANE = 12  # position in the warp of 32
    WARP = 13  # the warp's number in the block
    DYNAMIC = 14  # bytes of shared memory that the launch added

    @property
    def text(self) -> str:
        return self.name.lower().replace("_", ".")


class Access(IntEnum):
    """What a kernel may do with a buffer parameter (a set of bits)."""

    READ = 1
    WRITE = 2
    READ_WRITE = 3


class Math(IntEnum):
    """How named functions (exp, sin, ...) are evaluated: to the same bits everywhere, or by the device's own within a tolerance."""

    STRICT = 0
    NATIVE = 1


class Rounding(IntEnum):
    """Which neighbour a result that is not representable becomes."""

    NEAREST = 0  # ties to even
    ZERO = 1
    DOWN = 2
    UP = 3


class Atomic(IntEnum):
    """What an atomic operation makes of the old value and its operand."""

    ADD = 0
    MIN = 1  # signed or unsigned as the element type is
    MAX = 2
    AND = 3
    OR = 4
    XOR = 5
    EXCH = 6
    CAS = 7  # ins: offset, expected, new
    INC = 8  # old >= operand ? 0 : old + 1 (unsigned)
    DEC = 9  # old == 0 or old > operand ? operand : old - 1 (unsigned)


class Shuffle(IntEnum):
    """From which lane ``shfl`` takes its value; the arithmetic of operands b and c is that of PTX's shfl.sync."""

    UP = 0
    DOWN = 1
    BFLY = 2
    IDX = 3


class Vote(IntEnum):
    """What ``vote`` asks of the lanes' predicates."""

    ANY = 0
    ALL = 1
    UNI = 2  # equal in all


class Matrix(IntEnum):
    """Elements of A and B that ``mma`` multiplies; sums are f32, of bytes i32."""

    F16 = 0
    BF16 = 1
    TF32 = 2  # f32 whose 13 lowest bits count as 0
    S8 = 3
    U8 = 4
    S8_U8 = 5
    U8_S8 = 6


class Scope(IntEnum):
    """Whom a fence orders memory for."""

    BLOCK = 0
    DEVICE = 1
    SYSTEM = 2


class TrapKind(IntEnum):
    """Why a thread trapped."""

    OUTSIDE = 0  # an access beyond its memory
    MISALIGNED = 1  # an access at an offset that is not a multiple of its size
    RAISED = 2  # the program said so (trap, a failed assertion)
    BARRIER = 3  # threads waited at barriers that can never complete


class BufferParam(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """A buffer of elements; ``dtype`` is a wis.dtypes code, a hint for addressing (each load and store names its own)."""

    dtype: int
    access: int


class ScalarParam(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A number, the same for all threads; ``reg_type`` is a RegType."""

    reg_type: int


class Shared(msgspec.Struct, frozen=True, array_like=True):
    """An array in the block's shared memory: ``n`` elements of ``dtype`` (a wis.dtypes code), zeros when a block of threads starts.

    In a kernel with ``dynamic``, the last array (element type u8) is longer by the bytes that the launch gives; its ``n`` may then be 0.
    """

    dtype: int
    n: int


class Op(msgspec.Struct, frozen=True, array_like=True):
    """One operation: registers written, registers read, integer attributes."""

    op: int
    outs: tuple[int, ...]
    ins: tuple[int, ...]
    attrs: tuple[int, ...] = ()


class Br(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """Go on at ``target``."""

    target: int


class Cbr(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Go on at ``yes`` where register ``pred`` is true, else at ``no``."""

    pred: int
    yes: int
    no: int


class Ret(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The thread ends."""


class Bar(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Wait for all threads of the block that have not ended, then go on at ``target``. The same as Sync with barrier 0 and no count."""

    target: int


class Sync(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Arrive at ``barrier`` (0 to 15) and, unless ``arrive`` is 1, wait; then go on at ``target``.

    ``count``: a register (i32) with the number of threads that complete the barrier, or -1: all of the block that have not ended.
    """

    target: int
    barrier: int
    count: int
    arrive: int


class Switch(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """Go on at ``targets[index]`` (register ``index``, i32, unsigned), or at ``default`` when there is none."""

    index: int
    targets: tuple[int, ...]
    default: int


class Call(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """Run function ``function`` with the values of ``ins``, put its results into ``outs``, go on at ``target``. No recursion."""

    function: int
    ins: tuple[int, ...]
    outs: tuple[int, ...]
    target: int


Terminator = Br | Cbr | Ret | Bar | Sync | Switch | Call


class Block(msgspec.Struct, frozen=True, array_like=True):
    """A basic block."""

    code: tuple[Op, ...]
    end: Terminator


class Function(msgspec.Struct, frozen=True, array_like=True):
    """What a Call runs: registers and blocks of its own; ``ins`` receive the arguments, ``outs`` hold the results at ``ret``."""

    name: str
    ins: tuple[int, ...]
    outs: tuple[int, ...]
    regs: tuple[int, ...]
    blocks: tuple[Block, ...]


class Kernel(msgspec.Struct, frozen=True, array_like=True):
    """One kernel. Threads start at block 0."""

    version: int
    name: str
    #: a Math policy
    math: int
    #: threads that a block of a launch may have
    threads_max: int
    params: tuple[BufferParam | ScalarParam, ...]
    shared: tuple[Shared, ...]
    #: a RegType for each register
    regs: tuple[int, ...]
    blocks: tuple[Block, ...]
    #: 1: a launch may add bytes to the last shared array
    dynamic: int = 0
    #: memory of each thread, zeroed
    local_bytes: int = 0
    #: bytes of the space CONST
    constants: bytes = b""
    functions: tuple[Function, ...] = ()
    #: source file; empty: unknown
    file: str = ""
    #: source line (0: unknown) of each op, in order of blocks, then of the functions; empty: unknown
    lines: tuple[int, ...] = ()


def successors(end: Terminator) -> tuple[int, ...]:
    """Blocks that may follow a terminator."""
    if isinstance(end, Cbr):
        return (end.yes, end.no) if end.yes != end.no else (end.yes,)
    if isinstance(end, Switch):
        return tuple(dict.fromkeys((*end.targets, end.default)))
    return () if isinstance(end, Ret) else (end.target,)


def branch_register(end: Terminator) -> int | None:
    """The register that decides where a thread goes next; None: there is no choice."""
    return end.pred if isinstance(end, Cbr) else end.index if isinstance(end, Switch) else None


def terminator_reads(end: Terminator) -> tuple[int, ...]:
    """The registers that a terminator reads; of a call, none."""
    decides = end.count if isinstance(end, Sync) and end.count >= 0 else branch_register(end)
    return () if decides is None else (decides,)


SHARED_ALIGN: Final = 16
"""Every shared array starts at a multiple of this many bytes."""


def shared_offsets(kernel: Kernel) -> tuple[int, ...]:
    """Byte offsets of the shared arrays from SHARED_BASE, in order."""
    offsets, end = [], 0
    for array in kernel.shared:
        offsets.append(-(-end // SHARED_ALIGN) * SHARED_ALIGN)
        end = offsets[-1] + array.n * DType(array.dtype).itemsize
    return tuple(offsets)


def shared_bytes(kernel: Kernel, dynamic: int = 0) -> int:
    """Bytes of shared memory of a block whose launch adds ``dynamic`` bytes to the last array."""
    if not kernel.shared:
        return 0
    last = kernel.shared[-1]
    return shared_offsets(kernel)[-1] + last.n * DType(last.dtype).itemsize + dynamic


class _Kernel1(msgspec.Struct, frozen=True, array_like=True):
    """A kernel of version 1."""

    version: int
    name: str
    math: int
    threads_max: int
    params: tuple[BufferParam | ScalarParam, ...]
    shared: tuple[Shared, ...]
    regs: tuple[int, ...]
    blocks: tuple[Block, ...]


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Kernel)


def encode_kernel(kernel: Kernel) -> bytes:
    """The one encoding of ``kernel``; for version 1 without the fields that came later."""
    if kernel.version != 1:
        return _encoder.encode(kernel)
    first = (kernel.version, kernel.name, kernel.math, kernel.threads_max, kernel.params, kernel.shared, kernel.regs, kernel.blocks)
    return _encoder.encode(_Kernel1(*first))


def decode_kernel(data: bytes, limits: KernelLimits = KERNEL_LIMITS) -> Kernel:
    """The kernel that ``data`` encodes; raises DecodeError on anything else. Meaning is not checked here."""
    if len(data) > limits.bytes_max:
        raise DecodeError(f"{len(data)} bytes, at most {limits.bytes_max} are accepted")
    try:
        kernel = _decoder.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:  # ValidationError is a DecodeError
        raise DecodeError(f"not a kernel: {error}") from None
    if not 1 <= kernel.version <= KERNEL_VERSION:
        raise DecodeError(f"version {kernel.version} is not supported; this side reads versions 1 to {KERNEL_VERSION}")
    if encode_kernel(kernel) != data:
        raise DecodeError("not in canonical form; encode it with wis.kernel.model.encode_kernel")
    return kernel
