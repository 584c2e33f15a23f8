"""Scores, mutants that are equivalent, and docs/mutation.md."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Final

from tests.mutation.areas import AREAS, Area
from tests.mutation.mutants import Mutant
from tests.mutation.runner import Outcome
from tests.support.stack import ROOT

__all__ = ["Score", "equivalents", "publish"]

_EQUIVALENT: Final = Path(__file__).with_name("equivalent.toml")
_PAGE: Final = ROOT / "docs" / "mutation.md"
_Z: Final = 1.96


@dataclass(frozen=True)
class Score:
    """Outcomes of an area's mutants without the equivalent ones; ``drawn`` counts these too."""

    area: Area
    outcomes: Mapping[Mutant, Outcome]
    drawn: int

    @property
    def killed(self) -> int:
        return sum(outcome.killed for outcome in self.outcomes.values())

    @property
    def percent(self) -> float:
        return 100 * self.killed / max(1, len(self.outcomes))

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's interval for the score of all mutants of the area, 95 %, in percent."""
        n, p = max(1, len(self.outcomes)), self.percent / 100
        middle, spread = p + _Z**2 / (2 * n), _Z * sqrt(p * (1 - p) / n + _Z**2 / (4 * n * n))
        return 100 * (middle - spread) / (1 + _Z**2 / n), 100 * (middle + spread) / (1 + _Z**2 / n)

    @property
    def text(self) -> str:
        low, high = self.interval
        return f"{self.killed} of {len(self.outcomes)} ({self.percent:.1f} %, {low:.0f}-{high:.0f} %; bar {self.area.bar} %)"


def equivalents() -> dict[str, str]:
    """Why a mutant changes nothing observable, by its name."""
    return {entry["mutant"]: entry["reason"] for entry in tomllib.loads(_EQUIVALENT.read_text()).get("equivalent", [])}


def publish(scores: Sequence[Score], seed: str) -> None:
    """Write docs/mutation.md. Areas that were not measured keep what the page said of them."""
    rows, sections = _published()
    for score in scores:
        rows[score.area.name], sections[score.area.name] = _row(score), _section(score)
    missing = ", ".join(f"`{name}`" for name in AREAS if name not in rows)
    lines = [
        "# Mutation scores",
        "",
        "How many planted faults the tests find. `make mutate` draws faults at random places of the code below, plants one at a time, and",
        "runs the tests that reach the place; a fault is found when one of them fails, runs out of its time, or cannot import the code.",
        f"Written by `make mutate` (seed {seed}); do not edit.",
        "",
        "| area | mutants | found | score | 95 % interval | asked for |",
        "|---|---:|---:|---:|---:|---:|",
        *(rows[name] for name in AREAS if name in rows),
        *(["", f"Not measured: {missing}."] if missing else []),
        "",
        "Faults: mutmut's (swapped operators and comparisons, numbers + 1, removed or emptied arguments and assignments, swapped",
        "keywords, dropped cases), a condition that never holds, a dropped call, changed names; in code that emits LLVM or C also tokens",
        "and numbers of the emitted text. Not mutated: annotations, names for types, assertions, options of data types,",
        "documentation, wording.",
        "The interval is for all mutants of the area, from the drawn ones. Mutants that change nothing that a test could see are left",
        "out; each has its reason in `tests/mutation/equivalent.toml`.",
        "",
        "## Not found",
        "",
        "\n\n".join(sections[name] for name in AREAS if name in sections),
    ]
    _PAGE.write_text("\n".join(lines) + "\n")


def _published() -> tuple[dict[str, str], dict[str, str]]:
    """What the page says of each area: its row of the table, and its section."""
    table, _, listed = _PAGE.read_text().partition("## Not found\n")
    rows = {line.split("`")[1]: line for line in table.splitlines() if line.startswith("| `")}
    return rows, {text.partition(":")[0]: f"### {text}".rstrip() for text in listed.split("### ")[1:]}


def _row(score: Score) -> str:
    low, high = score.interval
    n = len(score.outcomes)
    return f"| `{score.area.name}` | {n} | {score.killed} | {score.percent:.1f} % | {low:.0f} - {high:.0f} % | {score.area.bar} % |"


def _section(score: Score) -> str:
    left = [(mutant, outcome) for mutant, outcome in score.outcomes.items() if not outcome.killed]
    kinds = Counter(outcome.verdict for _, outcome in left)
    lines = [f"### {score.area.name}: {', '.join(f'{count} {kind}' for kind, count in kinds.items()) or 'none'}", ""]
    if left:
        lines += ["| mutant | place | without | with |", "|---|---|---|---|"]
        lines += [f"| {mutant.name} | {mutant.path}:{mutant.line} | {_cell(mutant.before)} | {_cell(mutant.after)} |" for mutant, _ in left]
    return "\n".join(lines).rstrip()


def _cell(text: str) -> str:
    shown = text.replace("\n", " ").replace("|", "\\|").replace("`", "'")
    return f"`{shown[:160]}`"
