"""Kernels as bytes: canonical msgpack; the digest (wis.encoding.digest of the bytes) names a kernel in caches and logs."""

from __future__ import annotations

from typing import Final

import msgspec

from wis.errors import DecodeError
from wis.kernel.limits import KERNEL_LIMITS, KernelLimits
from wis.kernel.model import KERNEL_VERSION, Kernel

__all__ = ["encode_kernel", "decode_kernel"]

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Kernel)


def encode_kernel(kernel: Kernel) -> bytes:
    """The one encoding of ``kernel``."""
    return _encoder.encode(kernel)


def decode_kernel(data: bytes, limits: KernelLimits = KERNEL_LIMITS) -> Kernel:
    """The kernel that ``data`` encodes; raises DecodeError on anything else. Meaning is not checked here."""
    if len(data) > limits.bytes_max:
        raise DecodeError(f"{len(data)} bytes, at most {limits.bytes_max} are accepted")
    try:
        kernel = _decoder.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:  # ValidationError is a DecodeError
        raise DecodeError(f"not a kernel: {error}") from None
    if kernel.version != KERNEL_VERSION:
        raise DecodeError(f"version {kernel.version} is not supported; this side reads version {KERNEL_VERSION}")
    if _encoder.encode(kernel) != data:
        raise DecodeError("not in canonical form; encode it with wis.kernel.encoding.encode_kernel")
    return kernel
