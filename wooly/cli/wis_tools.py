"""``wooly wis asm|dis|verify``: programs as text and as bytes.

May live here: files and printing. May not: rules (wis does all the work).

A file of bytes holds a program and, where known, its dims: msgpack of (b"wis", program bytes, dims bytes or nil). The bare bytes of a
program, as the bus carries them, are accepted too.
"""

from __future__ import annotations

import sys
from typing import BinaryIO, Final

import click
import msgspec

from wis.encoding import decode_program, digest, encode_program
from wis.errors import DecodeError, ParseError, VerifyError
from wis.program import Program
from wis.text import parse_program, print_program
from wis.verify import verify as check
from wooly.cli.errors import CommandError
from wooly.cli.options import json_flag
from wooly.cli.output import print_json

__all__ = ["wis"]

_MAGIC: Final = b"wis"
_Container = tuple[bytes, bytes, bytes | None]

_source = click.argument("source", type=click.File("rb"), default="-")


def _read(source: BinaryIO) -> tuple[Program, bytes | None]:
    """A program in text or in bytes, told apart by the first characters. Raises CommandError."""
    data, name = source.read(), getattr(source, "name", "-")
    try:
        try:
            magic, program, dims = msgspec.msgpack.decode(data, type=_Container)
            if magic == _MAGIC:
                return decode_program(program), dims
        except msgspec.DecodeError:
            pass  # not a container: bare bytes, or text
        if data.lstrip()[:1] in (b"w", b";"):
            return parse_program(data.decode())
        return decode_program(data), None
    except (DecodeError, ParseError, UnicodeDecodeError) as error:
        raise CommandError(f"{name}: {error}") from None


def _needs_dims(dims: bytes | None) -> bytes:
    if dims is None:
        raise CommandError("the program has no sizes (a '?' stands for each), so it cannot be verified; give its text with sizes")
    return dims


@click.group()
def wis() -> None:
    """Assemble, disassemble and verify WIS programs. SOURCE is a file of text or bytes; - is standard input."""


@wis.command()
@_source
@click.option("-o", "--output", type=click.File("wb", lazy=True), default="-", help="Where the bytes go (default: standard output).")
def asm(source: BinaryIO, output: BinaryIO) -> None:
    """Turn text into bytes."""
    program, dims = _read(source)
    if output.name in ("-", "<stdout>") and sys.stdout.isatty():
        raise CommandError("the bytes would go to the terminal; use -o FILE, or a pipe")
    output.write(msgspec.msgpack.encode((_MAGIC, encode_program(program), dims)))


@wis.command()
@_source
def dis(source: BinaryIO) -> None:
    """Turn bytes into text."""
    program, dims = _read(source)
    click.echo(print_program(program, dims), nl=False)


@wis.command()
@_source
@json_flag
def verify(source: BinaryIO, as_json: bool) -> None:
    """Check every rule; the findings are printed inside the program's text."""
    program, dims = _read(source)
    sizes = _needs_dims(dims)
    name = digest(encode_program(program)).hex()
    try:
        check(program, sizes)
    except VerifyError as error:
        if as_json:
            print_json({"ok": False, "digest": name, "findings": [list(finding) for finding in error.findings]})
        else:
            click.echo(print_program(program, sizes, error.findings), nl=False)
        count = len(error.findings)
        raise CommandError(f"the program breaks {count} rule{'s' if count > 1 else ''}") from None
    if as_json:
        print_json({"ok": True, "digest": name, "findings": []})
    else:
        click.echo(f"ok {name}")
