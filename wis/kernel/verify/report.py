"""Collection of findings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wis.errors import Finding, VerifyError
from wis.kernel.model import Block, Kernel


class Report:
    """Findings in the order they are made, at most ``findings_max``."""

    def __init__(self, findings_max: int) -> None:
        self.findings: list[Finding] = []
        self._max = findings_max

    def __call__(self, rule: str, place: str, text: str) -> None:
        if len(self.findings) < self._max:
            self.findings.append(Finding(rule, place, text))

    def stop(self) -> None:
        """End the verification when anything was found: later passes rely on what earlier ones checked."""
        if self.findings:
            raise VerifyError(self.findings)


@dataclass(frozen=True, slots=True)
class Body:
    """Code with registers of its own: the kernel's, or a function's. ``place`` is what its places in findings start with."""

    place: str
    regs: tuple[int, ...]
    blocks: tuple[Block, ...]
    ins: Sequence[int] = ()
    outs: Sequence[int] = ()


def bodies(kernel: Kernel) -> list[Body]:
    """The kernel's code, then its functions'."""
    functions = (Body(f"function {n} ", f.regs, f.blocks, f.ins, f.outs) for n, f in enumerate(kernel.functions))
    return [Body("", kernel.regs, kernel.blocks), *functions]
