"""Errors of WIS, by responsibility: the program's author or the tool that made it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class WisError(Exception):
    """Base of the tree; never raised itself."""


class DecodeError(WisError):
    """The peer's bytes are not a program in canonical form, or exceed the limits on bytes."""


class ParseError(WisError):
    """The author's text is not a program. ``line`` counts from 1."""

    def __init__(self, line: int, text: str) -> None:
        super().__init__(f"line {line}: {text}")
        self.line = line
        self.text = text


class BuildError(WisError, ValueError):
    """The caller of a builder or view helper asked for something impossible (a programmer's error)."""


class LaunchError(WisError):
    """The tenant's fault: a launch asks for a grid beyond the limits."""


class Finding(NamedTuple):
    """One broken rule. ``place``: ``program``, ``dims``, ``buffer B``, or ``code N`` and perhaps ``out I``, ``in I`` or ``attr NAME``."""

    rule: str
    place: str
    text: str

    def __str__(self) -> str:
        return f"{self.rule} @ {self.place}: {self.text}"


class VerifyError(WisError):
    """The program breaks rules of the instruction set; ``findings`` holds every one that was found, in program order."""

    def __init__(self, findings: Iterable[Finding]) -> None:
        self.findings = tuple(findings)
        assert self.findings, "a VerifyError says what is wrong"
        more = f" (and {len(self.findings) - 1} more)" if len(self.findings) > 1 else ""
        super().__init__(f"{self.findings[0]}{more}")

    def __reduce__(self) -> tuple[type[VerifyError], tuple[tuple[Finding, ...]]]:
        return VerifyError, (self.findings,)
