"""``wooly wis asm|dis|verify``: programs and kernels as text and as bytes. The commands that only kernels have stand in wis_kernels."""

from __future__ import annotations

import sys
from typing import BinaryIO

import click
import msgspec

from wis.encoding import digest, encode_program
from wis.errors import VerifyError
from wis.kernel.model import encode_kernel
from wis.kernel.module import Module, encode_module
from wis.kernel.text import print_kernel, print_module
from wis.kernel.verify import verify_kernel
from wis.text import print_program
from wis.verify import verify as check
from wooly.cli import wis_kernels
from wooly.cli.group import CommandError, echo
from wooly.cli.options import json_flag
from wooly.cli.output import print_json
from wooly.cli.wis_kernels import MAGIC, ProgramFile, read_file

__all__ = ["wis"]

_source = click.argument("source", type=click.File("rb"), default="-")


@click.group()
def wis() -> None:
    """Compile, assemble, disassemble, verify and run WIS programs and kernels.

    SOURCE is a file of text or bytes; - is standard input.
    """


for command in wis_kernels.COMMANDS:
    wis.add_command(command)


@wis.command()
@_source
@click.option("-o", "--output", type=click.File("wb", lazy=True), default="-", help="Where the bytes go (default: standard output).")
def asm(source: BinaryIO, output: BinaryIO) -> None:
    """Turn text into bytes."""
    found = read_file(source)
    if output.name in ("-", "<stdout>") and sys.stdout.isatty():
        raise CommandError("the bytes would go to the terminal; use -o FILE, or a pipe")
    if isinstance(found, Module):
        output.write(encode_module(found))
    else:
        output.write(msgspec.msgpack.encode((MAGIC, encode_program(found.program), found.dims)))


@wis.command()
@_source
def dis(source: BinaryIO) -> None:
    """Turn bytes into text."""
    found = read_file(source)
    echo(print_module(found) if isinstance(found, Module) else print_program(found.program, found.dims), nl=False)


@wis.command()
@_source
@json_flag
def verify(source: BinaryIO, as_json: bool) -> None:
    """Check every rule; the findings are printed inside the text."""
    found = read_file(source)
    if isinstance(found, Module):
        _verify_module(found, as_json)
    else:
        _verify_program(found, as_json)


def _verify_program(found: ProgramFile, as_json: bool) -> None:
    program, dims = found.program, found.dims
    if program.kernels:
        raise CommandError("the program launches kernels, which are not in this file; verify them by their own")
    if dims is None:
        raise CommandError("the program has no sizes (a '?' stands for each), so it cannot be verified; give its text with sizes")
    name = digest(encode_program(program)).hex()
    try:
        check(program, dims)
    except VerifyError as error:
        if as_json:
            print_json({"ok": False, "digest": name, "findings": [list(finding) for finding in error.findings]})
        else:
            echo(print_program(program, dims, error.findings), nl=False)
        raise CommandError(f"the program breaks {_rules(len(error.findings))}") from None
    if as_json:
        print_json({"ok": True, "digest": name, "findings": []})
    else:
        echo(f"ok {name}")


def _verify_module(module: Module, as_json: bool) -> None:
    results, broken = [], 0
    for entry in module.entries:
        name = digest(encode_kernel(entry.kernel)).hex()
        try:
            verify_kernel(entry.kernel)
            results.append({"kernel": entry.name, "ok": True, "digest": name, "findings": []})
        except VerifyError as error:
            broken += len(error.findings)
            results.append({"kernel": entry.name, "ok": False, "digest": name, "findings": [list(finding) for finding in error.findings]})
            if not as_json:
                echo(print_kernel(entry.kernel, error.findings), nl=False)
    if as_json:
        print_json(results)
    else:
        for result in results:
            echo(f"{'ok' if result['ok'] else 'broken'} {result['digest']} {result['kernel']}")
    if broken:
        raise CommandError(f"the kernels break {_rules(broken)}")


def _rules(count: int) -> str:
    return f"{count} rule{'s' if count > 1 else ''}"
