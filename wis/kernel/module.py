"""Modules: the result of one CUDA source or PTX file. Kernels, the layout of their arguments and the check that these fit, and the
variables they share.

A module's file (``.wis``) is its canonical msgpack.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Final

import msgspec

from wis.dtypes import DType
from wis.errors import DecodeError, Finding
from wis.kernel.model import BufferParam, Kernel, ScalarParam

__all__ = [
    "MODULE_VERSION", "ArgKind", "Argument", "Entry", "Field", "Module", "Variable", "check_module", "decode_module", "encode_module",
]  # fmt: skip

MODULE_VERSION: Final = 1
MODULE_BYTES_MAX: Final = 32 << 20


class ArgKind(IntEnum):
    """What a caller gives for an argument."""

    BUFFER = 0  # a tensor (or None: no memory); ``param`` is a BufferParam
    SCALAR = 1  # a number; ``param`` is a ScalarParam
    STRUCT = 2  # bytes, of which ``fields`` become parameters
    VARIABLE = 3  # nothing: the module's variable number ``variable``; ``param`` is a BufferParam


class Field(msgspec.Struct, frozen=True, array_like=True):
    """A number or a pointer inside of a struct argument: byte offset, wis.dtypes code (u64 for a pointer), and the ScalarParam or
    BufferParam it becomes."""

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


def check_module(module: Module) -> list[Finding]:
    """Every broken rule: kinds, types, variables and offsets exist, and every parameter of a kernel is given exactly once.

    An entry without arguments is a kernel by itself, whose parameters are given in their order.
    """
    findings = []
    for number, entry in enumerate(module.entries):
        if any(entry.name == other.name for other in module.entries[:number]):
            findings.append(Finding("module", f"entry {number}", f"there is an entry {entry.name!r} already"))
        given: list[int] = []
        for place, argument in enumerate(entry.arguments):
            where = f"entry {number} argument {place}"
            findings += [Finding("module", where, text) for text in _complaints(module, entry, argument, given)]
        if entry.arguments and not findings and sorted(given) != list(range(len(entry.kernel.params))):
            findings.append(
                Finding("module", f"entry {number}", f"arguments give parameters {sorted(given)} of {len(entry.kernel.params)}")
            )
    return findings


def _complaints(module: Module, entry: Entry, argument: Argument, given: list[int]) -> Iterator[str]:
    """``given``: parameters that arguments give, added to."""
    if argument.kind not in ArgKind._value2member_map_:
        yield f"{argument.kind} is not a kind of argument"
        return
    if argument.kind == ArgKind.STRUCT:
        for field in argument.fields:
            if field.dtype not in DType._value2member_map_:
                yield f"{field.dtype} is not an element type"
            elif not 0 <= field.offset <= argument.nbytes - DType(field.dtype).itemsize:
                yield f"a field at byte {field.offset} of {argument.nbytes}"
            known = entry.kernel.params[field.param : field.param + 1] if field.param >= 0 else ()
            pointer = field.dtype == DType.U64 and any(isinstance(param, BufferParam) for param in known)
            yield from _parameter(entry, field.param, BufferParam if pointer else ScalarParam, given)
        return
    if argument.kind == ArgKind.SCALAR and argument.dtype not in DType._value2member_map_:
        yield f"{argument.dtype} is not an element type"
    if argument.kind == ArgKind.VARIABLE and not 0 <= argument.variable < len(module.variables):
        yield f"variable {argument.variable} of {len(module.variables)}"
    if argument.param != -1 or argument.kind == ArgKind.VARIABLE:  # -1: the kernel never looks at it
        yield from _parameter(entry, argument.param, ScalarParam if argument.kind == ArgKind.SCALAR else BufferParam, given)


def _parameter(entry: Entry, number: int, kind: type[BufferParam] | type[ScalarParam], given: list[int]) -> Iterator[str]:
    if not 0 <= number < len(entry.kernel.params):
        yield f"parameter {number} of {len(entry.kernel.params)}"
    elif not isinstance(entry.kernel.params[number], kind):
        yield f"parameter {number} is not of this kind"
    given.append(number)
