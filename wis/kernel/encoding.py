"""Encodes kernels as canonical msgpack; the digest (wis.encoding.digest of the bytes) names a kernel in caches and logs.

Version 1 is the first eight fields; its bytes stay readable.
"""

from __future__ import annotations

from typing import Final

import msgspec

from wis.errors import DecodeError
from wis.kernel.limits import KERNEL_LIMITS, KernelLimits
from wis.kernel.model import KERNEL_VERSION, Block, BufferParam, Kernel, ScalarParam, Shared

__all__ = ["encode_kernel", "decode_kernel"]


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
        raise DecodeError("not in canonical form; encode it with wis.kernel.encoding.encode_kernel")
    return kernel
