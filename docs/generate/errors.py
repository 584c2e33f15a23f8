"""The error reference: exceptions of the client, faults of nodes, problem types of REST, reasons of placement."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Final

from bus_schemas import faults
from docs.generate.text import constants, documentation, table
from scheduler.placement import reasons
from wooly import errors

__all__ = ["page"]

_SERVICES: Final = Path(__file__).resolve().parents[2] / "services"

_HEAD: Final = """# Error reference

Every error that a script, a command or a REST client can meet. A message says what happened and what to do.

## Exceptions of the client

All derive from `wooly.errors.WoolyError`, a `RuntimeError`. Where PyTorch has a class for the same error (`torch.cuda.OutOfMemoryError`,
say), the exception is of that class, too.
"""

_FAULTS: Final = """
## Faults of a node

What a node answers instead of a result, and the exception that the client raises for it. A fault without an exception of its own is a
`RefusedError`.
"""
_PROBLEMS: Final = """
## Problem types of REST

The `type` of a problem document is `urn:wooly:problem:` and the name below.
"""
_REASONS: Final = """
## Reasons of placement

Why a device was refused for a task (`GET /api/v1/placements/{task}`).
"""


def page() -> str:
    """The page."""
    exceptions = [(f"`{kind.__name__}`", f"`{_base(kind)}`", documentation(kind)) for kind in _tree(errors.WoolyError)]
    parts = [_HEAD, table(("Exception", "Base", "Meaning"), exceptions), _FAULTS, table(("Fault", "Exception", "Meaning"), _faults())]
    parts += [_PROBLEMS, table(("Type", "Status", "Title"), _problems()), _REASONS, table(("Reason", "Meaning"), _texts(reasons))]
    return "\n".join(parts)


def _base(kind: type) -> str:
    return kind.__bases__[0].__name__


def _texts(module: ModuleType) -> list[tuple[str, str]]:
    """Constants of a module that are names, with their text."""
    found = constants(Path(inspect.getfile(module))).values()
    return [(f"`{value}`", text) for value, text in found if isinstance(value, str)]


def _tree(root: type[errors.WoolyError]) -> Iterator[type[errors.WoolyError]]:
    yield root
    for below in root.__subclasses__():
        if below.__module__ == errors.__name__:
            yield from _tree(below)


def _faults() -> list[tuple[str, str, str]]:
    return [(name, f"`{type(errors.from_fault(name.strip('`'), '')).__name__}`", text) for name, text in _texts(faults)]


def _problems() -> list[tuple[str, str, str]]:
    """Type, status and title, from every call of a function named ``problem`` with literal arguments."""
    found = {("`too-slow`", "408", "see the detail"), ("`too-large`", "413", "see the detail")}
    for path in sorted(_SERVICES.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id.endswith("problem") and len(node.args) > 2:
                status, kind, title = (ast.unparse(part) for part in node.args[:3])
                for name in _kinds(kind):
                    if status.isdigit():
                        text = title.strip("f'\"").replace("{source}", name.removeprefix("invalid-"))
                        found.add((f"`{name}`", status, text))
    return sorted(found)


def _kinds(text: str) -> list[str]:
    """The literals in the expression of a kind; a kind made of a source stands for both sources."""
    if "{source}" in text:
        return ["invalid-body", "invalid-query"]
    return [node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
