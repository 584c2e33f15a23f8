"""``wooly wis``: programs and modules of kernels as text and as bytes, recognised by their first characters (asm, dis, verify); kernels
from CUDA C++ and PTX, run by the definition on NumPy arrays, and what is known about them (compile, run, stats).

A file of bytes with a program holds msgpack of (b"wis", program bytes, dims bytes or nil); the bare bytes of a program, as the bus carries
them, are accepted too. A file with kernels holds a module (wis.kernel.module).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import click
import msgspec
import numpy as np

from wis.dtypes import DType
from wis.encoding import decode_program, digest, encode_program
from wis.errors import DecodeError, ParseError, VerifyError
from wis.kernel.interpret import Launch, Outcome, launch
from wis.kernel.model import BufferParam, RegType, encode_kernel
from wis.kernel.module import MODULE_VERSION, ArgKind, Argument, Entry, Module, check_module, decode_module, encode_module
from wis.kernel.text import parse_kernel, parse_module, print_kernel, print_module
from wis.kernel.traps import describe_site, describe_trap
from wis.kernel.verify import VerifiedKernel, verify_kernel
from wis.program import Program
from wis.text import parse_program, print_program
from wis.verify import verify as check
from wooly.cli.group import CommandError, echo
from wooly.cli.options import json_flag
from wooly.cli.output import print_json, print_table
from wooly.errors import CompileError, ToolchainMissing

__all__ = ["wis"]

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


Array = np.ndarray[Any, np.dtype[Any]]
Dim3 = tuple[int, int, int]
_FUEL: Final = 1 << 32


@click.command("compile")
@click.argument("source", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="The module's file (default: SOURCE with .wis).")
@click.option("-O", "--option", "options", multiple=True, help="An option of the CUDA compiler, as -O=-DN=4; may be repeated.")
@click.option("-n", "--name", "names", multiple=True, help="A kernel in C++ notation, as 'fill<float>'; needed for templates.")
def compile_(source: Path, output: Path | None, options: Sequence[str], names: Sequence[str]) -> None:
    """Turn CUDA C++ (.cu) or PTX (.ptx) into a module of WIS kernels. Needs no GPU."""
    from wooly.kernels.build import build_cuda, build_ptx

    try:
        if source.suffix == ".ptx":
            built = build_ptx(source.read_text(), file=source.name)
        else:
            built = build_cuda(source.read_text(), tuple(option.removeprefix("=") for option in options), names, file=source.name)
        for entry in built.module.entries:
            built.verified(entry)
    except (CompileError, ToolchainMissing) as error:
        raise CommandError(str(error)) from None
    except UnicodeDecodeError as error:
        raise CommandError(f"{source}: {error}") from None
    target = output if output is not None else source.with_suffix(".wis")
    target.write_bytes(encode_module(built.module))
    kernels = ", ".join(entry.name for entry in built.module.entries)
    echo(f"{target}: {kernels or 'no kernels'}")


def _sizes(context: click.Context, parameter: click.Parameter, text: str) -> Dim3:
    try:
        given = tuple(int(part) for part in text.split(","))
    except ValueError:
        given = ()
    if not 1 <= len(given) <= 3 or min(given) < 1:
        raise click.BadParameter(f"{text!r} is not one to three sizes, as 4,2,1", context, parameter)
    x, y, z = (*given, 1, 1)[:3]
    return x, y, z


_kernel = click.option("-k", "--kernel", "name", help="Which kernel (needed when the module has several).")


@click.command()
@click.argument("source", type=click.File("rb"))
@_kernel
@click.option("-g", "--grid", callback=_sizes, default="1", help="Blocks, as 4 or 4,2,1.")
@click.option("-b", "--block", callback=_sizes, default="32", help="Threads of a block, as 256 or 16,16.")
@click.option("-s", "--shared", type=int, default=0, help="Bytes of dynamic shared memory.")
@click.option("-a", "--arg", "args", multiple=True, help="An argument: FILE.npy, zeros:f32:1024, null, or a number. In order; repeated.")
@click.option("-o", "--output", type=click.Path(file_okay=False, path_type=Path), help="A folder for the buffers afterwards, as argN.npy.")
@click.option("--fuel", type=int, default=_FUEL, show_default=True, help="Thread-instructions after which the run is ended.")
@json_flag
def run(
    source: BinaryIO,
    *,
    name: str | None,
    grid: Dim3,
    block: Dim3,
    shared: int,
    args: Sequence[str],
    output: Path | None,
    fuel: int,
    as_json: bool,
) -> None:
    """Run a kernel by the definition, on NumPy arrays. Needs neither a node nor a GPU."""
    module = read_module(source)
    entry = _entry(module, name)
    verified = _verified(entry)
    wanted = _arguments(entry)
    if len(args) != len(wanted):
        names = ", ".join(a.name for a in wanted)
        raise CommandError(f"{entry.name} takes {len(wanted)} arguments ({names}); --arg was given {len(args)} times")
    arrays = {i: _array(text) for i, (a, text) in enumerate(zip(wanted, args, strict=True)) if a.kind == ArgKind.BUFFER}
    params: list[Any] = [0] * len(entry.kernel.params)
    for i, (argument, text) in enumerate(zip(wanted, args, strict=True)):
        if argument.kind == ArgKind.STRUCT:
            raise CommandError(f"{entry.name}: argument {argument.name} is a struct, which --arg cannot give; use wooly.RawKernel")
        if argument.param < 0:
            continue  # the kernel never looks at it
        params[argument.param] = arrays[i].reshape(-1).view(np.uint8) if i in arrays else _number(argument, text)
    for argument in entry.arguments:
        if argument.kind == ArgKind.VARIABLE:
            variable = module.variables[argument.variable]
            params[argument.param] = np.frombuffer(variable.data.ljust(variable.nbytes, b"\0"), np.uint8).copy()
    try:
        outcome = launch(verified, Launch(grid, block, dynamic_bytes=shared), params, fuel)
    except ValueError as error:
        raise CommandError(str(error)) from None
    _tell(verified, grid, block, outcome, {wanted[i].name: array for i, array in arrays.items()}, as_json)
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        for i, array in arrays.items():
            np.save(output / f"arg{i}.npy", array)
    if outcome.trap is not None or outcome.out_of_fuel:
        raise CommandError("the kernel did not end as it should")


def _tell(verified: VerifiedKernel, grid: Dim3, block: Dim3, outcome: Outcome, arrays: dict[str, Array], as_json: bool) -> None:
    trap = describe_trap(verified, grid, block, outcome.trap) if outcome.trap is not None else None
    if as_json:
        print_json({"instructions": outcome.instructions, "out_of_fuel": outcome.out_of_fuel, "trap": trap})
        return
    echo(f"{outcome.instructions} thread-instructions")
    for name, array in arrays.items():
        echo(f"{name}: {np.array2string(array, threshold=12, edgeitems=4)}")
    if outcome.out_of_fuel:
        echo("out of fuel: the run was ended; it may be endless (--fuel gives more)")
    if trap is not None:
        echo(f"trap: {trap}")


@click.command()
@click.argument("source", type=click.File("rb"))
@_kernel
@click.option(
    "-b", "--block", callback=_sizes, default="256", help="Threads of a block, as 256 or 16,16: some accesses are safe for some shapes."
)
@json_flag
def stats(source: BinaryIO, name: str | None, block: Dim3, as_json: bool) -> None:
    """What is known about kernels: size, memory, slice certificate, and which accesses can never be outside of their memory."""
    module = read_module(source)
    entries = [_entry(module, name)] if name is not None else list(module.entries)
    facts = [_facts(entry, block) for entry in entries]
    if as_json:
        print_json(facts)
        return
    for fact in facts:
        echo(f"kernel {fact['kernel']}")
        for key, value in fact.items():
            if key not in ("kernel", "accesses"):
                echo(f"  {key.replace('_', ' ')}: {value}")
        rows = [(a["site"], a["what"], a["line"] or "", "safe" if a["safe"] else "checked") for a in fact["accesses"]]
        print_table(("site", "access", "line", "bounds"), rows, numbers=("site", "line"), empty="  no accesses to memory")


def _facts(entry: Entry, block: Dim3) -> dict[str, Any]:
    from wis.kernel.certificate import statically_safe

    verified = _verified(entry)
    kernel, flat = verified.kernel, verified.flat
    certificate = verified.certificate
    safe = statically_safe(verified.flat, verified.flow, block)
    return {
        "kernel": entry.name,
        "digest": verified.digest.hex(),
        "math": "native" if kernel.math else "strict",
        "instructions": sum(verified.costs),
        "blocks_of_code": len(flat.blocks),
        "registers": len(flat.regs),
        "threads_max": kernel.threads_max,
        "shared_bytes": sum(array.n * DType(array.dtype).itemsize for array in kernel.shared),
        "dynamic_shared": bool(kernel.dynamic),
        "local_bytes": kernel.local_bytes,
        "barriers": verified.barriers.name.lower(),
        "sliceable": certificate.sliceable,
        "why_not": certificate.reason,
        "accesses": [
            {"site": n, "what": describe_site(verified, n), "line": site.line, "safe": n in safe} for n, site in enumerate(verified.sites)
        ],
    }


# --- arguments


def _entry(module: Module, name: str | None) -> Entry:
    names = ", ".join(entry.name for entry in module.entries) or "none"
    if name is None and len(module.entries) != 1:
        raise CommandError(f"the module has several kernels; choose one with --kernel: {names}")
    for entry in module.entries:
        if name is None or entry.name == name:
            return entry
    raise CommandError(f"there is no kernel {name!r} in this module, which has: {names}")


def _verified(entry: Entry) -> VerifiedKernel:
    try:
        return verify_kernel(entry.kernel)
    except VerifyError as error:
        raise CommandError(f"kernel {entry.name}: {error} (wooly wis verify shows where)") from None


def _arguments(entry: Entry) -> list[Argument]:
    """The caller's arguments; a kernel that stands by itself takes one for each parameter."""
    if entry.arguments or not entry.kernel.params:
        return [a for a in entry.arguments if a.kind != ArgKind.VARIABLE]
    return [
        Argument(ArgKind.BUFFER, f"p{i}", i)
        if isinstance(p, BufferParam)
        else Argument(ArgKind.SCALAR, f"p{i}", i, _HELD[RegType(p.reg_type)])
        for i, p in enumerate(entry.kernel.params)
    ]


_HELD: Final = {
    RegType.PRED: DType.BOOL, RegType.I16: DType.I16, RegType.I32: DType.I32, RegType.I64: DType.I64, RegType.F16: DType.F16,
    RegType.BF16: DType.BF16, RegType.F32: DType.F32, RegType.F64: DType.F64,
}  # fmt: skip


def _array(text: str) -> Array:
    """``FILE.npy``, ``zeros:TYPE:N`` or ``null``."""
    if text == "null":
        return np.zeros(0, np.uint8)
    if text.startswith("zeros:"):
        _, dtype, count = (*text.split(":"), "", "")[:3]
        try:
            return np.zeros(int(count), DType.parse(dtype).numpy)
        except ValueError as error:
            raise CommandError(f"--arg {text}: zeros:TYPE:N, as zeros:f32:1024 ({error})") from None
    try:
        return np.ascontiguousarray(np.load(text, allow_pickle=False)).copy()
    except (OSError, ValueError) as error:
        raise CommandError(f"--arg {text}: a buffer is FILE.npy, zeros:TYPE:N or null ({error})") from None


def _number(argument: Argument, text: str) -> int | float:
    dtype = DType(argument.dtype)
    try:
        return int(text, 0) if dtype.is_integer or dtype is DType.BOOL else float(text)
    except ValueError:
        raise CommandError(f"--arg {text}: {argument.name} takes a number ({dtype.text})") from None


_source = click.argument("source", type=click.File("rb"), default="-")


@click.group()
def wis() -> None:
    """Compile, assemble, disassemble, verify and run WIS programs and kernels.

    SOURCE is a file of text or bytes; - is standard input.
    """


for command in (compile_, run, stats):
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
