"""Census of the source tree: size, import circles, long signatures, private words, repeated code.

python -m tests.architecture.census                print the table for the working tree
python -m tests.architecture.census --list NAME    print what the row counts: circles, functions, calls, words, duplicates
python -m tests.architecture.census --publish      rewrite docs/census.md; its column "before" stays
python -m tests.architecture.census --publish --before REV    measure that column again, at a revision
"""

from __future__ import annotations

import argparse
import ast
import io
import itertools
import re
import subprocess
import sys
import tarfile
import tempfile
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from tests.architecture import prose
from tests.support.stack import ROOT

PRODUCT: Final = ("wooly", "wis", "bus_schemas", "jit", "scheduler", "billing", "services", "wooly_server")
"""The packages that are shipped."""
POSITIONAL_MAX: Final = 8
WINDOW_LINES: Final = 6
PAGE: Final = ROOT / "docs/census.md"

Tree = Mapping[str, str]
"""The text of each file by its path in the repository."""


class Row(NamedTuple):
    """One line of the table: its label, and what it counts, each item as text."""

    name: str
    label: str
    items: list[str]


def working_tree() -> Tree:
    """Tracked and new files of the checkout."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return {name: (ROOT / name).read_text() for name in names if name.endswith(prose.SUFFIXES) and (ROOT / name).is_file()}


def revision(name: str) -> Tree:
    """The files of a revision. Raises subprocess.CalledProcessError for an unknown one."""
    archive = subprocess.run(["git", "archive", name], cwd=ROOT, capture_output=True, check=True).stdout
    with tempfile.TemporaryDirectory() as folder, tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
        return {
            member.name: (Path(folder) / member.name).read_text()
            for member in files.getmembers()
            if member.isfile() and member.name.endswith(prose.SUFFIXES)
        }


def python_files(tree: Tree, roots: Iterable[str]) -> dict[str, str]:
    prefixes = tuple(f"{root}/" for root in roots)
    return {path: text for path, text in tree.items() if path.startswith(prefixes) and path.endswith(".py")}


def imports(files: Mapping[str, str]) -> dict[str, set[str]]:
    """The modules among ``files`` that each module names in an import: at its top, in functions, and under TYPE_CHECKING alike."""
    modules = {re.sub(r"/__init__$", "", path.removesuffix(".py")).replace("/", "."): path for path in files}
    graph: dict[str, set[str]] = {}
    for module, path in modules.items():
        package = module if path.endswith("__init__.py") else module.rpartition(".")[0]
        found = graph[module] = set()
        for node in ast.walk(ast.parse(files[path])):
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                above = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1]) if node.level else ""
                base = ".".join(part for part in (above, node.module or "") if part)
                found.update(f"{base}.{alias.name}" if f"{base}.{alias.name}" in modules else base for alias in node.names)
        found &= modules.keys() - {module}
    return graph


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Strongly connected components of more than one module, the largest first (Tarjan's algorithm, without recursion)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []
    for root in sorted(graph):
        work: list[tuple[str, Iterator[str]]] = [] if root in order else [(root, iter(sorted(graph[root])))]
        while work:
            at, below = work[-1]
            if at not in order:
                order[at] = low[at] = len(order)
                stack.append(at)
            following = next(below, None)
            if following is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[at])
                if low[at] == order[at]:
                    component = [*iter(stack.pop, at), at]
                    for member in component:
                        low[member] = len(graph)
                    found += [sorted(component)] if len(component) > 1 else []
            elif following not in order:
                work.append((following, iter(sorted(graph[following]))))
            else:
                low[at] = min(low[at], low[following] if low[following] == len(graph) else order[following])
    return sorted(found, key=lambda component: (-len(component), component))


def long_functions(files: Mapping[str, str]) -> Iterator[str]:
    """Functions with more than POSITIONAL_MAX parameters that may be given by position; ``self`` and ``cls`` do not count."""
    for path, text in files.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                names = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
                count = len(names) - (names[:1] in (["self"], ["cls"]))
                if count > POSITIONAL_MAX:
                    yield f"{path}:{node.lineno}: {getattr(node, 'name', 'lambda')}: {count}"


def long_calls(files: Mapping[str, str]) -> Iterator[str]:
    """Calls that give more than POSITIONAL_MAX arguments by position. ``struct`` formats and the like that take any number count too."""
    for path, text in files.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and len(node.args) > POSITIONAL_MAX:
                yield f"{path}:{node.lineno}: {ast.unparse(node.func)}: {len(node.args)}"


def code_lines(text: str) -> list[str]:
    """The logical lines of a Python file, each with its tokens separated by one space: no comments, docstrings and imports."""
    lines, tokens = [], []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.NEWLINE, tokenize.ENDMARKER):
            documentation = all(part[:1] in ('"', "'") or part[:2] in ('r"', "r'") for part in tokens)
            if tokens and not documentation and tokens[0] not in ("import", "from", "__all__"):
                lines.append(" ".join(tokens))
            tokens = []
        elif token.type not in (tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT):
            tokens.append(token.string)
    return lines


def duplicates(files: Mapping[str, str]) -> list[str]:
    """Pairs of files that have an equal window of WINDOW_LINES logical lines."""
    holders: defaultdict[tuple[str, ...], set[str]] = defaultdict(set)
    for path, text in files.items():
        lines = code_lines(text)
        for start in range(len(lines) - WINDOW_LINES + 1):
            holders[tuple(lines[start : start + WINDOW_LINES])].add(path)
    pairs = {pair for paths in holders.values() for pair in itertools.combinations(sorted(paths), 2)}
    return [f"{one} = {other}" for one, other in sorted(pairs)]


def private_words(tree: Tree, roots: Iterable[str]) -> Iterator[str]:
    """The findings of tests.architecture.prose in files under ``roots``."""
    chosen = tuple(roots)
    for path, text in tree.items():
        if any(path == root or path.startswith(f"{root}/") for root in chosen):
            for found in prose.check(text, python=path.endswith(".py")):
                yield f"{path}:{found.line}: {found.text!r}: {found.instead}"


def measure(tree: Tree) -> list[Row]:
    product = python_files(tree, PRODUCT)
    tests = python_files(tree, ("tests", "benchmarks"))
    found = circles(imports(product))
    documents = [root for root in prose.CHECKED if root not in (*PRODUCT, "tests", "benchmarks")]
    return [
        *(
            Row(f"lines-{package}", f"Lines, `{package}`", [""] * sum(text.count("\n") for text in python_files(tree, [package]).values()))
            for package in PRODUCT
        ),
        Row("lines", "Lines, product", [""] * sum(text.count("\n") for text in product.values())),
        Row("files", "Files, product", sorted(product)),
        Row("lines-tests", "Lines, `tests` and `benchmarks`", [""] * sum(text.count("\n") for text in tests.values())),
        Row("files-tests", "Files, `tests` and `benchmarks`", sorted(tests)),
        Row("circles", "Import circles of more than two files", [" ".join(circle) for circle in found if len(circle) > 2]),
        Row("circles-two", "Import circles of two files", [" ".join(circle) for circle in found if len(circle) == 2]),
        Row("functions", f"Functions with more than {POSITIONAL_MAX} positional parameters", list(long_functions(product))),
        Row("calls", f"Calls with more than {POSITIONAL_MAX} positional arguments", list(long_calls(product))),
        Row("words", "Private words, product", list(private_words(tree, PRODUCT))),
        Row("words-docs", "Private words, documentation and configuration", list(private_words(tree, documents))),
        Row("words-tests", "Private words, `tests` and `benchmarks`", list(private_words(tree, ("tests", "benchmarks")))),
        Row("duplicates", "Duplicate pairs, product", duplicates(product)),
        Row("duplicates-tests", "Duplicate pairs, `tests` and `benchmarks`", duplicates(tests)),
    ]  # fmt: skip


HEAD: Final = f"""# Census of the source

After this page you know the size of each package and how often the rules of style are broken. `make census` prints the table;
`python -m tests.architecture.census --publish` rewrites this page, and `--list NAME` prints what a row counts.

- **Lines and files**: all lines of Python files.
- **Import circles**: strongly connected components of the graph of imports. Imports inside functions and under `TYPE_CHECKING` count.
- **Positional**: parameters that may be given by position, without `self` and `cls`; arguments that are.
- **Private words**: findings of `tests/architecture/prose.py`, in comments, docstrings, messages, pages and configuration.
- **Duplicate pairs**: pairs of files with {WINDOW_LINES} equal consecutive logical lines (comments, docstrings and imports left out).

"""


def page(rows: list[Row], before: Mapping[str, str], note: str) -> str:
    """The text of docs/census.md. ``before`` has the figures of the first column by label; ``note`` says where they are from."""
    lines = [f"| measure | {note} | now |", "|---|---:|---:|"]
    lines += [f"| {row.label} | {before.get(row.label, '')} | {len(row.items):,} |" for row in rows]
    return HEAD + "\n".join(lines) + "\n"


def published(text: str) -> tuple[dict[str, str], str]:
    """The column "before" of a published page, and its heading."""
    cells = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in text.splitlines() if line.startswith("|")]
    return {row[0]: row[1] for row in cells[2:]}, cells[0][1] if cells else "before"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.architecture.census", description="Measure the source tree.")
    parser.add_argument("--list", metavar="NAME", help="print what this row counts")
    parser.add_argument("--publish", action="store_true", help="rewrite docs/census.md")
    parser.add_argument("--before", metavar="REV", help="with --publish: measure the column of comparison at this revision")
    options = parser.parse_args(arguments)
    rows = measure(working_tree())
    if options.list:
        print(*next(row.items for row in rows if row.name == options.list), sep="\n")
        return 0
    width = max(len(row.label) for row in rows)
    for row in rows:
        print(f"{row.label:<{width}}  {len(row.items):>8,}  {row.name}")
    if options.publish:
        if options.before:
            before = {row.label: f"{len(row.items):,}" for row in measure(revision(options.before))}
            note = f"before (`{options.before}`)"
        else:
            before, note = published(PAGE.read_text() if PAGE.exists() else "")
        PAGE.write_text(page(rows, before, note))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
