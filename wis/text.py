"""Prints and parses programs as text; an invalid program is printed with the verifier's findings beside the offending lines.

::

    wis 1
    scalars 1
    %0 external 128
    %1 created 16
    %1:f32[4,1]{1,1}+0 = sum %0:f32[4,8]{8,1}+0
    %1:f32[4]{1}+0 = mul %1:f32[4]{1}+0, $0:f32

One line a kernel that launches name (``kernel`` and its digest), one a buffer (kind, bytes), one an instruction: outputs ``=`` name
``(attributes)`` inputs. An operand is ``%buffer:type[shape]{strides}+offset``, an immediate ``$slot:type``. Without dims, ``?`` stands for
every size, and strides and offset are left out. ``;`` starts a comment.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np

from wis.dtypes import DType
from wis.errors import Finding, ParseError
from wis.ops import BY_CODE, BY_NAME, Op
from wis.program import BufferKind, Imm, Instr, Program, Ref, dims_length
from wis.verify.structure import spatial_rank

_I64: Final = 1 << 63


def print_program(program: Program, dims: bytes | None = None, findings: Iterable[Finding] = ()) -> str:
    """The text of ``program``, with its dims when they are given and of the right length. Works on programs that break rules."""
    notes: dict[str, list[str]] = defaultdict(list)
    for finding in findings:
        words = finding.place.split()
        line = " ".join(words[:2]) if words[0] in ("code", "buffer") else "program"
        where = " ".join(words[2:])
        notes[line].append(f"[{finding.rule}] {where + ': ' if where else ''}{finding.text}")
    lines = []

    def add(place: str, text: str) -> None:
        lines.append("".join([text, *(f"  ; error: {note}" for note in notes.get(place, ()))]))

    values = _dims_values(program, dims)
    add("program", f"wis {program.version}")
    lines.append(f"scalars {program.n_scalars}")
    lines += [f"kernel {name.hex()}" for name in program.kernels]
    for number, kind in enumerate(program.buffers):
        add(f"buffer {number}", f"%{number} {_kind_text(kind)} {'?' if values is None else next(values)}")
    for number, instr in enumerate(program.code):
        add(f"code {number}", _instr_text(instr, values))
    return "\n".join(lines) + "\n"


def _dims_values(program: Program, dims: bytes | None) -> Iterator[int] | None:
    """The numbers of the dims in order, when there are as many as the structure needs."""
    ranks = [x.rank for instr in program.code for x in (*instr.outs, *instr.ins) if isinstance(x, Ref)]
    if dims is None or any(rank < 0 for rank in ranks) or len(dims) != 8 * dims_length(program):
        return None
    values: list[int] = np.frombuffer(dims, "<i8").tolist()
    return iter(values)


def _kind_text(kind: int) -> str:
    return BufferKind(kind).name.lower() if kind in BufferKind._value2member_map_ else f"kind#{kind}"


def _dtype_text(code: int) -> str:
    return DType(code).text if code in DType._value2member_map_ else f"type#{code}"


def _instr_text(instr: Instr, values: Iterator[int] | None) -> str:
    op = BY_CODE.get(instr.op)
    # Outputs come before inputs in the dims, so they are printed first.
    outs = ", ".join(_operand_text(x, values) for x in instr.outs)
    ins = ", ".join(_operand_text(x, values) for x in instr.ins)
    name = op.name if op is not None else f"op#{instr.op}"
    return f"{outs} = {name}{_attrs_text(op, instr.attrs)} {ins}".strip()


def _operand_text(x: Ref | Imm, values: Iterator[int] | None) -> str:
    if isinstance(x, Imm):
        return f"${x.scalar}:{_dtype_text(x.dtype)}"
    head = f"%{x.buffer}:{_dtype_text(x.dtype)}"
    if values is None:
        return f"{head}[{','.join('?' * x.rank)}]" if 0 <= x.rank <= 64 else f"{head}[#{x.rank}]"
    shape, strides = ([str(next(values)) for _ in range(x.rank)] for _ in range(2))
    return f"{head}[{','.join(shape)}]{{{','.join(strides)}}}+{next(values)}"


def _attrs_text(op: Op | None, attrs: tuple[int, ...]) -> str:
    spatial = spatial_rank(op, len(attrs)) if op is not None else None
    if op is None or spatial is None:
        return f"({' '.join(map(str, attrs))})" if attrs else ""
    if not attrs:
        return ""
    parts, at = [], 0
    for name in op.attrs:
        n = spatial if name.startswith("*") else 1
        parts.append(f"{name.lstrip('*')}={','.join(map(str, attrs[at : at + n]))}")
        at += n
    return f"({' '.join(parts)})"


_INT: Final = r"-?[0-9]{1,20}"
_TYPE: Final = r"(?:type#-?[0-9]{1,20}|[a-z]+[0-9]*)"
_BUFFER: Final = re.compile(rf"%({_INT}) ([a-z]+|kind#{_INT}) ({_INT}|\?)")
_OPERAND: Final = re.compile(
    rf"%(?P<buffer>{_INT}):(?P<type>{_TYPE})\[(?P<shape>[^\]]*)\](?:\{{(?P<strides>[^}}]*)\}}\+(?P<offset>{_INT}))?"
    rf"|\$(?P<slot>{_INT}):(?P<imm>{_TYPE})"
)
_CODE: Final = re.compile(rf"(?P<outs>[^=]*?) ?= (?P<op>[a-z0-9_]+|op#{_INT})(?:\((?P<attrs>[^)]*)\))?(?: (?P<ins>.*))?")


class _Parser:
    """One program's text, line by line. Errors carry the number of the line."""

    def __init__(self) -> None:
        self.line = 0
        self.sized: bool | None = None  # whether dims are written; the first place that could hold one decides
        self.nbytes: list[int] = []
        self.values: list[int] = []

    def fail(self, text: str) -> ParseError:
        return ParseError(self.line, text)

    def decide(self, sized: bool) -> None:
        if self.sized is None:
            self.sized = sized
        elif self.sized != sized:
            raise self.fail("sizes are given in some places and not in others")

    def number(self, text: str) -> int:
        if not re.fullmatch(_INT, text):
            raise self.fail(f"{text!r} is not a whole number")
        return self.i64(int(text))

    def i64(self, value: int) -> int:
        if not -_I64 <= value < _I64:
            raise self.fail(f"{value} does not fit 64 bits")
        return value

    def numbers(self, text: str) -> list[int]:
        return [self.number(part.strip()) for part in text.split(",")] if text.strip() else []

    def dtype(self, text: str) -> int:
        if text.startswith("type#"):
            return self.number(text[5:])
        try:
            return int(DType.parse(text))
        except ValueError as error:
            raise self.fail(str(error)) from None

    def buffer(self, text: str, expected: int) -> int:
        match = _BUFFER.fullmatch(text)
        if match is None:
            raise self.fail(f"{text!r} is not '%number kind bytes'")
        number, kind, nbytes = match.groups()
        if int(number) != expected:
            raise self.fail(f"buffer %{number}, expected %{expected}: buffers are numbered in order")
        self.decide(nbytes != "?")
        if nbytes != "?":
            self.nbytes.append(self.number(nbytes))
        if kind.startswith("kind#"):
            return self.number(kind[5:])
        if kind.upper() not in BufferKind.__members__:
            raise self.fail(f"{kind!r} is not a kind of buffer")
        return int(BufferKind[kind.upper()])

    def operands(self, text: str) -> list[Ref | Imm]:
        result: list[Ref | Imm] = []
        at = 0
        while at < len(text):
            match = _OPERAND.match(text, at)
            if match is None:
                raise self.fail(f"{text[at:]!r} does not start with an operand")
            result.append(self.operand(match))
            at = match.end()
            if at < len(text):
                if text[at : at + 2] != ", " or at + 2 == len(text):
                    raise self.fail(f"expected ', ' and an operand at {text[at:]!r}")
                at += 2
        return result

    def operand(self, match: re.Match[str]) -> Ref | Imm:
        if match["slot"] is not None:
            return Imm(self.number(match["slot"]), self.dtype(match["imm"]))
        buffer, dtype, shape = self.number(match["buffer"]), self.dtype(match["type"]), match["shape"]
        if match["strides"] is None:
            self.decide(False)
            if shape.startswith("#"):
                return Ref(buffer, dtype, self.number(shape[1:]))
            sizes = shape.split(",") if shape else []
            if any(size != "?" for size in sizes):
                raise self.fail(f"[{shape}] has sizes but no strides and offset")
            return Ref(buffer, dtype, len(sizes))
        self.decide(True)
        sizes_, strides = self.numbers(shape), self.numbers(match["strides"])
        if len(sizes_) != len(strides):
            raise self.fail(f"{len(sizes_)} sizes beside {len(strides)} strides")
        self.values += [*sizes_, *strides, self.number(match["offset"])]
        return Ref(buffer, dtype, len(sizes_))

    def attrs(self, op: Op | None, text: str) -> tuple[int, ...]:
        parts = text.split()
        if not any("=" in part for part in parts):
            return tuple(self.number(part) for part in parts)
        names = [part.partition("=")[0] for part in parts]
        wanted = [name.lstrip("*") for name in op.attrs] if op is not None else []
        if names != wanted:
            raise self.fail(f"attributes ({' '.join(names)}), expected ({' '.join(wanted)})")
        return tuple(value for part in parts for value in self.numbers(part.partition("=")[2]))

    def instr(self, text: str) -> Instr:
        match = _CODE.fullmatch(text)
        if match is None:
            raise self.fail(f"{text!r} is not 'outputs = op inputs'")
        name = match["op"]
        op = BY_NAME.get(name)
        if op is None and not name.startswith("op#"):
            raise self.fail(f"there is no op called {name!r}")
        code = op.code if op is not None else self.number(name[3:])
        outs = self.operands(match["outs"])
        refs = tuple(x for x in outs if isinstance(x, Ref))
        if len(refs) != len(outs):
            raise self.fail("an output cannot be an immediate")
        attrs = self.attrs(op, match["attrs"]) if match["attrs"] is not None else ()
        return Instr(code, refs, tuple(self.operands(match["ins"] or "")), attrs)


def parse_program(text: str) -> tuple[Program, bytes | None]:
    """The program and its dims (None when the text has none). Raises ParseError naming the line."""
    parser = _Parser()
    version: int | None = None
    n_scalars: int | None = None
    buffers: list[int] = []
    kernels: list[bytes] = []
    code: list[Instr] = []
    for parser.line, raw in enumerate(text.splitlines(), start=1):
        line = raw.partition(";")[0].strip()
        if not line:
            continue
        if version is None:
            version = _headed(parser, line, "wis")
        elif n_scalars is None:
            n_scalars = _headed(parser, line, "scalars")
        elif line.startswith("kernel "):
            kernels.append(_digest(parser, line))
        elif "=" in line:
            code.append(parser.instr(line))
        elif code:
            raise parser.fail("buffers come before instructions")
        else:
            buffers.append(parser.buffer(line, len(buffers)))
    if version is None or n_scalars is None:
        raise ParseError(parser.line, "a program starts with the lines 'wis VERSION' and 'scalars N'")
    program = Program(version, tuple(buffers), n_scalars, tuple(code), tuple(kernels))
    return program, _pack([*parser.nbytes, *parser.values]) if parser.sized is not False else None


def _digest(parser: _Parser, line: str) -> bytes:
    try:
        return bytes.fromhex(line.partition(" ")[2])
    except ValueError:
        raise parser.fail(f"expected 'kernel HEX', not {line!r}") from None


def _headed(parser: _Parser, line: str, word: str) -> int:
    head, _, rest = line.partition(" ")
    if head != word:
        raise parser.fail(f"expected '{word} NUMBER', not {line!r}")
    return parser.number(rest.strip())


def _pack(values: Sequence[int]) -> bytes:
    return np.array(values, "<i8").tobytes()
