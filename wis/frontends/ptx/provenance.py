"""Provenance of addresses: every address that is an argument or a variable plus a distance becomes an offset into that memory.

A register's *state* is the memory (root) its value points into, PLAIN when it is a number, or nothing yet. Registers with a root hold
offsets from then on; where such a register is used as a number, the memory's address is added. Flow-insensitive, over a kernel and its
functions together, to a fixed point. An access whose address is PLAIN goes to the space ARENA, by address.

Pointers among the 64-bit arguments, and among the fields of that size in arguments that are structs, are those declared ``.ptr``, converted
by ``cvta``, or found as the root of an access. Shared variables
are separate arrays as long as every access in the shared space has one of them as root, else one array.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from wis.dtypes import DType
from wis.frontends.ptx.classes import BITS
from wis.frontends.ptx.code import GENERIC, Code, Node
from wis.frontends.ptx.graph import split
from wis.frontends.ptx.scene import Scene, Symbol
from wis.frontends.ptx.syntax import PtxError
from wis.kernel.model import LOCAL_BASE, SHARED_BASE, RegType, Space

_PLAIN: Final = -1
_NONE: Final = -2
_I32, _I64 = RegType.I32, RegType.I64
_COPY: Final = frozenset({"mov", "to_generic", "from_generic", "sext", "zext", "narrow"})
_TRACKED: Final = _COPY | {"argument", "symbol", "sel", "shfl", "add", "sub"}
_ROUNDED_MAX: Final = 1 << 16
"""Bytes that addresses are rounded to at most."""
_CARRYING: Final = frozenset({"argument", "mov", "sel", "add", "load", "symbol", "addr", "to_generic", "from_generic"})
_NUMBERS: Final = frozenset({"mov", "add", "sub", "mul", "shl", "shr_u", "shr_s", "sext", "zext", "special"})
_ORDERS: Final = {"lt_u": "lt_s", "le_u": "le_s", "lt_s": "lt_s", "le_s": "le_s", "eq": "eq", "ne": "ne"}
_ACCESSES: Final = frozenset({"load", "store", "atom", "red"})


@dataclass(slots=True)
class AddressRoot:
    """A root of addresses: an argument or a variable."""

    #: memory of its accesses
    space: Space
    #: number of the argument, or of a field (Provenance.fields); -1: a variable, or several roots
    argument: int = -1
    #: number of the variable; -1: an argument, or several roots
    symbol: int = -1
    #: number of the shared array
    which: int = 0
    read: bool = False
    written: bool = False
    elements: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class Provenance:
    """Result of the analysis."""

    memories: list[AddressRoot] = field(default_factory=list)
    #: of each symbol in its memory, bytes
    offsets: dict[int, int] = field(default_factory=dict)
    #: bytes of the shared arrays in order; -1: the dynamic one (last)
    arrays: list[int] = field(default_factory=list)
    dynamic: bool = False
    local_bytes: int = 0
    constants: bytes = b""
    #: numbers, after those of the arguments, of the fields of 64 bits by argument and byte
    fields: dict[tuple[int, int], int] = field(default_factory=dict)
    #: whether loads by address are left
    arena_reads: bool = False
    #: whether stores by address are left
    arena_writes: bool = False


def resolve(scene: Scene, codes: list[Code]) -> Provenance:
    """Rewrite the addresses in ``codes`` (the kernel's, then its functions' by number). Raises PtxError for what has no place."""
    analysis = _Analysis(scene, codes)
    analysis.run()
    if analysis.by_address() and sum(split(code) for code in codes):
        analysis = _Analysis(scene, codes)
        analysis.run()
    _Rewriting(analysis).run()
    return analysis.places


def _makers(code: Code) -> dict[int, list[Node]]:
    """By register, the ops that write it."""
    found: dict[int, list[Node]] = {}
    for node in code.nodes():
        for register in node.outs:
            found.setdefault(register, []).append(node)
    return found


class _Analysis:
    def __init__(self, scene: Scene, codes: list[Code]) -> None:
        self.scene, self.codes = scene, codes
        self.fields = self._fields()
        self.pointers = self._certain()
        self.certain = set(self.pointers)
        self.candidates = self._candidates()
        self.one_array = False
        self.as_variable: set[int] = set()  # constants that need an address
        self.places = Provenance()
        self.roots: dict[tuple[str, int], int] = {}
        self.states: list[list[int]] = []

    # -- which arguments are pointers ------------------------------------------------------------------------------------------------

    def _fields(self) -> dict[tuple[int, int], int]:
        params, found = self.scene.kernel.params, dict[tuple[int, int], int]()
        for node in self.codes[0].nodes():
            if node.name == "argument" and params[node.attrs[0]].nbytes >= 0 and DType(node.attrs[2]).itemsize == 8:
                found.setdefault((node.attrs[0], node.attrs[1]), len(params) + len(found))
        return found

    def _number(self, node: Node) -> int:
        """Of the argument, or of its field, that a node has whole; -1: a part of one."""
        number, offset, dtype = node.attrs
        if self.scene.kernel.params[number].nbytes < 0:
            return number if offset == 0 else -1
        return self.fields.get((number, offset), -1) if DType(dtype).itemsize == 8 else -1

    def _candidates(self) -> set[int]:
        return set(self.fields.values()) | {
            number
            for number, param in enumerate(self.scene.kernel.params)
            if param.nbytes < 0 and param.type[0] in "bus" and BITS[param.type] == 64
        }

    def _certain(self) -> set[int]:
        params = self.scene.kernel.params
        held = self._held()
        found = {number for number, param in enumerate(params) if param.pointer}
        for node in self.codes[0].nodes():
            if node.name in ("to_generic", "from_generic") and node.ins[0] in held:
                found.add(held[node.ins[0]])
        return {number for number in found if number >= len(params) or params[number].nbytes < 0}

    def _held(self) -> dict[int, int]:
        """By register of the kernel, the argument of 64 bits that it holds."""
        held: dict[int, int] = {}
        for node in self.codes[0].nodes():
            if node.name == "argument" and self.codes[0].types[node.outs[0]] is _I64:
                held[node.outs[0]] = self._number(node)
            elif node.name == "mov" and node.ins[0] in held:
                held[node.outs[0]] = held[node.ins[0]]
        return held

    def _led_to_accesses(self) -> set[int]:
        """Arguments that choices or memory stand between and an access: those that an address is copied, chosen or moved from, and, where
        addresses are loaded out of local or shared memory, those that are stored there whole."""
        makers = [_makers(code) for code in self.codes]
        callers: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for k, number, ins, outs in self._calls():
            callee = self.codes[number + 1]
            for target, source in zip(callee.ins, ins, strict=True):
                callers.setdefault((number + 1, target), []).append((k, source))
            for target, source in zip(outs, callee.outs, strict=True):
                callers.setdefault((k, target), []).append((number + 1, source))
        todo = [
            (k, node.ins[0])
            for k, code in enumerate(self.codes)
            for node in code.nodes()
            if (node.name in _ACCESSES and self.states[k][node.ins[0]] < 0) or node.name in ("to_generic", "from_generic")
        ]
        found: set[int] = set()
        seen: set[tuple[int, int]] = set()
        loaded: set[int] = set()
        while todo:
            at = todo.pop()
            if at in seen:
                continue
            seen.add(at)
            todo += callers.get(at, ())
            for node in makers[at[0]].get(at[1], ()):
                if node.name == "load":
                    loaded.add(node.attrs[0])
                if node.name == "argument":
                    found.add(self._number(node))
                else:
                    todo += [(at[0], register) for register in self._carriers(at[0], node, makers[at[0]])]
        return found | self._stored_whole(loaded)

    def _carriers(self, k: int, node: Node, makers: dict[int, list[Node]]) -> list[int]:
        """The operands that an address comes from."""
        if node.name == "sel":
            return node.ins[1:]
        if node.name in ("mov", "to_generic", "from_generic") or self._rounds(k, node):
            return node.ins
        if node.name in ("add", "sub"):
            first, second = node.ins
            for one, other in ((first, second), (second, first)):
                if any(self._rounds(k, maker) for maker in makers.get(one, ())):
                    return [one] if self._is_number(other, makers) else [other]
            scaled = any(maker.name not in _CARRYING for maker in makers.get(first, ()))
            return [second] if scaled and node.name == "add" else [first]
        return []

    @staticmethod
    def _is_number(register: int, makers: dict[int, list[Node]]) -> bool:
        """Whether a register holds only products, shifted and widened numbers, constants: no address."""
        todo, seen = [register], {register}
        while todo:
            for node in makers.get(todo.pop(), ()):
                if node.name not in _NUMBERS:
                    return False
                if node.name in ("mov", "add", "sub"):
                    todo += [operand for operand in node.ins if operand not in seen]
                    seen.update(node.ins)
        return True

    def _rounds(self, k: int, node: Node) -> bool:
        """Whether an op changes only low bits of an address, as alignment and tags in pointers do."""
        constants = [self.codes[k].constants[register] for register in node.ins if register in self.codes[k].constants]
        return (node.name == "and" and any(-_ROUNDED_MAX <= value < 0 for value in constants)) or (
            node.name == "or" and any(0 <= value < _ROUNDED_MAX for value in constants)
        )

    def _stored_whole(self, loaded: set[int]) -> set[int]:
        """The arguments stored whole in local or shared memory that addresses are loaded from. What is stored elsewhere may be a result,
        and a struct that is copied there is not known to have pointers in it."""
        held, spaces = self._held(), loaded & {int(Space.LOCAL), int(Space.SHARED)}
        stores = [node for node in self.codes[0].nodes() if node.name == "store" and node.attrs[0] in spaces]
        found = {held[register] for node in stores for register in node.ins[1:] if register in held}
        return found.difference(self.fields.values())

    # -- the fixed point -------------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """To states under which every address has a place, giving up separateness where it is in the way."""
        self.pointers = set(self.candidates)
        self._solve()
        used = {memory.argument for memory in self._accessed() if memory.argument >= 0} | self._led_to_accesses()
        pointers = self.certain | (used & self.candidates)
        if pointers != self.pointers:
            self.pointers = pointers
            self._solve()
        for _ in range(len(self.scene.symbols) + 2):
            if not self._give_up():
                return
            self._solve()

    def _solve(self) -> None:
        self.places, self.roots = Provenance(fields=self.fields), {}
        self._lay_out()
        self.states = [[_NONE] * len(code.types) for code in self.codes]
        tracked: list[tuple[int, Node]] = []
        for k, code in enumerate(self.codes):
            states = self.states[k]
            for register in code.constants:
                states[register] = _PLAIN
            types = code.types
            for node in code.nodes():
                first = 0
                if node.name in _TRACKED and types[node.outs[0]] in (_I32, _I64):
                    tracked.append((k, node))
                    first = 1
                for register in node.outs[first:]:
                    states[register] = _PLAIN
        calls = self._calls()
        changed = True
        while changed:
            changed = False
            for k, node in tracked:
                states = self.states[k]
                out = node.outs[0]
                new = self._join(states[out], self._transfer(k, node, states))
                if new != states[out]:
                    states[out] = new
                    changed = True
            for k, number, ins, outs in calls:
                changed |= self._call(k, number + 1, ins, outs)

    def _calls(self) -> list[tuple[int, int, list[int], list[int]]]:
        found = []
        for k, code in enumerate(self.codes):
            ends = [part.end for part in code.parts.values() if part.end is not None and part.end.kind == "call"]
            found += [(k, end.extra[0], end.ins, end.outs) for end in ends]
        return found

    def _call(self, k: int, callee: int, ins: list[int], outs: list[int]) -> bool:
        changed = False
        code = self.codes[callee]
        for sources, targets, a, b in ((ins, code.ins, k, callee), (code.outs, outs, callee, k)):
            for source, target in zip(sources, targets, strict=True):
                new = self._join(self.states[b][target], self.states[a][source])
                if new != self.states[b][target]:
                    self.states[b][target] = new
                    changed = True
        return changed

    @staticmethod
    def _join(a: int, b: int) -> int:
        if a == _NONE or a == b:
            return b
        return a if b == _NONE else _PLAIN

    def _transfer(self, k: int, node: Node, states: list[int]) -> int:
        name = node.name
        if name == "argument":
            number = self._number(node)
            pointer = number in self.pointers and self.codes[k].types[node.outs[0]] is _I64
            return self._root("argument", number) if pointer else _PLAIN
        if name == "symbol":
            return self._root("symbol", node.attrs[0])
        if name == "sel":
            return self._join(states[node.ins[1]], states[node.ins[2]])
        if name in _COPY or name == "shfl":
            state = states[node.ins[0]]
            if name == "narrow" and state >= 0 and self.places.memories[state].space is Space.GLOBAL:
                return _PLAIN
            return state
        return self._sum(name, states[node.ins[0]], states[node.ins[1]])

    def _sum(self, name: str, a: int, b: int) -> int:
        if a >= 0 and b >= 0:
            if name == "sub":
                return _PLAIN
            one, other = (self.places.memories[state].argument for state in (a, b))
            if one in self.certain and other >= 0 and other not in self.certain:
                return a
            if other in self.certain and one >= 0 and one not in self.certain:
                return b
            return a if one >= 0 and other >= 0 and not {one, other} & self.certain and a != b else _PLAIN
        if a >= 0:
            return a
        if b >= 0:
            return b if name == "add" else _PLAIN
        return _PLAIN if _PLAIN in (a, b) and _NONE not in (a, b) else _NONE

    # -- roots and layout ------------------------------------------------------------------------------------------------------------

    def _root(self, kind: str, number: int) -> int:
        key = (kind, number) if kind == "argument" else self._symbol_key(number)
        found = self.roots.get(key)
        if found is None:
            found = self.roots[key] = len(self.places.memories)
            self.places.memories.append(self._memory(key))
        return found

    def _symbol_key(self, number: int) -> tuple[str, int]:
        symbol = self.scene.symbols[number]
        if symbol.space == "local":
            return "local", 0
        if symbol.space == "shared":
            return "shared", self.which[number]
        return ("constants", 0) if self._is_constant(number, symbol) else ("symbol", number)

    def _is_constant(self, number: int, symbol: Symbol) -> bool:
        return symbol.own and number not in self.as_variable and symbol.space in ("const", "global")

    def _memory(self, key: tuple[str, int]) -> AddressRoot:
        kind, number = key
        if kind == "argument":
            return AddressRoot(Space.GLOBAL, argument=number)
        if kind == "symbol":
            return AddressRoot(Space.GLOBAL, symbol=number)
        return AddressRoot(
            {"local": Space.LOCAL, "shared": Space.SHARED, "constants": Space.CONST}[kind], which=number if kind == "shared" else 0
        )

    def _lay_out(self) -> None:
        places = self.places
        self.which: dict[int, int] = {}
        local, constants = 0, bytearray()
        shared = [(n, s) for n, s in enumerate(self.scene.symbols) if s.space == "shared"]
        for number, symbol in enumerate(self.scene.symbols):
            if symbol.space == "local":
                local = -(-local // 16) * 16
                places.offsets[number], local = local, local + symbol.nbytes
            elif symbol.space in ("const", "global"):
                places.offsets[number] = 0
                if self._is_constant(number, symbol):
                    constants += bytes(-len(constants) % 16)
                    places.offsets[number] = len(constants)
                    constants += symbol.data.ljust(symbol.nbytes, b"\0")
        places.local_bytes, places.constants = local, bytes(constants)
        self._lay_out_shared(shared)

    def _lay_out_shared(self, shared: list[tuple[int, Symbol]]) -> None:
        places = self.places
        at = 0
        for number, symbol in sorted(shared, key=lambda pair: pair[1].nbytes < 0):
            dynamic = symbol.nbytes < 0
            nbytes = -(-symbol.nbytes // 4) * 4 if self.scene.whole_words else symbol.nbytes
            if self.one_array:
                at = -(-at // 16) * 16
                places.offsets[number], self.which[number] = at, 0
                at += 0 if dynamic else nbytes
            else:
                places.offsets[number] = 0
                if dynamic and places.dynamic:
                    self.which[number] = len(places.arrays) - 1
                    continue
                self.which[number] = len(places.arrays)
                places.arrays.append(0 if dynamic else nbytes)
            places.dynamic |= dynamic
        if self.one_array and shared:
            places.arrays = [at]

    def by_address(self) -> bool:
        """Whether there are accesses without a root."""
        return any(node.name in _ACCESSES and self.states[k][node.ins[0]] < 0 for k, code in enumerate(self.codes) for node in code.nodes())

    # -- what does not work out ------------------------------------------------------------------------------------------------------

    def _accessed(self) -> list[AddressRoot]:
        found = []
        for k, code in enumerate(self.codes):
            states = [self.states[k][node.ins[0]] for node in code.nodes() if node.name in _ACCESSES]
            found += [self.places.memories[state] for state in states if state >= 0]
        return found

    def _give_up(self) -> bool:
        """Whether something had to be given up, so that another solution is needed."""
        before = self.one_array, len(self.as_variable)
        for k, code in enumerate(self.codes):
            states = self.states[k]
            for node in code.nodes():
                if node.name in _ACCESSES:
                    self._look_at(node, states)
                for register in self._escaping(k, node):
                    self._needs_address(states[register])
        for k, number, ins, _ in self._calls():
            for source, target in zip(ins, self.codes[number + 1].ins, strict=True):
                if self.states[k][source] >= 0 and self.states[number + 1][target] < 0:
                    self._needs_address(self.states[k][source])
        return (self.one_array, len(self.as_variable)) != before

    def _look_at(self, node: Node, states: list[int]) -> None:
        state, space = states[node.ins[0]], Space(node.attrs[0])
        if state < 0:
            if space is Space.SHARED:
                self.one_array = True
            elif space is Space.CONST:
                self.as_variable |= {n for n, s in enumerate(self.scene.symbols) if s.space in ("const", "global")}
        elif self.places.memories[state].space is Space.CONST and node.name != "load":
            self._needs_address(state)

    def _needs_address(self, state: int) -> None:
        if state >= 0 and self.places.memories[state].space is Space.CONST:
            self.as_variable |= {n for n, s in enumerate(self.scene.symbols) if s.space in ("const", "global")}

    def _escaping(self, k: int, node: Node) -> list[int]:
        """The operands of a node that have a root and are used as numbers."""
        states = self.states[k]
        return [register for i, register in enumerate(node.ins) if states[register] >= 0 and not self.stays(states, node, i)]

    @staticmethod
    def stays(states: list[int], node: Node, at: int) -> bool:
        """Whether an operand with a root is used as an offset."""
        name, register = node.name, node.ins[at]
        if name in _ACCESSES:
            return at == 0
        if name == "low_bits":
            return True
        if name in ("eq", "ne", "lt_u", "le_u", "lt_s", "le_s"):
            return states[node.ins[0]] == states[node.ins[1]]
        if name == "sub" and states[node.ins[0]] == states[node.ins[1]] >= 0:
            return True
        return name in _TRACKED and states[node.outs[0]] == states[register]


class _Rewriting:
    def __init__(self, analysis: _Analysis) -> None:
        self.a, self.places = analysis, analysis.places

    def run(self) -> None:
        for k, code in enumerate(self.a.codes):
            for part in code.parts.values():
                done: list[Node] = []
                for node in part.nodes:
                    self._node(k, code, node, done)
                    done.append(node)
                end = part.end
                if end is not None and end.kind == "call":
                    callee = self.a.states[end.extra[0] + 1]
                    targets = self.a.codes[end.extra[0] + 1].ins
                    line = done[-1].line if done else 0
                    end.ins = [
                        self._address(k, code, register, done, line, end.ptx) if callee[target] < 0 else register
                        for register, target in zip(end.ins, targets, strict=True)
                    ]
                part.nodes = done

    def _address(self, k: int, code: Code, register: int, done: list[Node], line: int, ptx: int) -> int:
        """The number for an offset: the memory's address plus it."""
        state = self.a.states[k][register]
        if state < 0:
            return register
        memory = self.places.memories[state]
        if memory.space is Space.CONST:
            raise PtxError(ptx, "the address of a constant cannot be had here")
        type_ = code.types[register]
        start = code.temp(_I64)
        which = state if memory.space is Space.GLOBAL else memory.which
        done.append(Node("addr", [start], [], (int(memory.space), which), line, ptx))
        if type_ is _I32:
            whole, start = start, code.temp(_I32)
            done.append(Node("narrow", [start], [whole], (), line, ptx))
        out = code.temp(type_)
        done.append(Node("add", [out], [start, register], (), line, ptx))
        self.a.states[k] += [_PLAIN] * (len(code.types) - len(self.a.states[k]))
        return out

    def _node(self, k: int, code: Code, node: Node, done: list[Node]) -> None:
        states, name = self.a.states[k], node.name
        state = states[node.ins[0]] if node.ins else _NONE
        if name in _ORDERS and state >= 0 and state == states[node.ins[1]]:
            node.name = _ORDERS[name]
        elif name == "zext" and state >= 0 and states[node.outs[0]] == state:
            node.name = "sext"
        for i, register in enumerate(node.ins):
            if states[register] >= 0 and not self.a.stays(states, node, i):
                node.ins[i] = self._address(k, code, register, done, node.line, node.ptx)
        if name in _ACCESSES:
            self._access(code, node, state, done)
        elif name == "argument":
            if states[node.outs[0]] >= 0:
                node.name, node.ins, node.attrs = "mov", [code.const(_I64, 0)], ()
        elif name == "symbol":
            offset = self.places.offsets[node.attrs[0]]
            node.name, node.ins, node.attrs = "mov", [code.const(code.types[node.outs[0]], offset)], ()
        elif name == "low_bits":
            node.name, node.ins, node.attrs = "and", [node.ins[0], code.const(code.types[node.ins[0]], node.attrs[0])], ()
        elif name in ("to_generic", "from_generic"):
            self._converted(code, node, rooted=states[node.outs[0]] >= 0)

    def _converted(self, code: Code, node: Node, *, rooted: bool) -> None:
        base = {Space.SHARED: SHARED_BASE, Space.LOCAL: LOCAL_BASE}.get(Space(node.attrs[0]), 0)
        if rooted or not base:
            node.name, node.attrs = "mov", ()
        else:
            node.ins = [node.ins[0], code.const(_I64, base)]
            node.name, node.attrs = ("add" if node.name == "to_generic" else "sub"), ()

    def _access(self, code: Code, node: Node, state: int, done: list[Node]) -> None:
        space, places = Space(node.attrs[0]), self.places
        if state >= 0:
            memory = places.memories[state]
            constant = memory.symbol >= 0 and self.a.scene.symbols[memory.symbol].space == "const"
            if constant and node.name != "load":
                raise PtxError(node.ptx, "constants cannot be written", hint="declare the variable __device__")
            which = state if memory.space is Space.GLOBAL else memory.which
            node.attrs = (int(memory.space), which, *node.attrs[2:])
            memory.read |= node.name in ("load", "atom", "red")
            memory.written |= node.name != "load"
            memory.elements[node.attrs[2]] = memory.elements.get(node.attrs[2], 0) + 1
            return
        if space is Space.SHARED and places.arrays:
            node.attrs = (int(Space.SHARED), 0, *node.attrs[2:])
            return
        if space is Space.LOCAL and places.local_bytes:
            node.attrs = (int(Space.LOCAL), 0, *node.attrs[2:])
            return
        if code.types[node.ins[0]] is _I32:
            wide = code.temp(_I64)
            done.append(Node("zext", [wide], [node.ins[0]], (), node.line, node.ptx))
            node.ins[0] = wide
        base = {Space.SHARED: SHARED_BASE, Space.LOCAL: LOCAL_BASE}.get(space, 0)
        if base:
            moved = code.temp(_I64)
            done.append(Node("add", [moved], [node.ins[0], code.const(_I64, base)], (), node.line, node.ptx))
            node.ins[0] = moved
        node.attrs = (int(GENERIC), 0, *node.attrs[2:])
        places.arena_reads |= node.name in ("load", "atom", "red")
        places.arena_writes |= node.name != "load"
