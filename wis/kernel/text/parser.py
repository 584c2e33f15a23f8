"""Prints kernels as text, and parses them from it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from wis.errors import Finding
from wis.kernel.model import (
    Access,
    Bar,
    Block,
    Br,
    BufferParam,
    Call,
    Cbr,
    Function,
    Kernel,
    Math,
    Op,
    RegType,
    Ret,
    ScalarParam,
    Shared,
    Switch,
    Sync,
    Terminator,
)
from wis.kernel.ops import BY_CODE, BY_NAME, KernelOp
from wis.kernel.text.words import (
    NAME,
    NUMBER,
    Reader,
    attributes_text,
    dtype_text,
    name_text,
    read_attributes,
    reg_type_text,
    registers_text,
)

__all__ = ["HEX_LINE", "meaningful", "parse_kernel", "print_kernel", "read_kernel"]

ACCESS: Final = {Access.READ: "r", Access.WRITE: "w", Access.READ_WRITE: "rw"}
HEX_LINE: Final = 64
"""Bytes in a line of hex."""


class _Lines:
    """Lines of text, each with the findings about its place."""

    def __init__(self, findings: Iterable[Finding]) -> None:
        self._notes: dict[str, list[str]] = defaultdict(list)
        for finding in findings:
            place, _, number = finding.place.rpartition(" ")
            at_regs = place.endswith("reg")  # a register's type stands in the line of all of them
            note = f"[{finding.rule}] {f'reg {number}: ' if at_regs else ''}{finding.text}"
            self._notes[f"{place}s" if at_regs else finding.place].append(note)
        self._lines: list[tuple[str, list[str]]] = []

    def add(self, text: str, place: str = "") -> None:
        self._lines.append((text, self._notes.pop(place, [])))

    def text(self) -> str:
        """All lines; what was found about places without a line is said in the first one."""
        self._lines[0][1].extend(note for notes in self._notes.values() for note in notes)
        return "".join("  ; error: ".join((text, *notes)) + "\n" for text, notes in self._lines)


def print_kernel(kernel: Kernel, findings: Iterable[Finding] = ()) -> str:
    """The text of ``kernel``. Works on kernels that break rules."""
    out = _Lines(findings)
    out.add(f"kernel {kernel.version} {name_text(kernel.name)}", "kernel")
    out.add(f"math {Math(kernel.math).name.lower() if kernel.math in Math._value2member_map_ else f'#{kernel.math}'}")
    out.add(f"threads {kernel.threads_max}")
    for number, param in enumerate(kernel.params):
        out.add(f"param {_param_text(param)}", f"param {number}")
    for number, array in enumerate(kernel.shared):
        out.add(f"shared {dtype_text(array.dtype)}[{array.n}]", f"shared {number}")
    for word, value in (("dynamic", kernel.dynamic), ("local", kernel.local_bytes)):
        if value:
            out.add(f"{word} {value}")
    for first in range(0, len(kernel.constants), HEX_LINE):
        out.add(f"constants {kernel.constants[first : first + HEX_LINE].hex()}")
    if kernel.file:
        out.add(f"file {name_text(kernel.file)}")
    ops = [op for blocks in (kernel.blocks, *(f.blocks for f in kernel.functions)) for block in blocks for op in block.code]
    beside = len(kernel.lines) == len(ops) and any(kernel.lines)
    if kernel.lines and not beside:
        out.add(" ".join(["lines", *map(str, kernel.lines)]), "lines")
    lines = iter(kernel.lines) if beside else iter([0] * len(ops))
    _print_body(out, "", kernel.regs, kernel.blocks, lines)
    for number, function in zip(count(), kernel.functions, strict=False):
        head = f"function {number} {name_text(function.name)} ({registers_text(function.ins)}) -> ({registers_text(function.outs)})"
        out.add(head, f"function {number}")
        _print_body(out, f"function {number} ", function.regs, function.blocks, lines)
    return out.text()


def _print_body(out: _Lines, place: str, regs: Sequence[int], blocks: Sequence[Block], lines: Iterable[int]) -> None:
    source = iter(lines)
    out.add(" ".join(["regs", *map(reg_type_text, regs)]), f"{place}regs")
    for b, block in enumerate(blocks):
        out.add(f"block {b}")
        for i, op in enumerate(block.code):
            line = next(source)
            out.add(f"  {_op_text(regs, op)}{f' @{line}' if line else ''}", f"{place}block {b} op {i}")
        out.add(f"  {_end_text(block.end)}", f"{place}block {b} end")


def _param_text(param: BufferParam | ScalarParam) -> str:
    if isinstance(param, ScalarParam):
        return reg_type_text(param.reg_type)
    access = ACCESS[Access(param.access)] if param.access in Access._value2member_map_ else f"#{param.access}"
    return f"buf {dtype_text(param.dtype)} {access}"


def _end_text(end: Terminator) -> str:
    match end:
        case Br(target):
            return f"br {target}"
        case Bar(target):
            return f"bar {target}"
        case Cbr(pred, yes, no):
            return f"cbr r{pred}, {yes}, {no}"
        case Switch(index, targets, default):
            return f"switch r{index}, [{', '.join(map(str, targets))}], {default}"
        case Call(function, ins, outs, target):
            return f"call {function} ({registers_text(ins)}) -> ({registers_text(outs)}), {target}"
        case Sync(target, barrier, n, arrive) if arrive in (0, 1) and n >= -1:
            return f"{'arrive' if arrive else 'sync'} {target}, {barrier}{f', r{n}' if n >= 0 else ''}"
        case Sync(target, barrier, n, arrive):
            return f"sync #{target} {barrier} {n} {arrive}"
        case Ret():
            return "ret"


def _op_text(regs: Sequence[int], op: Op) -> str:
    row = BY_CODE.get(op.op)
    words = f"#{' '.join(map(str, op.attrs))}" if op.attrs else ""
    if row is not None and len(op.attrs) == len(row.attrs):
        said = attributes_text(row, op.attrs, constant_type(regs, op.outs)) if op.attrs else ""
        words = words if said is None else said
    result = f"{registers_text(op.outs)} = " if op.outs else ""
    head = row.name if row is not None else f"op#{op.op}"
    return f"{result}{head}{f'({words})' if words else ''} {registers_text(op.ins)}".rstrip()


def constant_type(regs: Sequence[int], outs: Sequence[int]) -> RegType | None:
    """The type of a constant: its one register's, when that exists."""
    code = regs[outs[0]] if len(outs) == 1 and 0 <= outs[0] < len(regs) else -1
    return RegType(code) if code in RegType._value2member_map_ else None


_OP: Final = re.compile(
    r"(?:(?P<outs>r[^=]*?) = )?(?P<op>[a-z0-9_]+|op#-?[0-9]{1,20})(?:\((?P<attrs>[^)]*)\))?"
    r"(?: (?P<ins>r[^@]*?))?(?: @(?P<line>-?[0-9]{1,20}))?"
)
_BEFORE_COMMENT: Final = re.compile(r'(?:"(?:[^"\\]|\\.)*"|[^;])*')
_HEADS: Final = ("kernel", "math", "threads", "dynamic", "local", "file", "lines")  # at most once, before blocks
_LIST: Final = r"\(([^()]*)\)"


@dataclass(slots=True)
class _Body:
    """Code under construction, the kernel's or a function's."""

    name: str = ""
    ins: tuple[int, ...] = ()
    outs: tuple[int, ...] = ()
    regs: tuple[int, ...] | None = None
    blocks: list[Block] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)


class _Parser(Reader):
    def __init__(self) -> None:
        super().__init__()
        self.heads: dict[str, str] = {}
        self.params: list[BufferParam | ScalarParam] = []
        self.shared: list[Shared] = []
        self.constants = bytearray()
        self.bodies = [_Body()]
        self.open: list[Op] | None = None  # ops of the open block

    def read(self, line: str) -> None:
        """One line, without a comment, not empty."""
        body = self.bodies[-1]
        word, _, rest = line.partition(" ")
        rest = rest.strip()
        if self.open is not None:
            end = self._end(word, rest)
            if end is None:
                self.open.append(self._op(line))
            else:
                body.blocks.append(Block(tuple(self.open), end))
                self.open = None
        elif word == "block" and body.regs is not None:
            if self.number(rest) != len(body.blocks):
                raise self.fail(f"block {rest}, expected {len(body.blocks)}: blocks are numbered in order")
            self.open = []
        elif word == "regs" and body.regs is None:
            body.regs = tuple(self.reg_type(part) for part in rest.split())
        elif word == "function":
            self._function(rest)
        elif len(self.bodies) == 1 and not body.blocks:
            self._head(word, rest, line)
        else:
            raise self.fail(f"{line!r} is not expected here")

    def _head(self, word: str, rest: str, line: str) -> None:
        if word == "param":
            self.params.append(self._param(rest))
        elif word == "shared":
            found = self.match(rf"([a-z#0-9-]+)\[({NUMBER})\]", rest, "is not 'TYPE[N]'")
            self.shared.append(Shared(self.dtype(found[1]), self.number(found[2])))
        elif word == "constants":
            self.constants += self.hex(rest)
        elif word in _HEADS and word not in self.heads:
            self.heads[word] = rest
        else:
            raise self.fail(f"{line!r} is not expected here")

    def _param(self, text: str) -> BufferParam | ScalarParam:
        words = text.split()
        if len(words) == 1:
            return ScalarParam(self.reg_type(words[0]))
        if len(words) != 3 or words[0] != "buf":
            raise self.fail(f"{text!r} is not 'buf TYPE ACCESS' or a register type")
        return BufferParam(self.dtype(words[1]), self.code(words[2], {v: int(k) for k, v in ACCESS.items()}, "r, w or rw"))

    def _function(self, text: str) -> None:
        found = self.match(rf"({NUMBER}) ({NAME}) {_LIST} -> {_LIST}", text, "is not 'N NAME (rA, ...) -> (rR, ...)'")
        if self.number(found[1]) != len(self.bodies) - 1:
            raise self.fail(f"function {found[1]}, expected {len(self.bodies) - 1}: functions are numbered in order")
        self._need_regs()
        self.bodies.append(_Body(self.name(found[2]), self.registers(found[3]), self.registers(found[4])))

    def _need_regs(self) -> None:
        if self.bodies[-1].regs is None:
            raise self.fail("the text ends without regs" if len(self.bodies) == 1 else "a function without regs")

    def _end(self, word: str, rest: str) -> Terminator | None:
        match word:
            case "ret" if not rest:
                return Ret()
            case "br" | "bar":
                return (Br if word == "br" else Bar)(self.number(rest))
            case "cbr":
                parts = self._parts(rest, 3, "cbr rP, YES, NO")
                return Cbr(self.register(parts[0]), self.number(parts[1]), self.number(parts[2]))
            case "switch":
                found = self.match(rf"(r{NUMBER}), \[([^\]]*)\], ({NUMBER})", rest, "is not 'rI, [B, ...], DEFAULT'")
                targets = tuple(self.number(part.strip()) for part in found[2].split(",")) if found[2] else ()
                return Switch(self.register(found[1]), targets, self.number(found[3]))
            case "call":
                found = self.match(rf"({NUMBER}) {_LIST} -> {_LIST}, ({NUMBER})", rest, "is not 'F (rA, ...) -> (rR, ...), B'")
                return Call(self.number(found[1]), self.registers(found[2]), self.registers(found[3]), self.number(found[4]))
            case "sync" if rest.startswith("#"):
                numbers = [self.number(part) for part in rest[1:].split()]
                if len(numbers) != 4:
                    raise self.fail(f"{rest!r} is not four numbers")
                return Sync(*numbers)
            case "sync" | "arrive":
                parts = self._parts(rest, 3 if rest.count(",") > 1 else 2, f"{word} B, BARRIER, rCOUNT")
                count = self.register(parts[2]) if len(parts) > 2 else -1
                return Sync(self.number(parts[0]), self.number(parts[1]), count, int(word == "arrive"))
        return None

    def _parts(self, text: str, n: int, form: str) -> list[str]:
        parts = [part.strip() for part in text.split(",")]
        if len(parts) != n:
            raise self.fail(f"{text!r} is not '{form}'")
        return parts

    def _op(self, text: str) -> Op:
        found = _OP.fullmatch(text)
        if found is None:
            raise self.fail(f"{text!r} is not an operation")
        name = found["op"]
        row = BY_NAME.get(name)
        if row is None and not name.startswith("op#"):
            raise self.fail(f"there is no op called {name!r}")
        outs = self.registers(found["outs"])
        attrs = self._attrs(row, outs, found["attrs"]) if found["attrs"] is not None else ()
        self.bodies[-1].lines.append(self.number(found["line"]) if found["line"] else 0)
        return Op(row.code if row is not None else self.number(name[3:]), outs, self.registers(found["ins"]), attrs)

    def _attrs(self, row: KernelOp | None, outs: tuple[int, ...], text: str) -> tuple[int, ...]:
        if text.startswith("#"):
            return tuple(self.number(part) for part in text[1:].split())
        if row is None:
            raise self.fail(f"({text}) are no attributes of this op")
        return read_attributes(self, row, constant_type(self.bodies[-1].regs or (), outs), text)

    def kernel(self) -> Kernel:
        """What was read."""
        missing = {"kernel", "math", "threads"} - set(self.heads)
        if missing or self.open is not None:
            raise self.fail(f"the text ends without {', '.join(sorted(missing)) or 'the end of a block'}")
        self._need_regs()
        version, _, name = self.heads["kernel"].partition(" ")
        main, *functions = self.bodies
        lines = [line for body in self.bodies for line in body.lines]
        if "lines" in self.heads:
            lines = [self.number(part) for part in self.heads["lines"].split()]
        return Kernel(
            self.number(version),
            self.name(name),
            math=self.code(self.heads["math"], {m.name.lower(): int(m) for m in Math}, "a math policy"),
            threads_max=self.number(self.heads["threads"]),
            params=tuple(self.params),
            shared=tuple(self.shared),
            regs=main.regs or (),
            blocks=tuple(main.blocks),
            dynamic=self.number(self.heads.get("dynamic", "0")),
            local_bytes=self.number(self.heads.get("local", "0")),
            constants=bytes(self.constants),
            functions=tuple(Function(f.name, f.ins, f.outs, f.regs or (), tuple(f.blocks)) for f in functions),
            file=self.name(self.heads.get("file", "")),
            lines=tuple(lines) if "lines" in self.heads or any(lines) else (),
        )


def meaningful(text: str) -> list[tuple[int, str]]:
    """Lines with something in them, comments cut off, and their numbers (from 1)."""
    lines = ((number, _BEFORE_COMMENT.match(raw)) for number, raw in enumerate(text.splitlines(), start=1))
    return [(number, found[0].strip()) for number, found in lines if found is not None and found[0].strip()]


def read_kernel(lines: Iterable[tuple[int, str]], last: int) -> Kernel:
    """The kernel in numbered lines; what is missing is missed at line ``last``."""
    parser = _Parser()
    for parser.line, line in lines:
        parser.read(line)
    parser.line = last
    return parser.kernel()


def parse_kernel(text: str) -> Kernel:
    """The kernel. Raises ParseError naming the line."""
    return read_kernel(meaningful(text), len(text.splitlines()))
