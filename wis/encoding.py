"""Encodes programs as canonical msgpack, and computes the digest that names them.

A program has exactly one encoding, so its digest is its name on the wire, in caches and in the log. ``decode_program`` refuses
bytes that a re-encoding would not reproduce.
"""

from __future__ import annotations

from typing import Final

import msgspec
from blake3 import blake3

from wis.errors import DecodeError
from wis.limits import LIMITS, Limits
from wis.program import KERNELS_VERSION, VERSION, Program

DIGEST_BYTES: Final = 32

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Program)


def encode_program(program: Program) -> bytes:
    """The one encoding of ``program``."""
    if program.kernels:
        return _encoder.encode(program)
    return _encoder.encode((program.version, program.buffers, program.n_scalars, program.code))  # version 1 has no more fields


def decode_program(data: bytes, limits: Limits = LIMITS) -> Program:
    """The program that ``data`` encodes; raises DecodeError on anything else. Meaning is not checked here."""
    if len(data) > limits.program_bytes_max:
        raise DecodeError(f"{len(data)} bytes, at most {limits.program_bytes_max} are accepted; split the program")
    try:
        program = _decoder.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:  # ValidationError is a DecodeError
        raise DecodeError(f"not a program: {error}") from None
    if program.version != (KERNELS_VERSION if program.kernels else VERSION):
        raise DecodeError(
            f"version {program.version} is not supported; this side reads version {VERSION}, and {KERNELS_VERSION} with kernels"
        )
    if encode_program(program) != data:
        raise DecodeError("not in canonical form; encode it with wis.encoding.encode_program")
    return program


def digest(data: bytes) -> bytes:
    """The name (blake3, 32 bytes) of an encoded program or of dims."""
    return blake3(data).digest()
