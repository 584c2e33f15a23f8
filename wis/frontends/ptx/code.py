"""Intermediate form of PTX: ops of the kernel tier over registers without bound, before addresses are attributed to memories.

Beside the kernel tier's ops there are a few of its own: ``argument`` (a scalar argument's value, or a pointer's), ``symbol`` (a variable's
address in its space), ``to_generic`` and ``from_generic`` (between a space's addresses and those that mean any memory), and ``low_bits``
(an address modulo a small power of two). Loads, stores and atomics take an address in a PTX space. provenance.py turns all that into
places in memories.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from wis.kernel.model import RegType, Space

GENERIC: Final = Space.ARENA


def signed(bits: int, width: int) -> int:
    """``bits`` modulo 2**width, read as a two's complement number."""
    bits &= (1 << width) - 1
    return bits - (1 << width) if bits >> width - 1 else bits


class Node:
    """One op. ``line``: of the CUDA source, or of the PTX when that is unknown; ``ptx``: of the PTX."""

    __slots__ = ("attrs", "ins", "line", "name", "outs", "ptx")

    def __init__(self, name: str, outs: list[int], ins: list[int], attrs: tuple[int, ...], line: int, ptx: int) -> None:
        self.name, self.outs, self.ins, self.attrs, self.line, self.ptx = name, outs, ins, attrs, line, ptx


class End:
    """A terminator. ``kind``: br, cbr (targets yes, no), ret, sync (extra: barrier, arrive; ins: the count or nothing), switch (the last
    target is the default), call (extra: number of the function)."""

    __slots__ = ("extra", "ins", "kind", "outs", "ptx", "targets")

    def __init__(
        self, kind: str, targets: list[int], ins: list[int] | None = None, outs: list[int] | None = None, extra: tuple[int, ...] = (),
        ptx: int = 0,
    ) -> None:  # fmt: skip
        self.kind, self.targets, self.ins, self.outs, self.extra, self.ptx = kind, targets, ins or [], outs or [], extra, ptx


class Part:
    """A basic block."""

    __slots__ = ("end", "nodes")

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.end: End | None = None


class Code:
    """The body of a kernel or function. Constants are registers of a pool, written nowhere; ``constants`` has their bits."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.types: list[RegType] = []
        self.parts: dict[int, Part] = {}
        self.entry = 0
        self.ins: list[int] = []
        self.outs: list[int] = []
        self.constants: dict[int, int] = {}
        self._pool: dict[tuple[RegType, int], int] = {}
        self._made = 0

    def temp(self, type_: RegType) -> int:
        self.types.append(type_)
        return len(self.types) - 1

    def const(self, type_: RegType, bits: int) -> int:
        """The register that holds ``bits``, sign-extended from the type's width."""
        bits = bits & 1 if type_ is RegType.PRED else signed(bits, type_.bits)
        key = (type_, bits)
        found = self._pool.get(key)
        if found is None:
            found = self._pool[key] = self.temp(type_)
            self.constants[found] = bits
        return found

    def part(self) -> int:
        """The number of a new, empty block."""
        number = self._made
        self._made += 1
        self.parts[number] = Part()
        return number

    def nodes(self) -> Iterator[Node]:
        for part in self.parts.values():
            yield from part.nodes
