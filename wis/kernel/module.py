"""Modules: the result of one CUDA source or PTX file. Kernels, the layout of their arguments, and the variables they share.

A module's file (``.wis``) is its canonical msgpack.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import msgspec

from wis.errors import DecodeError
from wis.kernel.model import Kernel

__all__ = ["MODULE_VERSION", "ArgKind", "Field", "Argument", "Entry", "Variable", "Module", "encode_module", "decode_module"]

MODULE_VERSION: Final = 1
MODULE_BYTES_MAX: Final = 32 << 20


class ArgKind(IntEnum):
    """What a caller gives for an argument."""

    BUFFER = 0  # a tensor (or None: no memory); ``param`` is a BufferParam
    SCALAR = 1  # a number; ``param`` is a ScalarParam
    STRUCT = 2  # bytes, of which ``fields`` become parameters
    VARIABLE = 3  # nothing: the module's variable number ``variable``; ``param`` is a BufferParam


class Field(msgspec.Struct, frozen=True, array_like=True):
    """A scalar inside of a struct argument: byte offset, wis.dtypes code, and the ScalarParam it becomes."""

    offset: int
    dtype: int
    param: int


class Argument(msgspec.Struct, frozen=True, array_like=True):
    """One argument of a kernel as its source declares it (VARIABLE ones come last and are not the caller's).

    ``dtype``: wis.dtypes code of a SCALAR as declared (u8, s16, ...), 0 otherwise; ``nbytes``: size of a STRUCT.
    """

    kind: int
    name: str
    param: int = -1
    dtype: int = 0
    nbytes: int = 0
    fields: tuple[Field, ...] = ()
    variable: int = -1


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """A kernel of the module under the name it has in the source (mangled C++ names as they are)."""

    name: str
    kernel: Kernel
    arguments: tuple[Argument, ...]


class Variable(msgspec.Struct, frozen=True, array_like=True):
    """A ``__device__`` or ``__constant__`` variable: a buffer that lives as long as the module is loaded; ``data`` are its first bytes, the
    rest (up to ``nbytes``) zeros."""

    name: str
    nbytes: int
    constant: int
    data: bytes


class Module(msgspec.Struct, frozen=True, array_like=True):
    version: int
    entries: tuple[Entry, ...]
    variables: tuple[Variable, ...] = ()


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Module)


def encode_module(module: Module) -> bytes:
    """The one encoding of ``module``."""
    return _encoder.encode(module)


def decode_module(data: bytes) -> Module:
    """The module that ``data`` encodes; raises DecodeError on anything else. Meaning is not checked here."""
    if len(data) > MODULE_BYTES_MAX:
        raise DecodeError(f"{len(data)} bytes, at most {MODULE_BYTES_MAX} are accepted")
    try:
        module = _decoder.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise DecodeError(f"not a module: {error}") from None
    if module.version != MODULE_VERSION:
        raise DecodeError(f"version {module.version} is not supported; this side reads version {MODULE_VERSION}")
    if _encoder.encode(module) != data:
        raise DecodeError("not in canonical form; encode it with wis.kernel.module.encode_module")
    return module
