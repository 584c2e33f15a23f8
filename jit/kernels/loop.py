"""Fused kernels as data: a loop nest over operands with a graph of element operations inside. What every emitter starts from.

A kernel holds only structure. Sizes, strides, addresses and scalars are arguments, one 64-bit slot each, in the order of ``Layout``;
so two programs, or two shapes of one program, share kernels whenever their structure agrees.

Three forms, by the role of the loops (outermost first):

    FLAT   one loop over a range of elements; a unit is ``block`` of them
    ROWS   outer loops (a unit is one point of these), then reduced loops ``mid``, then the inner loop across the lanes, also reduced
    COLS   outer loops and blocks of lanes along the kept inner loop (a unit is one block), and inside them the reduced loops ``mid``

A value is *uniform* when it does not depend on the reduced loops (ROWS: nor on the inner one). A reduction makes a value uniform; whatever
uses it non-uniformly belongs to a later pass over the reduced loops. A ROWS kernel without reductions treats its inner loop as reduced.

Sums follow the order of ``wis.ops``: element i of the reduced index space (row-major) goes to lane i % 32, then lanes fold by halves.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Final, NamedTuple

from wis.dtypes import DType

REDUCTIONS: Final = frozenset({"sum", "prod", "reduce_max", "reduce_min"})
LEAVES: Final = frozenset({"load", "index", "scalar"})


class Form(IntEnum):
    FLAT = 0
    ROWS = 1
    COLS = 2


class Inner(IntEnum):
    """How an operand moves along the inner loop."""

    ZERO = 0  # not at all
    UNIT = 1  # by one element
    ANY = 2  # by a stride that is an argument


class Place(NamedTuple):
    """An operand: memory, or (``virtual``) a coordinate, which is computed like an address and never loaded.

    ``mid``: it moves along the reduced loops ``mid``.
    """

    dtype: DType
    inner: Inner
    mid: bool
    virtual: bool


class Node(NamedTuple):
    """A value. ``load`` and ``index``: args = (place,); ``scalar``: args = (scalar argument,); anything else: args = nodes."""

    op: str
    dtype: DType
    args: tuple[int, ...]


class Layout(NamedTuple):
    """Where each argument is, in slots."""

    inner_size: int  # FLAT: the block
    total: int  # FLAT: number of elements; otherwise unused
    outer_sizes: int
    mid_sizes: int
    places: int  # each: address (or first coordinate), outer strides, mid strides, inner stride; strides in elements
    place_slots: int
    scalars: int
    slots: int


@dataclass(frozen=True)
class LoopKernel:
    """The structure of one fused kernel; equal kernels are interchangeable."""

    form: Form
    n_outer: int
    n_mid: int
    places: tuple[Place, ...]
    nodes: tuple[Node, ...]
    stores: tuple[tuple[int, int], ...]  # (place, node)
    n_scalars: int
    keep: bool  # costly values needed by a later pass fit the scratch memory

    @cached_property
    def layout(self) -> Layout:
        mid_at = 2 + self.n_outer
        places_at = mid_at + self.n_mid
        per_place = 2 + self.n_outer + self.n_mid
        scalars_at = places_at + per_place * len(self.places)
        return Layout(0, 1, 2, mid_at, places_at, per_place, scalars_at, scalars_at + self.n_scalars)

    @cached_property
    def uniform(self) -> tuple[bool, ...]:
        """For each node, whether it is uniform."""
        result: list[bool] = []
        for node in self.nodes:
            if node.op == "scalar" or node.op in REDUCTIONS:
                result.append(True)
            elif node.op in LEAVES:
                result.append(self.place_uniform(node.args[0]))
            else:
                result.append(all(result[a] for a in node.args))
        return tuple(result)

    def place_uniform(self, place: int) -> bool:
        """Whether the operand does not move along reduced loops."""
        p = self.places[place]
        return not p.mid and (self.form is Form.COLS or p.inner is Inner.ZERO)

    @cached_property
    def level(self) -> tuple[int, ...]:
        """For each node, how many reductions lie one behind the other below it: the pass in which it can be computed."""
        result: list[int] = []
        for node in self.nodes:
            below = 0 if node.op in LEAVES else max(result[a] for a in node.args)
            result.append(below + 1 if node.op in REDUCTIONS else below)
        return tuple(result)

    @cached_property
    def passes(self) -> int:
        """How often the reduced loops are walked."""
        last = 0
        for node in self.nodes:
            if node.op in REDUCTIONS:
                last = max(last, self.level[node.args[0]])
        for place, i in self.stores:
            if not (self.uniform[i] and self.place_uniform(place)):
                last = max(last, self.level[i])
        return last + 1
