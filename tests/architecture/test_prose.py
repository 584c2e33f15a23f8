"""Prose uses the words of the field, not a private vocabulary."""

from __future__ import annotations

import pytest

from tests.architecture.prose import CHECKED, WORDS, check
from tests.support.stack import ROOT

WORD = "nobody"
PHRASE = " ".join(("stands", "on"))


def test_roots_exist() -> None:
    assert [root for root in CHECKED if not (ROOT / root).exists()] == []


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        (f"x = 1  # {WORD.title()} reads it\n", [1]),
        (f'"""A buffer\n\nthat {PHRASE.replace(" ", chr(10))} a block."""\n', [3]),
        (f'raise ValueError("{WORD} holds it")\n', [1]),
        (f'f"the {{{WORD}}} session is {WORD}\'s"\n', [1]),
        (f"# one: {WORD}\n# two: {WORD}, and {WORD}\n", [1, 2, 2]),
    ],
)
def test_private_words_are_found_in_python_prose(source: str, lines: list[int]) -> None:
    assert [found.line for found in check(source, python=True)] == lines


@pytest.mark.parametrize(
    "source",
    [
        f"{WORD} = {WORD}()\n",
        f'SUBJECT = "wooly.access.{WORD}"\n',
        f'f"{{{WORD}}} sessions"\n',
        f'"""``{WORD}``: the flag, and `{WORD}`."""\n',
        "# the two are told apart by size; answers 410 TopicEnded\n",
    ],
)
def test_code_and_standard_uses_are_no_findings(source: str) -> None:
    assert check(source, python=True) == []


def test_other_files_are_checked_line_by_line_without_their_code() -> None:
    text = f"# Help\n\nUse `{WORD}` here.\n{{{{ {WORD} }}}}{{% if {WORD} %}}\nA node is {WORD}'s.\n"
    assert [(found.line, found.text) for found in check(text, python=False)] == [(5, f"{WORD}'s")]


def test_every_word_has_a_replacement_that_passes() -> None:
    assert [word.instead for word in WORDS if check(f"# {word.instead}\n", python=True)] == []
