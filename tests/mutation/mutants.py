"""Mutants of a file: every fault that the operators plant, sampled by place, each with the source that has it."""

from __future__ import annotations

import ast
import difflib
import hashlib
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider
from mutmut.mutation.file_mutation import MutationVisitor
from mutmut.mutation.pragma_handling import IgnoredCode

from tests.mutation.operators import Operators, emitted_operators, python_operators

__all__ = ["Mutant", "sample"]


@dataclass(frozen=True)
class Mutant:
    """One fault.

    Attributes:
        path: The file, relative to the repository.
        line: First line of the statement that has the fault.
        last_line: Last line of it (of a compound statement: of its header).
        function: Qualified name of the outermost function that has the fault; empty at the level of the module or a class.
        before, after: The changed lines, stripped, without and with the fault.
        occurrence: How many equal changes of equal lines come before it in the file.
        source: The whole file with the fault.
    """

    path: str
    line: int
    last_line: int
    function: str
    before: str
    after: str
    occurrence: int
    source: str

    @property
    def name(self) -> str:
        """Stays the same while the line and those like it do not change."""
        text = "\0".join((self.path, self.function, self.before, self.after, str(self.occurrence)))
        return hashlib.sha256(text.encode()).hexdigest()[:12]


class _Visitor(MutationVisitor):
    """mutmut's, which also goes into decorated functions, and not into assertions (``zip(strict=)`` is one), options of data types,
    names for types, ``__all__`` and documentation."""

    def __init__(self, operators: Operators) -> None:
        super().__init__(operators, IgnoredCode(set(), set(), set()))  # type: ignore[arg-type]
        self._options: set[int] = set()

    def _skip_node_and_children(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.Assert | cst.Decorator | cst.ImportFrom | cst.Import):
            return True
        if isinstance(node, cst.ClassDef):
            self._options.update(map(id, node.keywords))
        if isinstance(node, cst.Arg) and (id(node) in self._options or (node.keyword is not None and node.keyword.value == "strict")):
            return True
        if isinstance(node, cst.Subscript) and isinstance(node.value, cst.Name) and node.value.value == "Literal":
            return True
        if isinstance(node, cst.Expr) and isinstance(node.value, cst.SimpleString):
            return True
        if isinstance(node, cst.If) and isinstance(node.test, cst.Name) and node.test.value == "TYPE_CHECKING":
            return True
        if isinstance(node, cst.Assign) and any(isinstance(t.target, cst.Name) and t.target.value == "__all__" for t in node.targets):
            return True
        if isinstance(node, cst.Assign) and isinstance(node.value, cst.Subscript) and _is_class_name(node.targets[0].target):
            return True  # a name for a type
        if isinstance(node, cst.FunctionDef):
            return False
        return super()._skip_node_and_children(node)


def _is_class_name(target: cst.BaseExpression) -> bool:
    return isinstance(target, cst.Name) and target.value.lstrip("_")[:2].istitle()


def _statements(source: str) -> dict[int, tuple[int, int]]:
    """For every line the first and last line of the innermost statement (of a compound one: of its header)."""
    spans: dict[int, tuple[int, int]] = {}
    for node in ast.walk(ast.parse(source)):  # outer before inner
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            last = node.end_lineno or node.lineno
            if isinstance(body, list) and body:
                last = max(node.lineno, body[0].lineno - 1)
            elif isinstance(node, ast.Match):
                last = max(node.lineno, node.cases[0].pattern.lineno - 1)
            for line in range(node.lineno, last + 1):
                spans[line] = node.lineno, last
    return spans


def _functions(source: str) -> dict[int, str]:
    """For every line of a function or method the qualified name of the outermost one."""
    found: dict[int, str] = {}

    def visit(body: Iterable[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for line in range(node.body[0].lineno, (node.end_lineno or 0) + 1):
                    found[line] = prefix + node.name
            elif isinstance(node, ast.ClassDef):
                visit(node.body, f"{prefix}{node.name}.")

    visit(ast.parse(source).body, "")
    return found


_Fault = tuple[cst.CSTNode, cst.CSTNode, CodeRange, cst.Module]
"""A node, what stands instead, where it stands, and its module."""


def _places(source: str, operators: Operators) -> dict[tuple[int, int], list[_Fault]]:
    """All faults by place (line, column)."""
    wrapper = MetadataWrapper(cst.parse_module(source), unsafe_skip_copy=True)
    visitor = _Visitor(operators)
    wrapper.visit(visitor)
    positions = wrapper.resolve(PositionProvider)
    found = defaultdict(list)
    for mutation in visitor.mutations:
        place = positions[mutation.original_node]
        found[place.start.line, place.start.column].append((mutation.original_node, mutation.mutated_node, place, wrapper.module))
    return found


def _changed(source: str, fault: _Fault) -> str:
    """The file with the fault."""
    node, changed, place, module = fault
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    begin, end = starts[place.start.line - 1] + place.start.column, starts[place.end.line - 1] + place.end.column
    if source[begin:end] == module.code_for_node(node):
        return source[:begin] + module.code_for_node(changed) + source[end:]
    return module.deep_replace(node, changed).code  # type: ignore[arg-type]


def _order(seed: str, *parts: object) -> bytes:
    return hashlib.sha256("\0".join(map(str, (seed, *parts))).encode()).digest()


def sample(root: Path, paths: Iterable[str], count: int, seed: str, *, emitted: bool = False) -> list[Mutant]:
    """``count`` mutants: places drawn by ``seed``, at each place one of its faults.

    The order depends on the text of the lines, not on their numbers: a change of one line replaces the mutants of that line only.
    ``emitted``: half of the places are drawn from text that the modules emit, the others from their Python.
    """
    if emitted:
        half = count // 2
        return _drawn(root, paths, half, seed, emitted_operators()) + _drawn(root, paths, count - half, seed, python_operators())
    return _drawn(root, paths, count, seed, python_operators())


def _drawn(root: Path, paths: Iterable[str], count: int, seed: str, operators: Operators) -> list[Mutant]:
    sources = {path: (root / path).read_text() for path in paths}
    drawn = []
    for path, source in sources.items():
        lines = source.splitlines()
        seen: dict[tuple[str, int], int] = defaultdict(int)
        for (line, column), faults in sorted(_places(source, operators).items()):
            key = lines[line - 1].strip(), column
            seen[key] += 1
            drawn.append((_order(seed, path, *key, seen[key]), path, line, faults))
    drawn.sort(key=lambda place: place[0])
    mutants = []
    for order, path, line, faults in drawn:
        if len(mutants) == count:
            break
        fault = faults[int.from_bytes(order[:4], "big") % len(faults)]
        mutant = _mutant(path, sources[path], line, _changed(sources[path], fault))
        if mutant is not None:
            mutants.append(mutant)
    return mutants


def _mutant(path: str, source: str, line: int, changed: str) -> Mutant | None:
    """None for a fault that is none: equal code, or text that is no Python."""
    try:
        if ast.dump(ast.parse(changed)) == ast.dump(ast.parse(source)):
            return None
    except SyntaxError:
        return None
    first, last = _statements(source).get(line, (line, line))
    before, after = _difference(source, changed)
    same = source[: sum(len(text) + 1 for text in source.splitlines()[: line - 1])].count(before.split("\n")[0]) if before else 0
    return Mutant(path, first, last, _functions(source).get(line, ""), before, after, same, changed)


def _difference(source: str, changed: str) -> tuple[str, str]:
    """The lines that differ, stripped."""
    old, new = source.splitlines(), changed.splitlines()
    before, after = [], []
    for tag, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag != "equal":
            before += old[a:b]
            after += new[c:d]
    return "\n".join(text.strip() for text in before), "\n".join(text.strip() for text in after)
