"""The census counts what its page says it counts."""

from __future__ import annotations

import pytest

from tests.architecture.census import (
    POSITIONAL_MAX,
    WINDOW_LINES,
    Row,
    circles,
    code_lines,
    duplicates,
    imports,
    long_calls,
    long_functions,
    page,
    published,
    python_files,
    working_tree,
)  # fmt: skip

KEPT = ("wooly", "wis", "billing")
"""Packages without any of what the census finds."""


@pytest.fixture(scope="module")
def files() -> dict[str, str]:
    return python_files(working_tree(), KEPT)


def test_no_import_circle(files: dict[str, str]) -> None:
    assert circles(imports(files)) == []


def test_no_long_signature(files: dict[str, str]) -> None:
    assert [*long_functions(files), *long_calls(files)] == []


def test_deferred_and_typing_imports_close_a_circle() -> None:
    files = {
        "p/__init__.py": "",
        "p/a.py": "from . import b\n",
        "p/b.py": "def f():\n    import p.c\n",
        "p/c.py": "if TYPE_CHECKING:\n    from p.a import x\n",
        "p/d.py": "from p.a import y\nimport os\n",
        "p/q/__init__.py": "from .e import z\n",
        "p/q/e.py": "from ..d import y\nfrom p import q\n",
    }
    graph = imports(files)
    assert graph["p.a"] == {"p.b"} and graph["p.d"] == {"p.a"} and graph["p.q.e"] == {"p.d", "p.q"}
    assert circles(graph) == [["p.a", "p.b", "p.c"], ["p.q", "p.q.e"]]


def test_a_component_is_found_once_and_whole() -> None:
    ring = {str(i): {str((i + 1) % 9), str((i * 5) % 9)} for i in range(9)}
    assert circles(ring | {"in": {"0"}, "3": {"4", "out"}, "out": set()}) == [sorted(ring)]
    assert circles({"a": {"b"}, "b": {"c"}, "c": set()}) == []


@pytest.mark.parametrize(
    ("extra", "expected"), [("", 0), (", last", 1), (", *, last", 0), (", *last", 0), ("=0, last=0, /, more=0", 1)]
)  # fmt: skip
def test_positional_parameters_are_counted_without_self(extra: str, expected: int) -> None:
    names = ", ".join(f"a{i}" for i in range(POSITIONAL_MAX))
    assert len(list(long_functions({"m.py": f"class C:\n    def f(self, {names}{extra}): ...\n"}))) == expected


def test_keyword_arguments_of_a_call_do_not_count() -> None:
    given = ", ".join(["1"] * POSITIONAL_MAX)
    assert list(long_calls({"m.py": f"f({given}, a=1)\ng.h({given}, 1)\n"})) == [f"m.py:2: g.h: {POSITIONAL_MAX + 1}"]


def test_repeated_code_is_found_without_comments_docstrings_and_layout() -> None:
    lines = [f"x{i} = f({i},  {i})" for i in range(WINDOW_LINES)]
    one = '"""One."""\n' + "\n".join(lines) + "\n"
    other = "import os\n\n\ndef g():\n    # other\n" + "".join(f"    {line.replace(',  ', ', ')}\n" for line in lines)
    assert code_lines(one) == [line.replace(",  ", ", ").replace("(", " ( ").replace(",", " ,").replace(")", " )") for line in lines]
    assert duplicates({"a.py": one, "b.py": other, "c.py": one.replace("x3", "y3")}) == ["a.py = b.py"]


def test_publishing_keeps_the_column_before() -> None:
    rows = [Row("lines", "Lines", [""] * 1234), Row("circles", "Circles", [])]
    text = page(rows, {"Lines": "2,000", "Circles": "1"}, "before (`abc`)")
    assert published(text) == ({"Lines": "2,000", "Circles": "1"}, "before (`abc`)")
    assert "| Lines | 2,000 | 1,234 |" in text and published("") == ({}, "before")
