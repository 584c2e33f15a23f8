"""Errors of this front end."""

from __future__ import annotations

from wis.errors import ParseError

__all__ = ["PtxError"]


class PtxError(ParseError):
    """PTX that cannot become kernels: not PTX at all, of a version or with an instruction that is not known, or not portable.

    ``line`` counts from 1 in the PTX, ``ptx`` is that line, ``hint`` says what to do instead ("" when there is nothing to say).
    """

    def __init__(self, line: int, text: str, *, hint: str = "", ptx: str = "") -> None:
        self.hint, self.ptx, self.reason = hint, ptx, text
        where = f"\n    {ptx}" if ptx else ""
        super().__init__(line, f"{text}{f' ({hint})' if hint else ''}{where}")

    def within(self, lines: list[str]) -> PtxError:
        """The same with the text of its line, out of all lines of the source."""
        known = 0 < self.line <= len(lines)
        return PtxError(self.line, self.reason, hint=self.hint, ptx=lines[self.line - 1].strip()[:200] if known else "")

    def __reduce__(self) -> tuple[object, ...]:
        return _again, (self.line, self.reason, self.hint, self.ptx)


def _again(line: int, text: str, hint: str, ptx: str) -> PtxError:
    return PtxError(line, text, hint=hint, ptx=ptx)
