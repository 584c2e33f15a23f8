"""The text form of kernels: prints any kernel, also a broken one with findings beside the lines; parses what it prints.

::

    kernel 1 vadd
    math strict
    threads 256
    param buf f32 r
    param i64
    shared f32[256]
    regs i32 i64 f32
    block 0
      r0 = special(tid.x)
      r1 = sext r0
      r2 = ld(p0 f32) r1
      st(s0 f32) r1, r2
      bar 1
    block 1
      ret

Parameters are p0, p1, ... and shared arrays s0, s1, ... in order of their lines; registers r0, r1, ... have the types of the ``regs`` line.
A block ends in ``br B``, ``cbr rP, YES, NO``, ``bar B`` or ``ret``. Constants are written as values of their register's type, or as
``bits:0x..``. ``;`` starts a comment. May live here: text. May not: rules, meaning.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from wis.dtypes import DType
from wis.errors import Finding, ParseError
from wis.kernel.model import (
    Access,
    Bar,
    Block,
    Br,
    BufferParam,
    Cbr,
    Kernel,
    Math,
    Op,
    RegType,
    Ret,
    ScalarParam,
    Shared,
    Space,
    Special,
    Terminator,
)
from wis.kernel.ops import BY_CODE, BY_NAME, KernelOp, Sig

__all__ = ["print_kernel", "parse_kernel"]

_ACCESS: Final = {Access.READ: "r", Access.WRITE: "w", Access.READ_WRITE: "rw"}
_SPECIALS: Final = {special.text: special for special in Special}
_FLOATS: Final = {RegType.F16: DType.F16, RegType.BF16: DType.BF16, RegType.F32: DType.F32, RegType.F64: DType.F64}


def print_kernel(kernel: Kernel, findings: Iterable[Finding] = ()) -> str:
    """The text of ``kernel``. Works on kernels that break rules."""
    notes: dict[str, list[str]] = defaultdict(list)
    for finding in findings:
        place = "regs" if finding.place.startswith("reg ") else finding.place
        notes[place].append(f"[{finding.rule}] {finding.place + ': ' if place == 'regs' else ''}{finding.text}")
    lines = []

    def add(place: str, text: str) -> None:
        lines.append("".join([text, *(f"  ; error: {note}" for note in notes.get(place, ()))]))

    add("kernel", f"kernel {kernel.version} {kernel.name}")
    lines.append(f"math {Math(kernel.math).name.lower() if kernel.math in Math._value2member_map_ else f'#{kernel.math}'}")
    lines.append(f"threads {kernel.threads_max}")
    for number, param in enumerate(kernel.params):
        add(f"param {number}", f"param {_param_text(param)}")
    for number, array in enumerate(kernel.shared):
        add(f"shared {number}", f"shared {_dtype(array.dtype)}[{array.n}]")
    add("regs", " ".join(["regs", *map(_reg_type, kernel.regs)]))
    for b, block in enumerate(kernel.blocks):
        lines.append(f"block {b}")
        for i, op in enumerate(block.code):
            add(f"block {b} op {i}", f"  {_op_text(kernel, op)}")
        add(f"block {b} end", f"  {_end_text(block.end)}")
    return "\n".join(lines) + "\n"


def _dtype(code: int) -> str:
    return DType(code).text if code in DType._value2member_map_ else f"#{code}"


def _reg_type(code: int) -> str:
    return RegType(code).text if code in RegType._value2member_map_ else f"#{code}"


def _param_text(param: BufferParam | ScalarParam) -> str:
    if isinstance(param, ScalarParam):
        return _reg_type(param.reg_type)
    access = _ACCESS[Access(param.access)] if param.access in Access._value2member_map_ else f"#{param.access}"
    return f"buf {_dtype(param.dtype)} {access}"


def _end_text(end: Terminator) -> str:
    if isinstance(end, Cbr):
        return f"cbr r{end.pred}, {end.yes}, {end.no}"
    if isinstance(end, Ret):
        return "ret"
    return f"{'br' if isinstance(end, Br) else 'bar'} {end.target}"


def _registers(numbers: Sequence[int]) -> str:
    return ", ".join(f"r{n}" for n in numbers)


def _op_text(kernel: Kernel, op: Op) -> str:
    row = BY_CODE.get(op.op)
    head = row.name if row is not None else f"op#{op.op}"
    attrs = _attrs_text(kernel, row, op)
    result = f"{_registers(op.outs)} = " if op.outs else ""
    return f"{result}{head}{f'({attrs})' if attrs else ''} {_registers(op.ins)}".rstrip()


def _attrs_text(kernel: Kernel, row: KernelOp | None, op: Op) -> str:
    raw = f"#{' '.join(map(str, op.attrs))}" if op.attrs else ""
    if row is None or len(op.attrs) != len(row.attrs):
        return raw
    if row.sig is Sig.CONST:
        kind = _constant_type(kernel.regs, op.outs)
        return _constant_text(op.attrs[0], kind) if kind is not None else raw
    if row.sig is Sig.SPECIAL:
        return Special(op.attrs[0]).text if op.attrs[0] in Special._value2member_map_ else raw
    if row.sig is Sig.PARAM:
        return f"p{op.attrs[0]}" if op.attrs[0] >= 0 else raw
    if row.sig in (Sig.LOAD, Sig.STORE):
        space, which, dtype = op.attrs
        good = space in (Space.GLOBAL, Space.SHARED) and which >= 0 and dtype in DType._value2member_map_
        return f"{'p' if space == Space.GLOBAL else 's'}{which} {_dtype(dtype)}" if good else raw
    return raw


def _constant_type(regs: Sequence[int], outs: tuple[int, ...]) -> RegType | None:
    """The type of a constant: its one register's, when that exists."""
    code = regs[outs[0]] if len(outs) == 1 and 0 <= outs[0] < len(regs) else -1
    return RegType(code) if code in RegType._value2member_map_ else None


def _constant_text(bits: int, kind: RegType) -> str:
    dtype = _FLOATS.get(kind)
    if dtype is None:
        return str(bits)
    if not -(1 << kind.bits - 1) <= bits < 1 << kind.bits - 1:
        return f"#{bits}"
    value = float(np.array([bits], f"i{kind.bits // 8}").view(dtype.numpy)[0])
    return repr(value) if value == value else f"bits:{hex(bits & ((1 << kind.bits) - 1))}"


def _constant_bits(parser: _Parser, text: str, kind: RegType) -> int:
    dtype = _FLOATS.get(kind)
    width = kind.bits
    if text.startswith("bits:"):
        value = int(parser.match(r"bits:(0x[0-9a-f]{1,16})", text, "is not bits")[1], 16)
        return value - (1 << width) if value >> width - 1 & 1 and width > 1 else value
    if dtype is None:
        return parser.number(text)
    try:
        value_f = float(text)
    except ValueError:
        raise parser.fail(f"{text!r} is not a number") from None
    with np.errstate(over="ignore"):
        return int(np.array([value_f]).astype(np.float64).astype(dtype.numpy).view(f"i{width // 8}")[0])


_NUMBER: Final = r"-?[0-9]{1,20}"
_OP: Final = re.compile(r"(?:(?P<outs>r[^=]*?) = )?(?P<op>[a-z0-9_]+|op#-?[0-9]{1,20})(?:\((?P<attrs>[^)]*)\))?(?: (?P<ins>r.*))?")


class _Parser:
    def __init__(self) -> None:
        self.line = 0
        self.regs: list[int] = []

    def fail(self, text: str) -> ParseError:
        return ParseError(self.line, text)

    def match(self, pattern: str, text: str, complaint: str) -> re.Match[str]:
        found = re.fullmatch(pattern, text)
        if found is None:
            raise self.fail(f"{text!r} {complaint}")
        return found

    def number(self, text: str) -> int:
        value = int(self.match(_NUMBER, text, "is not a whole number")[0])
        if not -(1 << 63) <= value < 1 << 63:
            raise self.fail(f"{value} does not fit 64 bits")
        return value

    def code(self, text: str, names: dict[str, int], what: str) -> int:
        if text.startswith("#"):
            return self.number(text[1:])
        if text not in names:
            raise self.fail(f"{text!r} is not {what}")
        return names[text]

    def dtype(self, text: str) -> int:
        return self.code(text, {d.text: int(d) for d in DType}, "an element type")

    def reg_type(self, text: str) -> int:
        return self.code(text, {t.text: int(t) for t in RegType}, "a register type")

    def param(self, text: str) -> BufferParam | ScalarParam:
        words = text.split()
        if len(words) == 1:
            return ScalarParam(self.reg_type(words[0]))
        if len(words) != 3 or words[0] != "buf":
            raise self.fail(f"{text!r} is not 'buf TYPE ACCESS' or a register type")
        return BufferParam(self.dtype(words[1]), self.code(words[2], {v: int(k) for k, v in _ACCESS.items()}, "r, w or rw"))

    def shared(self, text: str) -> Shared:
        found = self.match(rf"([a-z#0-9-]+)\[({_NUMBER})\]", text, "is not 'TYPE[N]'")
        return Shared(self.dtype(found[1]), self.number(found[2]))

    def register(self, text: str) -> int:
        return self.number(self.match(rf"r({_NUMBER})", text, "is not a register")[1])

    def registers(self, text: str | None) -> tuple[int, ...]:
        return tuple(self.register(part.strip()) for part in text.split(",")) if text else ()

    def end(self, text: str) -> Terminator | None:
        word, _, rest = text.partition(" ")
        if word == "ret" and not rest:
            return Ret()
        if word in ("br", "bar"):
            return (Br if word == "br" else Bar)(self.number(rest))
        if word == "cbr":
            parts = [part.strip() for part in rest.split(",")]
            if len(parts) != 3:
                raise self.fail(f"{text!r} is not 'cbr rP, YES, NO'")
            return Cbr(self.register(parts[0]), self.number(parts[1]), self.number(parts[2]))
        return None

    def op(self, text: str) -> Op:
        found = _OP.fullmatch(text)
        if found is None:
            raise self.fail(f"{text!r} is not an operation")
        name = found["op"]
        row = BY_NAME.get(name)
        if row is None and not name.startswith("op#"):
            raise self.fail(f"there is no op called {name!r}")
        outs = self.registers(found["outs"])
        attrs = self.attrs(row, outs, found["attrs"]) if found["attrs"] is not None else ()
        return Op(row.code if row is not None else self.number(name[3:]), outs, self.registers(found["ins"]), attrs)

    def attrs(self, row: KernelOp | None, outs: tuple[int, ...], text: str) -> tuple[int, ...]:
        if text.startswith("#"):
            return tuple(self.number(part) for part in text[1:].split())
        sig = row.sig if row is not None else None
        if sig is Sig.CONST:
            kind = _constant_type(self.regs, outs)
            if kind is None:
                raise self.fail("a constant needs one register of a known type")
            return (_constant_bits(self, text, kind),)
        if sig is Sig.SPECIAL:
            return (self.code(text, {k: int(v) for k, v in _SPECIALS.items()}, "a special value"),)
        if sig is Sig.PARAM:
            return (self.number(self.match(r"p([0-9]{1,20})", text, "is not a parameter")[1]),)
        if sig in (Sig.LOAD, Sig.STORE):
            found = self.match(r"([ps])([0-9]{1,20}) (\S+)", text, "is not 'pN TYPE' or 'sN TYPE'")
            return (int(Space.GLOBAL if found[1] == "p" else Space.SHARED), self.number(found[2]), self.dtype(found[3]))
        raise self.fail(f"({text}) are no attributes of this op")


def parse_kernel(text: str) -> Kernel:
    """The kernel. Raises ParseError naming the line."""
    parser = _Parser()
    heads: dict[str, str] = {}
    params: list[BufferParam | ScalarParam] = []
    shared: list[Shared] = []
    blocks: list[Block] = []
    code: list[Op] | None = None
    for parser.line, raw in enumerate(text.splitlines(), start=1):
        line = raw.partition(";")[0].strip()
        word, _, rest = line.partition(" ")
        if not line:
            continue
        if code is not None:
            end = parser.end(line)
            if end is None:
                code.append(parser.op(line))
            else:
                blocks.append(Block(tuple(code), end))
                code = None
        elif word == "block":
            if parser.number(rest) != len(blocks):
                raise parser.fail(f"block {rest}, expected {len(blocks)}: blocks are numbered in order")
            code = []
        elif word == "param":
            params.append(parser.param(rest))
        elif word == "shared":
            shared.append(parser.shared(rest))
        elif word in ("kernel", "math", "threads", "regs") and word not in heads and not blocks:
            heads[word] = rest
            if word == "regs":
                parser.regs = [parser.reg_type(part) for part in rest.split()]
        else:
            raise parser.fail(f"{line!r} is not expected here")
    missing = {"kernel", "math", "threads", "regs"} - set(heads)
    if missing or code is not None:
        raise parser.fail(f"the text ends without {', '.join(sorted(missing)) or 'the end of a block'}")
    version, _, name = heads["kernel"].partition(" ")
    policy = parser.code(heads["math"], {m.name.lower(): int(m) for m in Math}, "a math policy")
    return Kernel(
        parser.number(version),
        name,
        policy,
        parser.number(heads["threads"]),
        tuple(params),
        tuple(shared),
        tuple(parser.regs),
        tuple(blocks),
    )
