"""Markdown of generated pages."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

__all__ = ["cell", "constants", "documentation", "sentence", "table"]


def cell(text: object) -> str:
    """As the text of a cell."""
    return str(text).replace("\n", " ").replace("|", "\\|").replace("<", "&lt;")


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table; the cells are Markdown."""
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    lines += [f"| {' | '.join(cell(value) for value in row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def documentation(thing: object) -> str:
    """The docstring as Markdown: code in single backquotes. Empty where there is none of its own."""
    own = getattr(thing, "__doc__", None) or ""
    return re.sub(r"``([^`]+)``", r"`\1`", inspect.cleandoc(own))


def sentence(text: str) -> str:
    """``text`` with a capital letter at the beginning and a full stop at the end."""
    text = text.strip()
    return text if not text else text[0].upper() + text[1:] + ("" if text[-1] in ".!?" else ".")


def constants(path: Path, within: str | None = None) -> dict[str, tuple[object, str]]:
    """Names that a module (or its class ``within``) sets, each with its literal value (or None) and the text that follows it."""
    body: list[ast.stmt] = ast.parse(path.read_text()).body
    if within is not None:
        body = next(node.body for node in body if isinstance(node, ast.ClassDef) and node.name == within)
    found: dict[str, tuple[object, str]] = {}
    for node, after in zip(body, [*body[1:], None], strict=True):
        target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0] if isinstance(node, ast.Assign) else None
        if isinstance(target, ast.Name):
            value = getattr(node, "value", None)
            said = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
            text = re.sub(r"``([^`]+)``", r"`\1`", inspect.cleandoc(str(said)))
            found[target.id] = (value.value if isinstance(value, ast.Constant) else None, text)
    return found
