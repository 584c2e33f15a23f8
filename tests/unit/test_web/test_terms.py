"""What pages explain is what docs/glossary.md says, and every page's own words are among it."""

from __future__ import annotations

import re

from services.controller.web.formats import compact_text, gib_seconds_text
from services.controller.web.templating import ENVIRONMENT, TERMS, term_of
from tests.support.stack import ROOT


def glossary() -> dict[str, str]:
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)
    return {word: re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", text).replace("`", "") for word, text in rows}


def test_a_term_means_what_the_glossary_says() -> None:
    known = glossary()
    differing = [word for word, text in TERMS.items() if not known.get(word, "").startswith(text.removesuffix("."))]
    assert differing == []


def test_labels_lead_to_terms() -> None:
    for label in ("Starvation", "Promised", "Overcommit", "Core share", "Launches", "Swapped out", "Credits per hour", "VRAM time"):
        assert term_of(label) is not None, label
    assert term_of("Starvation") == ("starvation", TERMS["starvation"]) and term_of("Colour") is None


def test_a_term_is_a_link_to_its_entry_and_other_words_are_text() -> None:
    macro = ENVIRONMENT.get_template("macros/ui.html").module.term  # type: ignore[attr-defined]  # macros are attributes of a template's module
    assert str(macro("Core share")).startswith('<a class="term" href="/help#core-share" title="The part of')
    assert str(macro("<b>")) == "&lt;b&gt;"


def test_figures_have_few_digits_and_a_unit() -> None:
    assert [compact_text(n) for n in (0, 12.345, 99_999, 123_456, 4_433_323, -2e9)] == ["0", "12.35", "99,999", "123 k", "4.43 M", "-2 G"]
    gib_ms = 2**30 * 1000
    assert [gib_seconds_text(n) for n in (0, 57_000, gib_ms // 1024, 5 * gib_ms, 1_204 * gib_ms)] == [
        "0 B·s", "57 B·s", "1 MiB·s", "5.00 GiB·s", "1,204 GiB·s",
    ]  # fmt: skip
