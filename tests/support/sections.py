"""Sections of the documentation that programs write, between ``<!-- name -->`` and ``<!-- /name -->``."""

from __future__ import annotations

from pathlib import Path

__all__ = ["write_section"]


def write_section(page: Path, name: str, text: str) -> None:
    """Replace the section; ``text`` ends with a line break. Raises ValueError when the page has none of this name."""
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->\n"
    head, found, rest = page.read_text().partition(begin)
    if not found or end not in rest:
        raise ValueError(f"{page} has no section {name}")
    page.write_text(head + begin + text + end + rest.partition(end)[2])
