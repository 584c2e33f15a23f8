"""Whether the blocks of a grid may run in pieces. May live here: this one question. May not: rules, meaning."""

from __future__ import annotations

from dataclasses import dataclass

from wis.kernel.model import Kernel, Space
from wis.kernel.ops import BY_CODE, Sig

__all__ = ["Certificate", "certify"]


@dataclass(frozen=True, slots=True)
class Certificate:
    """Whether the blocks of a grid may run in pieces, in any order, with one result.

    They may when no buffer is both stored to and loaded from: then no block can see what another did. ``in_out``: the buffers that are
    both; a launch may still be cut when those are updated element by element, which only the maker of the kernel knows. The certificate is
    about one launch whose buffer arguments do not overlap.
    """

    sliceable: bool
    in_out: tuple[int, ...]


def certify(flat: Kernel) -> Certificate:
    """The certificate of a kernel that keeps the rules and has no calls."""
    loaded: set[int] = set()
    stored: set[int] = set()
    mixed = False
    for block in flat.blocks:
        for op in block.code:
            sig = BY_CODE[op.op].sig
            if sig in (Sig.LOAD, Sig.BYTES_LOAD) and op.attrs[0] == Space.GLOBAL:
                loaded.add(op.attrs[1])
            elif sig in (Sig.STORE, Sig.BYTES_STORE, Sig.ATOM, Sig.RED):
                mixed |= op.attrs[0] == Space.ARENA or (sig in (Sig.ATOM, Sig.RED) and op.attrs[0] == Space.GLOBAL)
                if op.attrs[0] == Space.GLOBAL:
                    stored.add(op.attrs[1])
    both = tuple(sorted(loaded & stored))
    return Certificate(not both and not mixed, both)
