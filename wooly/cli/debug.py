"""``wooly debug``: the memory that a recorded script had on its device after any batch, built again on a node; and the first NaN in it."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

import click
import numpy as np

from wis.dtypes import COMPLEX, FLOATS, DType
from wis.encoding import decode_program, digest, encode_program
from wis.kernel.model import decode_kernel
from wis.kernel.verify import verify_kernel
from wis.ops import BY_NAME
from wis.program import BoundInstr, BoundProgram, BufferKind, Operand, bind, unbind
from wis.reference import Execution, Kernels
from wis.reference.access import Array, load, view
from wis.text import print_program
from wis.verify import verify
from wis.views import contiguous_strides
from wooly import config as configuration
from wooly.cli.group import CommandError, echo
from wooly.cli.options import json_flag, nats_flag
from wooly.cli.output import bytes_text, print_json, print_table
from wooly.errors import DeviceError, RefusedError
from wooly.link import Flush, Link, ReadBytes, Ticket
from wooly.recording import Recorded, Recording
from wooly.transport.replay import Made, follow, groups, visible

_SHOWN_MAX: Final = 40
_AHEAD: Final = 16
_CHECKS: Final = 1 << 50
"""Handles from here on are of checks; a script's count from 1."""


@dataclass(slots=True)
class Held:
    """A buffer, and what a batch has last written to it. ``number`` 0: none has, and ``use`` is how one has read it, None: none has."""

    nbytes: int
    use: Operand | None = None
    number: int = 0
    lines: str = ""
    operation: str = ""

    @property
    def type_text(self) -> str:
        return f"{self.use.dtype.text}[{','.join(map(str, self.use.shape))}]" if self.use is not None else ""


class Rebuilt:
    """Sends recorded batches to a session, and knows what its buffers hold."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.number = 0
        self._bytes: dict[int, int] = {}
        self._made: Made = {}
        self._bound: dict[tuple[bytes, bytes], BoundProgram] = {}
        self._uses: dict[int, Held] = {}

    def send(self, batch: Recorded) -> Ticket:
        """Send a batch, without its reads."""
        self.number = batch.number
        follow(self._bytes, batch.flush, self._made)
        if batch.flush.program:
            self._note_uses(batch, self.bound(batch.flush))
        for handle in batch.flush.frees:
            self._uses.pop(handle, None)
        return self.link.submit(replace(batch.flush, reads=()))

    def bound(self, flush: Flush) -> BoundProgram:
        key = (flush.program, flush.dims_digest)
        if key not in self._bound:
            self._bound[key] = bind(decode_program(flush.program_body), flush.dims)
        return self._bound[key]

    def _note_uses(self, batch: Recorded, bound: BoundProgram) -> None:
        handles = dict(zip(visible(bound.program), batch.flush.handles, strict=True))
        for at, instr in enumerate(bound.code):
            for x in instr.ins:
                if isinstance(x, Operand) and x.buffer in handles:
                    self._uses.setdefault(handles[x.buffer], Held(0, x))
            for x in instr.outs:
                if x.buffer in handles:
                    self._uses[handles[x.buffer]] = Held(0, x, batch.number, batch.lines, batch.operation(at))

    def held(self) -> dict[int, Held]:
        """The buffers by handle."""
        return {handle: replace(self._uses.get(handle, Held(0)), nbytes=nbytes) for handle, nbytes in self._bytes.items()}

    def read(self, wanted: dict[int, int]) -> dict[int, ReadBytes]:
        """What buffers hold; ``wanted``: handle to bytes."""
        found: dict[int, ReadBytes] = {}
        for group in groups(wanted):
            found.update(zip((handle for handle, _ in group), self.ask([(handle, 0, nbytes) for handle, nbytes in group]), strict=True))
        return found

    def ask(self, reads: Sequence[tuple[int, int, int]]) -> list[ReadBytes]:
        """The answers of reads, once all before them is executed."""
        while True:
            flush = Flush(reads=reads)
            answers = self.take(self.link.submit(flush))
            if answers is not None:
                return answers

    def take(self, ticket: Ticket) -> list[ReadBytes] | None:
        """The answers of ``ticket``; None: a batch before it is refused, as it was when it was recorded. That is printed, once."""
        try:
            return self.link.wait(ticket)
        except (DeviceError, RefusedError) as error:
            echo(f"wooly: up to batch {self.number}: {error}", err=True)
            return None


@click.command()
@nats_flag
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--at", type=click.IntRange(1), metavar="BATCH", help="The state after this batch (default: the last one).")
@click.option("--buffer", type=click.IntRange(0), metavar="HANDLE", help="Print what this buffer holds.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="With --buffer: write it to this file (.npy).")
@click.option("--batches", "listing", is_flag=True, help="List the batches; needs no node.")
@click.option("--find-nan", is_flag=True, help="Find the first batch and instruction that gave NaN.")
@json_flag
def debug(
    nats_url: str | None,
    folder: Path,
    at: int | None,
    buffer: int | None,
    output: Path | None,
    listing: bool,
    find_nan: bool,
    as_json: bool,
) -> None:
    """Build the device memory of a script again that ran with WOOLY_RECORD=FOLDER, and list its buffers."""
    if find_nan and buffer is not None:
        raise CommandError("--buffer does not go with --find-nan")
    if output is not None and buffer is None:
        raise CommandError("--output goes with --buffer")
    recording = Recording(folder)
    if listing:
        _list_batches(recording, at, as_json)
        return
    config = configuration.load({"WOOLY_NATS_URL": nats_url} if nats_url else None)
    if not config.nats_urls:
        raise CommandError("no bus is named: set WOOLY_NATS_URL, or use --nats-url nats://HOST:4222")

    def opened() -> Any:
        from wooly.session import open_session

        return contextlib.closing(open_session(config, title="wooly debug"))

    if find_nan:
        with opened() as link:
            number = _first_nan(Rebuilt(link), recording, at)
        if number is None:
            _show({"batch": None}, "no batch gave NaN", as_json)
            return
        with opened() as link:
            found = _explain(Rebuilt(link), recording, number)
        _show(found, _nan_text(found), as_json)
        return
    with opened() as link:
        rebuilt = Rebuilt(link)
        for batch in recording.batches(at):
            rebuilt.send(batch)
        if buffer is not None:
            _show_buffer(rebuilt, buffer, output, as_json)
        else:
            rebuilt.ask(())
            _list_buffers(rebuilt, as_json)


def _show(document: dict[str, Any], text: str, as_json: bool) -> None:
    if as_json:
        print_json(document)
    else:
        echo(text)


def _list_batches(recording: Recording, at: int | None, as_json: bool) -> None:
    rows: list[dict[str, Any]] = [
        {
            "batch": one.number,
            "lines": one.lines,
            "operations": [name for name, _ in one.operations],
            "upload_bytes": sum(data.nbytes for _, data in one.flush.uploads),
            "reads": len(one.flush.reads),
        }
        for one in takewhile(lambda one: at is None or one.number <= at, recording.all())
        if not one.image
    ]
    if as_json:
        print_json(rows)
        return
    table = [(row["batch"], row["lines"], _names(row["operations"]), bytes_text(row["upload_bytes"]), row["reads"]) for row in rows]
    print_table(("batch", "lines", "operations", "uploads", "reads"), table, numbers=("batch", "uploads", "reads"), empty="no batch")


def _names(names: Iterable[str]) -> str:
    first = list(dict.fromkeys(names))
    return ", ".join(first[:4]) + (f" and {len(first) - 4} more" if len(first) > 4 else "")


def _list_buffers(rebuilt: Rebuilt, as_json: bool) -> None:
    held = sorted(rebuilt.held().items(), key=lambda item: (-item[1].nbytes, item[0]))
    rows: list[dict[str, Any]] = [
        {"buffer": handle, "bytes": x.nbytes, "type": x.type_text, "batch": x.number, "lines": x.lines, "operation": x.operation}
        for handle, x in held
    ]
    if as_json:
        print_json({"batch": rebuilt.number, "buffers": rows})
        return
    echo(f"after batch {rebuilt.number}: {len(held)} buffers, {bytes_text(sum(x.nbytes for _, x in held))}")
    table = [
        (row["buffer"], bytes_text(row["bytes"]), row["type"], row["batch"] or "", row["operation"], row["lines"])
        for row in rows[:_SHOWN_MAX]
    ]
    columns = ("buffer", "size", "type", "written in batch", "by", "lines")
    print_table(columns, table, numbers=("buffer", "size", "written in batch"), empty="no buffer")
    if len(rows) > _SHOWN_MAX:
        echo(f"and {len(rows) - _SHOWN_MAX} smaller ones; --json lists all")


def _show_buffer(rebuilt: Rebuilt, handle: int, output: Path | None, as_json: bool) -> None:
    held = rebuilt.held().get(handle)
    if held is None:
        raise CommandError(
            f"there is no buffer {handle} after batch {rebuilt.number}; `wooly debug FOLDER --at {rebuilt.number}` lists them"
        )
    data = np.frombuffer(rebuilt.read({handle: held.nbytes})[handle], np.uint8)
    use = held.use if held.use is not None else Operand(0, DType.U8, (held.nbytes,), (1,), 0)
    array = _as_shown(view(replace(use, buffer=0), [data]))
    if output is not None:
        with output.open("wb") as file:  # of a path, NumPy changes the name
            np.save(file, array)
        echo(f"{output}: {use.dtype.text}{list(array.shape)}", err=True)
    elif as_json:
        print_json({"batch": rebuilt.number, "buffer": handle, "type": use.dtype.text, "shape": array.shape, "values": _values(array)})
    else:
        echo(f"buffer {handle} after batch {rebuilt.number}, as {use.dtype.text}{list(array.shape)}")
        echo(np.array2string(array, threshold=200))


def _as_shown(array: Array) -> Array:
    """In a type that NumPy has by itself."""
    return array if array.dtype.kind in "biufc" else array.astype(np.float32)


def _values(array: Array) -> Any:
    """Complex numbers as pairs."""
    return np.stack((array.real, array.imag), -1).tolist() if array.dtype.kind == "c" else array.tolist()


# -- the first NaN -----------------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Asked:
    number: int
    check: Flush
    ticket: Ticket


def _first_nan(rebuilt: Rebuilt, recording: Recording, at: int | None) -> int | None:
    """The first batch up to ``at`` that leaves NaN in what it writes; None: there is none."""
    asked: deque[_Asked] = deque()
    checks: dict[tuple[bytes, bytes], Flush | None] = {}
    for batch in takewhile(lambda batch: at is None or batch.number <= at, recording.all()):
        rebuilt.send(replace(batch, flush=replace(batch.flush, frees=())))
        check = _check(rebuilt, batch.flush, checks)
        if check is not None:
            asked.append(_Asked(batch.number, check, rebuilt.link.submit(check)))
        if batch.flush.frees:
            rebuilt.send(replace(batch, flush=Flush(frees=batch.flush.frees)))
        if len(asked) > _AHEAD and (found := _answered(rebuilt, asked.popleft())):
            return found
    return next(filter(None, (_answered(rebuilt, one) for one in asked)), None)


def _answered(rebuilt: Rebuilt, asked: _Asked) -> int:
    """The number of the batch if it left NaN, else 0."""
    answers = rebuilt.take(asked.ticket)
    if answers is None:  # the node refused a batch before, and the answer went with that
        answers = rebuilt.take(rebuilt.link.submit(asked.check))
    return asked.number if answers and any(answers[0]) else 0


def _written(bound: BoundProgram) -> list[Operand]:
    """What a program leaves of fractions, in buffers that outlive it."""
    kept = set(visible(bound.program))
    found = {x: None for instr in bound.code for x in instr.outs if x.buffer in kept and x.dtype in FLOATS | COMPLEX and x.numel}
    return list(found)


def _parts(x: Operand) -> Operand:
    """A complex operand as real and imaginary parts."""
    if x.dtype not in COMPLEX:
        return x
    dtype = DType.F32 if x.dtype is DType.C64 else DType.F64
    return Operand(x.buffer, dtype, (*x.shape, 2), (*(2 * stride for stride in x.strides), 1), 2 * x.offset)


def _check(rebuilt: Rebuilt, flush: Flush, known: dict[tuple[bytes, bytes], Flush | None]) -> Flush | None:
    """A batch that reads one byte for each thing that ``flush`` writes: 1 where that holds NaN; None: it writes no fractions."""
    if not flush.program:
        return None
    key = (flush.program, flush.dims_digest)
    bound = rebuilt.bound(flush)
    written = [_parts(x) for x in _written(bound)]
    if not written:
        return None
    buffers = sorted({x.buffer for x in written})
    if key not in known:
        known[key] = _check_program(bound, written, buffers)
    template = known[key]
    assert template is not None
    handles = dict(zip(visible(bound.program), flush.handles, strict=True))
    return replace(template, handles=[*(handles[buffer] for buffer in buffers), _CHECKS], reads=[(_CHECKS, 0, len(written))])


def _check_program(bound: BoundProgram, written: list[Operand], buffers: list[int]) -> Flush:
    kinds, sizes = [BufferKind.EXTERNAL] * len(buffers), [bound.nbytes[buffer] for buffer in buffers]
    flags = len(kinds)
    kinds, sizes = [*kinds, BufferKind.CREATED], [*sizes, len(written)]
    code = []
    for at, x in enumerate(written):
        temp = Operand(len(kinds), DType.BOOL, (x.numel,), (1,), 0)
        shaped = replace(temp, shape=x.shape, strides=contiguous_strides(x.shape))
        code.append(BoundInstr(BY_NAME["is_nan"], (shaped,), (replace(x, buffer=buffers.index(x.buffer)),), ()))
        code.append(BoundInstr(BY_NAME["reduce_max"], (Operand(flags, DType.BOOL, (1,), (1,), at),), (temp,), ()))
        kinds.append(BufferKind.TEMP)
        sizes.append(x.numel)
    program, dims = unbind(kinds, sizes, code, 0)
    body = encode_program(program)
    return Flush(program=digest(body), program_body=body, dims_digest=digest(dims), dims=dims, frees=(_CHECKS,))


def _explain(rebuilt: Rebuilt, recording: Recording, number: int) -> dict[str, Any]:
    """Run batch ``number`` on this machine, instruction by instruction, on what its buffers held before it."""
    guilty: Recorded | None = None
    for batch in recording.batches(number):
        if batch.number == number and not batch.image:
            guilty = batch
        else:
            rebuilt.send(batch)
    assert guilty is not None
    flush = guilty.flush
    before = rebuilt.held()
    program = decode_program(flush.program_body)
    handles = dict(zip(visible(program), flush.handles, strict=True))
    taken = [handles[n] for n, kind in enumerate(program.buffers) if kind == BufferKind.EXTERNAL]
    old = rebuilt.read({handle: before[handle].nbytes for handle in taken if handle in before})
    found = {handle: np.frombuffer(data, np.uint8).copy() for handle, data in (*old.items(), *flush.uploads)}
    found |= {handle: np.zeros(nbytes, np.uint8) for handle, nbytes in flush.allocs}
    kernels = {name: verify_kernel(decode_kernel(body)) for name, body in flush.kernels}
    verified = verify(program, flush.dims, kernels=kernels)
    bound = verified.bound
    buffers = [
        found[handles[n]] if kind == BufferKind.EXTERNAL else np.zeros(bound.nbytes[n], np.uint8) for n, kind in enumerate(program.buffers)
    ]
    execution = Execution(bound, flush.scalars, Kernels(verified.kernels))
    lines = print_program(program, flush.dims).splitlines()[-len(program.code) :]
    document: dict[str, Any] = {"batch": number, "lines": guilty.lines, "instruction": None, "operation": "", "text": "", "inputs": []}
    for at, instr in enumerate(bound.code):
        inputs = [_about(x, buffers) for x in instr.ins if isinstance(x, Operand) and x.dtype in FLOATS | COMPLEX and x.numel]
        execution.step(buffers)
        outputs = [_about(x, buffers) for x in instr.outs if x.dtype in FLOATS | COMPLEX and x.numel]
        if any(out["nan"] for out in outputs):
            told = {"instruction": at, "operation": guilty.operation(at), "text": lines[at], "inputs": inputs, "outputs": outputs}
            return {**document, **told}
    return document


def _about(x: Operand, buffers: list[Array]) -> dict[str, Any]:
    values = load(x, (), buffers)
    nan, finite = np.isnan(values), values[np.isfinite(values)]
    about: dict[str, Any] = {"buffer": x.buffer, "type": f"{x.dtype.text}{list(x.shape)}", "values": values.size, "nan": int(nan.sum())}
    about["infinite"] = int(np.isinf(values).sum())
    if finite.size and x.dtype in FLOATS:
        about |= {"least": float(finite.min()), "greatest": float(finite.max())}
    if about["nan"]:
        about["first"] = [int(i) for i in np.unravel_index(int(np.argmax(nan)), values.shape)]
    return about


def _nan_text(found: dict[str, Any]) -> str:
    where = f"batch {found['batch']}" + (f", {found['lines']}" if found["lines"] else "")
    if found["instruction"] is None:
        return f"{where}: the device gave NaN, the definition of its instructions on this machine did not"
    came = any(one["nan"] for one in found["inputs"])
    by = f"{found['operation']} " if found["operation"] else ""
    what = "takes NaN that was uploaded" if came else "gave the first NaN"
    lines = [f"{where}: {by}{what}", f"  instruction {found['instruction']}: {found['text']}"]
    lines += [f"  in   {_about_text(one)}" for one in found["inputs"]]
    lines += [f"  out  {_about_text(one)}" for one in found["outputs"]]
    return "\n".join(lines)


def _about_text(one: dict[str, Any]) -> str:
    text = f"%{one['buffer']} {one['type']}"
    if "least" in one:
        text += f", {one['least']:.6g} to {one['greatest']:.6g}"
    if one["infinite"]:
        text += f", {one['infinite']} of {one['values']} infinite"
    if one["nan"]:
        text += f", {one['nan']} of {one['values']} NaN, the first at {one['first']}"
    return text
