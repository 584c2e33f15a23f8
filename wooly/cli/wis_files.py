"""Reads the files of ``wooly wis``: programs and modules of kernels, each as text or bytes, recognised by their first characters.

A file of bytes with a program holds msgpack of (b"wis", program bytes, dims bytes or nil); the bare bytes of a program, as the bus carries
them, are accepted too. A file with kernels holds a module (wis.kernel.module).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import BinaryIO, Final

import msgspec

from wis.encoding import decode_program
from wis.errors import DecodeError, ParseError, VerifyError
from wis.kernel.arguments import check_module
from wis.kernel.module import MODULE_VERSION, Entry, Module, decode_module
from wis.kernel.text import parse_kernel, parse_module
from wis.program import Program
from wis.text import parse_program
from wooly.cli.errors import CommandError

__all__ = ["MAGIC", "ProgramFile", "read_file", "read_module"]

MAGIC: Final = b"wis"
_SOURCES: Final = (".cu", ".cuh", ".ptx")
_Container = tuple[bytes, bytes, bytes | None]


@dataclass(frozen=True, slots=True)
class ProgramFile:
    program: Program
    dims: bytes | None


def read_file(source: BinaryIO) -> ProgramFile | Module:
    """What ``source`` holds. Raises CommandError."""
    data, name = source.read(), str(getattr(source, "name", "-"))
    if name.endswith(_SOURCES):
        raise CommandError(f"{name}: this is source code; `wooly wis compile {name}` makes a module of it, for this command to read")
    try:
        return _read(data)
    except (DecodeError, ParseError, UnicodeDecodeError) as error:
        raise CommandError(f"{name}: {error}") from None


def read_module(source: BinaryIO) -> Module:
    """The module in ``source``. Raises CommandError."""
    found = read_file(source)
    if isinstance(found, Module):
        if findings := check_module(found):
            raise CommandError(f"{getattr(source, 'name', '-')}: {VerifyError(findings)}")
        return found
    raise CommandError(f"{getattr(source, 'name', '-')}: this is a program; kernels are wanted (wooly wis compile makes them)")


def _read(data: bytes) -> ProgramFile | Module:
    try:
        magic, program, dims = msgspec.msgpack.decode(data, type=_Container)
        if magic == MAGIC:
            return ProgramFile(decode_program(program), dims)
    except msgspec.DecodeError:
        pass  # not a container: a module, bare bytes, or text
    head = next((line for line in data.splitlines() if line.strip() and not line.lstrip().startswith(b";")), b"").split()
    if head[:1] == [b"module"]:
        return parse_module(data.decode())
    if head[:1] == [b"kernel"]:
        kernel = parse_kernel(data.decode())
        return Module(MODULE_VERSION, (Entry(kernel.name, kernel, ()),))
    if head[:1] == [b"wis"] or not data:
        return ProgramFile(*parse_program(data.decode()))
    try:
        return decode_module(data)
    except DecodeError:
        return ProgramFile(decode_program(data), None)
