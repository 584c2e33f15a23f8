"""Verifies a stencil before it is recorded: what a node would refuse is found at the line that called it.

A batch is refused whole and ends the session, so an operation for types that WIS does not define (a complex ``<``, the minimum of nothing)
must not get into one: it goes to the CPU instead, whose error names the operation and comes at the line that called it.
"""

from __future__ import annotations

import struct
from typing import Final

from wis.errors import VerifyError
from wis.program import VERSION, BufferKind, Program
from wis.verify import verify
from wooly.device.lowering import Unsupported
from wooly.device.programs import Stencil

__all__ = ["check"]

_SOUND: Final[set[int]] = set()
"""Structures that passed. Types are part of one; sizes are not, but they come from torch's own inference: only empty ones surprise."""


def check(stencil: Stencil, *, scattered: bool) -> None:
    """Raises Unsupported when the verifier has findings. Costs some 100 microseconds, once a structure.

    Always when something is empty, and when a written tensor is ``scattered``: its elements do not fill one run of memory, and may overlap.
    """
    if not scattered and stencil.structure in _SOUND and all(stencil.needs) and all(stencil.temps):
        return
    kinds = (BufferKind.EXTERNAL,) * stencil.n_handles + (BufferKind.TEMP,) * len(stencil.temps)
    program = Program(VERSION, kinds, stencil.n_dynamic + len(stencil.constants), stencil.code)
    nbytes = (*stencil.needs, *stencil.temps)
    try:
        verify(program, struct.pack(f"<{len(nbytes)}q", *nbytes) + stencil.dims)
    except VerifyError as error:
        raise Unsupported(str(error)) from error
    _SOUND.add(stencil.structure)
