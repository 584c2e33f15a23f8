"""The instruction reference, from the operation tables of WIS."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path
from typing import Final

from docs.generate.text import sentence, table
from wis import limits
from wis.kernel.ops import KERNEL_OPS
from wis.ops import OPS

__all__ = ["page"]

_HEAD: Final = """# WIS instruction reference

Every operation of the two tiers of WIS, and the limits of a program. Concepts, encoding and rules: [Instruction
set](../explanation/instruction-set.md).

## Tensor tier

Operations on tensors. Code, name and meaning; *inputs* is a number or a range.
"""

_KERNEL: Final = """
## Kernel tier

Operations on the registers of one thread. Operations that are not *core* are rewritten into core operations before a back end sees them.
"""


def page() -> str:
    """The page."""
    tensor = [
        (op.code, f"`{op.name}`", op.kind.value, op.types.value, _span(op.n_ins), _count(op.n_outs), ", ".join(op.attrs), sentence(op.doc))
        for op in sorted(OPS, key=lambda op: op.code)
    ]
    kernel = []
    for op in sorted(KERNEL_OPS, key=lambda op: op.code):
        shape = (op.sig.value, _count(op.n_ins), _count(op.n_outs), ", ".join(op.attrs), "yes" if op.core else "no")
        kernel.append((op.code, f"`{op.name}`", *shape, sentence(op.doc)))
    parts = [_HEAD, table(("Code", "Name", "Kind", "Types", "Inputs", "Outputs", "Attributes", "Meaning"), tensor), _KERNEL]
    parts += [table(("Code", "Name", "Signature", "Inputs", "Outputs", "Attributes", "Core", "Meaning"), kernel)]
    return "\n".join([*parts, "\n## Limits of a program\n", table(("Limit", "Value", "Meaning"), _limits())])


def _span(span: tuple[int, int]) -> str:
    low, high = span
    return str(low) if low == high else f"{low} or more" if high < 0 else f"{low} to {high}"


def _count(number: int) -> str:
    return "by attributes" if number < 0 else str(number)


def _limits() -> list[tuple[str, str, str]]:
    said = dict(re.findall(r"^    (\w+): int = .*?# (.*)$", Path(inspect.getfile(limits)).read_text(), re.MULTILINE))
    return [(f"`{field.name}`", f"{field.default:,}", sentence(said.get(field.name, ""))) for field in dataclasses.fields(limits.Limits)]
