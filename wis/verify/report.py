"""Collects findings."""

from __future__ import annotations

from wis.errors import Finding


class Report:
    """Findings of one program; ``at`` names the instruction that the next ones are about."""

    def __init__(self, findings_max: int) -> None:
        self.findings: list[Finding] = []
        self._max = findings_max
        self._code = -1

    @property
    def full(self) -> bool:
        return len(self.findings) >= self._max

    def at(self, code: int) -> None:
        self._code = code

    def program(self, rule: str, text: str) -> None:
        self._add(rule, "program", text)

    def dims(self, rule: str, text: str) -> None:
        self._add(rule, "dims", text)

    def buffer(self, number: int, rule: str, text: str) -> None:
        self._add(rule, f"buffer {number}", text)

    def instr(self, rule: str, text: str) -> None:
        self._add(rule, f"code {self._code}", text)

    def out(self, number: int, rule: str, text: str) -> None:
        self._add(rule, f"code {self._code} out {number}", text)

    def ins(self, number: int, rule: str, text: str) -> None:
        self._add(rule, f"code {self._code} in {number}", text)

    def attr(self, name: str, rule: str, text: str) -> None:
        self._add(rule, f"code {self._code} attr {name}", text)

    def _add(self, rule: str, place: str, text: str) -> None:
        if not self.full:
            self.findings.append(Finding(rule, place, text))
