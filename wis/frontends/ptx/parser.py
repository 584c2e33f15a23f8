"""Parses PTX tokens: declarations, scopes of registers and labels, statements."""

from __future__ import annotations

import re
import struct
from typing import Final

from wis.frontends.ptx.syntax import (
    Address,
    Instruction,
    Name,
    Not,
    Number,
    Operand,
    Pair,
    Param,
    PtxError,
    Register,
    Routine,
    Source,
    Variable,
    Vector,
    number,
    single,
    tokens,
)

VERSIONS: Final = ((6, 0), (9, 9))
"""Versions of PTX that are accepted, first and last."""
SIZES: Final = {
    **{f"{kind}{bits}": bits // 8 for kind in "bus" for bits in (8, 16, 32, 64)},
    "f16": 2, "bf16": 2, "f16x2": 4, "bf16x2": 4, "f32": 4, "f64": 8, "pred": 1, "b128": 16, "u16x2": 4, "s16x2": 4,
}  # fmt: skip
"""Bytes of every type."""
_SPACES: Final = frozenset({".global", ".const", ".shared", ".local", ".param", ".reg"})
_LINKING: Final = frozenset({".visible", ".extern", ".weak", ".common"})
_RANGED: Final = re.compile(r"(.*?)(\d+)\Z", re.ASCII)
_USED_BYTES: Final = re.compile(r'"used_bytes_mask (\w+)"', re.ASCII)
_REFUSED_TYPES: Final = frozenset({".texref", ".samplerref", ".surfref"})
_MAX_BYTES: Final = 1 << 26


def parse(text: str) -> Source:
    """Raises PtxError (without the line's text) at the first thing that cannot be."""
    words, lines = tokens(text)
    return _Parser(words, lines).module()


class _Parser:
    def __init__(self, words: list[str], lines: list[int]) -> None:
        self.words, self.lines = [*words, "", "", ""], [*lines, *[lines[-1] if lines else 1] * 3]
        self.at = 0
        self.source = Source()
        self.main_file = 1
        self.routine: Routine | None = None
        self.used = -1  # for the next instruction
        self.registers: list[dict[str, Register]] = []  # one a scope that is open
        self.ranges: list[dict[str, tuple[str, int]]] = []  # prefix to type and count
        self.open: list[int] = []  # numbers of the scopes
        self.made = 0

    # -- tokens ----------------------------------------------------------------------------------------------------------------------

    def fail(self, text: str, hint: str = "") -> PtxError:
        return PtxError(self.lines[self.at], text, hint=hint)

    def next(self) -> str:
        word = self.words[self.at]
        if not word:
            raise self.fail("the text ends too early")
        self.at += 1
        return word

    def take(self, word: str) -> bool:
        if self.words[self.at] == word:
            self.at += 1
            return True
        return False

    def expect(self, word: str) -> None:
        if self.words[self.at] != word:
            raise self.fail(f"expected {word!r}, found {self.words[self.at] or 'the end'!r}")
        self.at += 1

    def identifier(self) -> str:
        word = self.next()
        if not (word[0].isalpha() or word[0] in "_$%"):
            self.at -= 1
            raise self.fail(f"expected a name, found {word!r}")
        return word

    def integer(self) -> int:
        negative = self.take("-")
        found = number(self.next())
        if found is None or found[1] != "i":
            self.at -= 1
            raise self.fail("expected an integer")
        return -found[0] if negative else found[0]

    def skip_to(self, end: str) -> None:
        while not self.take(end):
            self.next()

    def skip_line(self) -> None:
        line = self.lines[self.at]
        while self.words[self.at] and self.lines[self.at] == line:
            self.at += 1

    # -- the file --------------------------------------------------------------------------------------------------------------------

    def module(self) -> Source:
        self.header()
        while self.words[self.at]:
            word = self.words[self.at]
            if word in _LINKING or word in _SPACES or word in (".entry", ".func", ".tex"):
                self.declaration()
            elif word == ".file":
                self.file()
            elif word in (".loc", ".pragma"):
                self.skip_line()
            elif word == ".section":
                self.skip_to("{")
                self.skip_to("}")
            elif word == ".alias":
                self.alias()
            elif word in (".target", ".address_size", ".version"):
                raise self.fail(f"a second {word}")
            else:
                raise self.fail(f"{word!r} cannot stand outside of functions")
        return self.source

    def header(self) -> None:
        if not self.take(".version"):
            raise self.fail("PTX starts with .version", "is this PTX text?")
        word = self.next()
        major, _, minor = word.partition(".")
        if not (major.isdigit() and minor.isdigit()):
            raise self.fail(f"{word!r} is not a version")
        version = int(major), int(minor)
        if not VERSIONS[0] <= version <= VERSIONS[1]:
            self.at -= 1
            first, last = (".".join(map(str, v)) for v in VERSIONS)
            raise self.fail(f"version {word} of PTX is not known; {first} to {last} are")
        self.source.version = version
        self.expect(".target")
        self.source.target = self.next()
        while self.take(","):
            self.next()
        if self.take(".address_size") and self.next() != "64":
            self.at -= 1
            raise self.fail("only addresses of 64 bits are supported", "compile for a 64-bit target")

    def file(self) -> None:
        line = self.lines[self.at]
        self.at += 1
        where = self.integer()
        self.source.files[where] = self.next().strip('"')
        if self.lines[self.at] == line:
            self.skip_line()

    def alias(self) -> None:
        self.at += 1
        name = self.identifier()
        self.expect(",")
        target = self.identifier()
        self.expect(";")
        if target not in self.source.routines:
            raise self.fail(f"there is no function {target}")
        self.source.routines[name] = self.source.routines[target]

    def declaration(self) -> None:
        linking = set()
        while self.words[self.at] in _LINKING:
            linking.add(self.next())
        word = self.words[self.at]
        if word in (".entry", ".func"):
            self.function()
        elif word in _SPACES:
            for variable in self.variables(linking):
                known = self.source.variables.get(variable.name)
                if known is None or known.extern:
                    self.source.variables[variable.name] = variable
        elif word == ".tex":
            raise self.fail("textures are not portable", "read from a pointer instead")
        else:
            raise self.fail(f"{word!r} cannot be declared")

    def variables(self, linking: set[str]) -> list[Variable]:
        """``.space .align n .type name[dims] = init, ...;``"""
        line = self.lines[self.at]
        space = self.next()[1:]
        align, type_, width = 0, "", 1
        while self.words[self.at].startswith("."):
            word = self.next()
            if word == ".align":
                align = self.integer()
            elif word in (".v2", ".v4", ".v8"):
                width = int(word[2:])
            elif word == ".attribute":
                self.expect("(")
                self.skip_to(")")
            elif word[1:] in SIZES and word != ".pred":
                type_ = word[1:]
            elif word in _REFUSED_TYPES:
                self.at -= 1
                raise self.fail("textures and surfaces are not portable", "read from a pointer instead")
            elif word != ".ptr":
                self.at -= 1
                raise self.fail(f"{word!r} is not a type")
        if not type_:
            raise self.fail("a variable needs a type")
        size = SIZES[type_] * width
        found = []
        while True:
            name = self.identifier()
            nbytes = self.dimensions(size)
            data, addresses = self.initialiser(type_, nbytes) if self.take("=") else (None, False)
            if nbytes == -1 and data is not None:
                nbytes = len(data)
            found.append(
                Variable(
                    name,
                    space,
                    nbytes,
                    align=align or size,
                    data=data,
                    addresses=addresses,
                    visible=".visible" in linking,
                    extern=".extern" in linking,
                    line=line,
                )
            )
            if not self.take(","):
                break
        self.expect(";")
        return found

    def dimensions(self, size: int) -> int:
        """Bytes of an array, -1 for ``[]``."""
        total = size
        while self.take("["):
            if self.take("]"):
                total = -1
                continue
            n = self.integer()
            self.expect("]")
            if n < 0 or total * n > _MAX_BYTES:
                raise self.fail(f"{n} elements are too many")
            total *= n
        return total

    def initialiser(self, type_: str, nbytes: int) -> tuple[bytes, bool]:
        parts: list[bytes] = []
        addresses = False
        depth = 0
        while True:
            if self.take("{"):
                depth += 1
            elif self.take("}"):
                depth -= 1
            elif not self.take(","):
                value, is_address = self.initial(type_)
                parts.append(value)
                addresses |= is_address
            if depth == 0 and self.words[self.at] in (",", ";"):
                break
            if depth < 0 or not self.words[self.at]:
                raise self.fail("an initialiser that does not end")
        data = b"".join(parts)
        if 0 <= nbytes < len(data):
            raise self.fail(f"{len(data)} bytes for a variable of {nbytes}")
        return data, addresses

    def initial(self, type_: str) -> tuple[bytes, bool]:
        size = SIZES[type_]
        negative = self.take("-")
        word = self.next()
        found = number(word)
        if found is None:
            if not (word[0].isalpha() or word[0] in "_$%"):
                raise self.fail(f"{word!r} is not a value")
            if self.take("("):  # generic(name), mask(name)
                self.skip_to(")")
            if self.take("+"):
                self.integer()
            return bytes(size), True
        if self.take("("):  # one byte of an address: 0xFF00(name), 0xFF00(generic(name)+4)
            depth = 1
            while depth:
                depth += {"(": 1, ")": -1}.get(self.next(), 0)
            return bytes(size), True
        value, kind = found
        if kind == "d" and type_ == "f32":
            value = single(value)
        elif kind == "i" and value >= 1 << 64:
            raise self.fail(f"{word} does not fit 64 bits")
        elif kind == "i" and type_ in ("f32", "f64"):
            code = "f" if type_ == "f32" else "d"
            value = int.from_bytes(struct.pack(f"<{code}", float(value)), "little")
        if negative:
            value = value ^ 1 << size * 8 - 1 if type_ in ("f32", "f64") else -value
        return (value & (1 << size * 8) - 1).to_bytes(size, "little"), False

    # -- functions -------------------------------------------------------------------------------------------------------------------

    def function(self) -> None:
        line = self.lines[self.at]
        kernel = self.next() == ".entry"
        routine = Routine("", kernel, line)
        self.routine = routine
        self.registers, self.ranges, self.open, self.made = [{}], [{}], [0], 0
        while self.words[self.at].startswith("."):  # .unique and the like
            self.at += 1
        if self.words[self.at] == "(":
            routine.results = self.params()
        routine.name = self.identifier()
        if self.words[self.at] == "(":
            routine.params = self.params()
        self.directives(routine)
        if not self.take(";"):
            routine.defined = True
            self.expect("{")
            self.body(routine)
        known = self.source.routines.get(routine.name)
        if known is not None and known.defined and routine.defined:
            raise PtxError(line, f"{routine.name} is defined twice")
        if known is None or routine.defined:
            self.source.routines[routine.name] = routine
        self.routine = None

    def directives(self, routine: Routine) -> None:
        while self.words[self.at].startswith("."):
            word = self.next()
            values = []
            if word == ".pragma":
                self.skip_to(";")
                continue
            while number(self.words[self.at] or "x") is not None:
                values.append(self.integer())
                if not self.take(","):
                    break
            if word in (".maxntid", ".reqntid"):
                routine.threads = 1
                for value in values:
                    routine.threads *= value
            elif word in (".reqnctapercluster", ".maxclusterrank") and any(value > 1 for value in values):
                raise self.fail("clusters of thread blocks are not portable")

    def params(self) -> list[Param]:
        self.expect("(")
        found = []
        while not self.take(")"):
            found.append(self.param())
            if not self.take(",") and self.words[self.at] != ")":
                raise self.fail("expected ',' or ')' between parameters")
        return found

    def param(self) -> Param:
        line = self.lines[self.at]
        kind = self.next()
        if kind not in (".param", ".reg"):
            self.at -= 1
            raise self.fail("expected a parameter")
        type_, align, pointer = "", 0, False
        while self.words[self.at].startswith("."):
            word = self.next()
            if word == ".align":
                align = self.integer()
            elif word == ".ptr":
                pointer = True
            elif word[1:] in SIZES:
                type_ = word[1:]
            elif word in _REFUSED_TYPES:
                self.at -= 1
                raise self.fail("textures and surfaces are not portable", "pass a pointer instead")
            elif word not in (".global", ".shared", ".const", ".local"):
                self.at -= 1
                raise self.fail(f"{word!r} is not a type of a parameter")
        if not type_:
            raise self.fail("a parameter needs a type")
        name = self.identifier()
        nbytes = self.dimensions(SIZES[type_]) if self.words[self.at] == "[" else -1
        register = self.declare(name, type_) if kind == ".reg" else None
        return Param(name, type_, nbytes, align or SIZES[type_], pointer, register, line)

    def declare(self, name: str, type_: str) -> Register:
        register = Register(name, type_, self.made)
        self.made += 1
        self.registers[-1][name] = register
        return register

    # -- statements ------------------------------------------------------------------------------------------------------------------

    def body(self, routine: Routine) -> None:
        depth, source = 1, 0
        words = self.words
        while depth:
            word = words[self.at]
            if word == "{":
                self.at += 1
                depth += 1
                routine.scopes.append(self.open[-1])
                self.open.append(len(routine.scopes) - 1)
                self.registers.append({})
                self.ranges.append({})
            elif word == "}":
                self.at += 1
                depth -= 1
                if depth:
                    self.open.pop()
                    self.registers.pop()
                    self.ranges.pop()
            elif word == ".loc":
                source = self.location()
            elif word == ".reg":
                self.register_declaration()
            elif word == ".param":
                self.at += 1
                self.at -= 1
                for variable in self.variables(set()):
                    self.local_param(routine, variable)
            elif word in _SPACES or word in _LINKING:
                linking = set()
                while words[self.at] in _LINKING:
                    linking.add(self.next())
                for variable in self.variables(linking):
                    if variable.name in routine.variables:
                        raise self.fail(f"two variables of {routine.name} are called {variable.name}", "rename one")
                    routine.variables[variable.name] = variable
            elif word == ".pragma":
                self.pragma()
            elif word == ".file":
                self.file()
            elif word == ";":
                self.at += 1
            elif words[self.at + 1] == ":":
                self.label(routine)
            else:
                routine.code.append(self.instruction(source))

    def pragma(self) -> None:
        """Of those inside of code one says something about meaning: which bytes of the next load are used."""
        found = _USED_BYTES.fullmatch(self.words[self.at + 1])
        mask = number(found[1]) if found is not None else None
        if mask is not None:
            self.used = mask[0]
        self.skip_to(";")

    def local_param(self, routine: Routine, variable: Variable) -> None:
        """Parameters of calls are declared where they are used, with names that repeat: each declaration gets a name of its own."""
        name = f"{variable.name}@{self.open[-1]}"
        self.registers[-1][f"param {variable.name}"] = Register(name, "param", -1)
        routine.locals[name] = Param(name, "", variable.nbytes, variable.align, False, None, variable.line)

    def location(self) -> int:
        """The line of the main file that ``.loc`` names, itself or by where the code was inlined; 0 when it names none."""
        self.source.located = True
        line = self.lines[self.at]
        self.at += 1
        words = self.words
        file, number_ = self.integer(), self.integer()
        while words[self.at] and self.lines[self.at] == line:
            if words[self.at] == "inlined_at" and file != self.main_file:
                self.at += 1
                file, number_ = self.integer(), self.integer()
            else:
                self.at += 1
        return number_ if file == self.main_file else 0

    def register_declaration(self) -> None:
        self.at += 1
        width, type_ = 1, ""
        while self.words[self.at].startswith("."):
            word = self.next()
            if word in (".v2", ".v4", ".v8"):
                width = int(word[2:])
            elif word[1:] in SIZES:
                type_ = word[1:]
            else:
                self.at -= 1
                raise self.fail(f"{word!r} is not a type of a register")
        if not type_:
            raise self.fail("a register needs a type")
        while True:
            name = self.identifier()
            if self.take("<"):
                count = self.integer()
                self.expect(">")
                self.ranges[-1][name] = (type_, count)
            elif width > 1:
                for letter in "xyzw"[:width]:
                    self.declare(f"{name}.{letter}", type_)
                    self.registers[-1][f"{name}.{'rgba'['xyzw'.index(letter)]}"] = self.registers[-1][f"{name}.{letter}"]
                self.registers[-1][f"vector {name}"] = Register(name, str(width), -1)
            else:
                self.declare(name, type_)
            if not self.take(","):
                break
        self.expect(";")

    def label(self, routine: Routine) -> None:
        line, name = self.lines[self.at], self.identifier()
        self.expect(":")
        key = (self.open[-1], name)
        if key in routine.labels or key in routine.tables:
            raise PtxError(line, f"label {name} stands twice")
        word = self.words[self.at]
        if word in (".branchtargets", ".calltargets"):
            self.at += 1
            routine.tables[key] = self.operands(";")
        elif word == ".callprototype":
            self.skip_to(";")
            routine.tables[key] = []
        else:
            routine.labels[key] = len(routine.code)

    def instruction(self, source: int) -> Instruction:
        guard, negated = None, False
        line = self.lines[self.at]
        if self.take("@"):
            negated = self.take("!")
            found = self.name_or_register(self.identifier())
            if not isinstance(found, Register) or found.type != "pred":
                self.at -= 1
                raise self.fail("a guard is a predicate register")
            guard = found
        word = self.next()
        if not word[0].isalpha():
            self.at -= 1
            raise self.fail(f"expected an instruction, found {word!r}")
        op, *mods = word.split(".")
        if op == "call":
            return self.call(line, source, guard, negated, tuple(mods))
        used, self.used = self.used, -1
        return Instruction(line, source, guard, negated, op, mods=tuple(mods), args=self.operands(";"), used=used)

    def call(self, line: int, source: int, guard: Register | None, negated: bool, mods: tuple[str, ...]) -> Instruction:
        results: list[Operand] = []
        given: list[Operand] = []
        if self.take("("):
            results = self.operands(")")
            self.expect(",")
        target = self.operand()
        rest: list[Operand] = []
        while self.take(","):
            if self.take("("):
                given = self.operands(")")
            else:
                rest.append(self.operand())
        self.expect(";")
        return Instruction(line, source, guard, negated, "call", mods=mods, args=[target, *rest], lists=(results, given))

    def operands(self, end: str) -> list[Operand]:
        found: list[Operand] = []
        if self.take(end):
            return found
        while True:
            found.append(self.operand())
            if self.take(end):
                return found
            self.expect(",")

    def operand(self) -> Operand:
        word = self.words[self.at]
        if word == "[":
            return self.address()
        if word == "{":
            self.at += 1
            return Vector(tuple(self.operands("}")))
        if word == "!":
            self.at += 1
            found = self.name_or_register(self.identifier())
            if not isinstance(found, Register):
                raise self.fail("'!' stands before predicate registers")
            return Not(found)
        if word == "-" or (word and word[0].isdigit()):
            return self.literal()
        first = self.name_or_register(self.identifier())
        following = self.words[self.at]
        if following == "|":
            self.at += 1
            return Pair(first, self.name_or_register(self.identifier()))
        if isinstance(first, Name) and following in ("+", "-"):
            return Name(first.text, self.distance(), first.scope)
        return first

    def literal(self) -> Number:
        negative = self.take("-")
        found = number(self.next())
        if found is None:
            self.at -= 1
            raise self.fail(f"{self.words[self.at]!r} is not a number")
        value, kind = found
        if negative:
            value = {"i": -value, "f": value ^ 1 << 31, "d": value ^ 1 << 63}[kind]
        return Number(value, kind)

    def distance(self) -> int:
        if self.take("+"):
            return self.integer()
        self.expect("-")
        return -self.integer()

    def address(self) -> Operand:
        self.expect("[")
        word = self.words[self.at]
        base: Register | Name | None = None
        offset = 0
        if word and (word[0].isdigit() or word == "-"):
            offset = self.integer()
        else:
            base = self.name_or_register(self.identifier())
            if self.words[self.at] in ("+", "-"):
                offset = self.distance()
        if not self.take("]"):
            raise self.fail(f"{self.words[self.at]!r} in an address", "textures and tensor maps are not portable")
        return Address(base, offset)

    def name_or_register(self, word: str) -> Register | Name:
        for scope in range(len(self.registers) - 1, -1, -1):
            found = self.registers[scope].get(word)
            if found is not None:
                return found
            ranges = self.ranges[scope]
            if ranges:
                parts = _RANGED.match(word)
                # %r12 may be the 12th of %r or the 2nd of %r1: the longest prefix of digits that was declared.
                if parts is not None:
                    made = self._in_range(ranges, parts[1], parts[2], scope)
                    if made is not None:
                        return made
        for scope in range(len(self.registers) - 1, -1, -1):
            local = self.registers[scope].get(f"param {word}")
            if local is not None:
                return Name(local.name)
        return Name(word, 0, self.open[-1] if self.open else 0)

    def _in_range(self, ranges: dict[str, tuple[str, int]], head: str, digits: str, scope: int) -> Register | None:
        for split in range(len(digits)):
            known = ranges.get(head + digits[:split])
            if known is not None:
                type_, count = known
                rest = digits[split:]
                if int(rest) < count and (rest == "0" or rest[0] != "0"):
                    register = Register(head + digits, type_, self.made)
                    self.made += 1
                    self.registers[scope][head + digits] = register
                    return register
        return None
