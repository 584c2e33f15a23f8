"""Named functions under the strict policy: the exact ops that define them, in the place of the one op.

May live here: putting a form in place. May not: the forms (wis.kernel.strict).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from wis.kernel.model import Op, RegType
from wis.kernel.ops import BY_CODE
from wis.kernel.strict import strict_form

__all__ = ["strict_ops"]


def strict_ops(op: Op, regs: Sequence[int], temporary: Callable[[RegType], int]) -> Iterator[tuple[Op, RegType]] | None:
    """The ops that compute named ``op``, each with the type of its output; None when the type has no strict form.

    ``regs``: types of the kernel's registers; ``temporary`` makes a register of a type. A form writes its result last and never writes its
    operands, so registers may stand for several of them.
    """
    form = strict_form(BY_CODE[op.op].name, RegType(regs[op.ins[0]]))
    if form is None:
        return None
    place = dict(zip(form.ins, op.ins, strict=True)) | dict(zip(form.outs, op.outs, strict=True))
    for r, type_ in enumerate(form.regs):
        if r not in place:
            place[r] = temporary(RegType(type_))
    return (_moved(inner, place, form.regs) for inner in form.blocks[0].code)


def _moved(op: Op, place: dict[int, int], regs: Sequence[int]) -> tuple[Op, RegType]:
    return Op(op.op, tuple(place[r] for r in op.outs), tuple(place[r] for r in op.ins), op.attrs), RegType(regs[op.outs[0]])
