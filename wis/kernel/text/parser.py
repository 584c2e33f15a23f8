"""Parses kernels from text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from wis.kernel.model import (
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
    Ret,
    ScalarParam,
    Shared,
    Switch,
    Sync,
    Terminator,
)
from wis.kernel.ops import BY_NAME, KernelOp
from wis.kernel.text.attributes import read_attributes
from wis.kernel.text.printer import ACCESS, constant_type
from wis.kernel.text.words import NAME, NUMBER, Reader

__all__ = ["parse_kernel", "read_kernel", "meaningful"]

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
