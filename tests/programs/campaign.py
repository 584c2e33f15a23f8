"""Many programs on one target: counts, failures with their minimal scripts, and the record in docs/fuzz-programs.md."""

from __future__ import annotations

import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING, Final

from tests.programs.execute import Verdict
from tests.programs.script import Program
from tests.programs.shrink import shrink, stand_alone
from tests.programs.worker import Outcome, Target, Workers
from tests.support.stack import ROOT

if TYPE_CHECKING:
    from tests.programs.verified import Tally

__all__ = ["Failure", "Result", "publish", "publish_verified", "run"]


@dataclass
class Failure:
    """``script``: stand-alone, minimal."""

    seed: int
    verdict: Verdict
    lines: list[str]

    @property
    def script(self) -> str:
        return stand_alone(self.lines, f"seed {self.seed}: {self.verdict.kind}: {self.verdict.text}")


@dataclass
class Result:
    """``counts``: programs by kind of verdict ("": agreed)."""

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)
    undecided: list[int] = field(default_factory=list)
    seconds: float = 0.0
    tally: Tally | None = None

    @property
    def n_programs(self) -> int:
        return sum(self.counts.values())

    def summary(self) -> str:
        failed = self.n_programs - self.counts[""] - self.counts["undecided"]
        kinds = ", ".join(f"{n} {kind}" for kind, n in sorted(self.counts.items()) if kind)
        if self.tally is not None:
            return f"{self.n_programs} scripts, {self.tally} in {self.seconds:.0f} s; {failed} refused"
        return f"{self.n_programs} programs in {self.seconds:.0f} s; {failed} failed{f' ({kinds})' if kinds else ''}"


def run(
    targets: Sequence[Target],
    seeds: Iterable[int],
    *,
    distinct_min: int = 0,
    shrunk_max: int = 20,
    report: Callable[[Failure], None] | None = None,
) -> Result:
    """Run the programs of ``seeds``, one at a time on each target. ``report`` gets failures, the first ``shrunk_max`` of them shrunk.

    ``distinct_min``: end after so many distinct programs of WIS were verified.
    """
    result, started = Result(), time.monotonic()
    if distinct_min:
        seeds = takewhile(lambda _: result.tally is None or len(result.tally.distinct) < distinct_min, seeds)
    with Workers(targets) as workers, Workers(targets[:1]) as shrinker:
        for outcome in workers.run(seeds):
            _count(result, outcome)
            if outcome.verdict.failed and outcome.program is not None:
                failure = _shrunk(shrinker, outcome.program, outcome.verdict, len(result.failures) < shrunk_max)
                result.failures.append(failure)
                if report is not None:
                    report(failure)
    result.seconds = time.monotonic() - started
    return result


def _count(result: Result, outcome: Outcome) -> None:
    result.counts[outcome.verdict.kind] += 1
    if outcome.verdict.kind == "undecided":
        result.undecided.append(outcome.seed)
    if result.tally is None:
        result.tally = outcome.tally
    elif outcome.tally is not None:
        result.tally.add(outcome.tally)


def _shrunk(workers: Workers, program: Program, verdict: Verdict, wanted: bool) -> Failure:
    lines = [line.text for line in program.lines]
    if wanted and workers.judge(lines, program).kind == verdict.kind:
        lines, verdict = shrink(program, verdict, lambda fewer: workers.judge(fewer, program))
    return Failure(program.seed, verdict, lines)


_PAGE: Final = ROOT / "docs" / "fuzz-programs.md"
_START: Final = "## The record\n"
_HEAD: Final = (
    "| command | revision | programs | agreed | failed | undecided | seconds | failed seeds |",
    "|---|---|---:|---:|---:|---:|---:|---|",
)


_VERIFIED: Final = "## The record of verification\n"
_VERIFIED_HEAD: Final = (
    "| command | revision | scripts | programs | distinct | other than by sizes | instructions | WIS operations | torch operators "
    "| refused by the client | refused | seconds | refused seeds |",
    "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|",
)


def publish(result: Result, command: str) -> None:
    """Add a row with a run's figures to docs/fuzz-programs.md, and to the sum of all rows."""
    failed = result.n_programs - result.counts[""] - result.counts["undecided"]
    figures = [result.n_programs, result.counts[""], failed, result.counts["undecided"], round(result.seconds)]
    about, runs, after = _rows(_START)
    runs.append(_row(command, figures, result))
    columns = [[int(cell.replace(",", "")) for cell in run.split(" | ")[2:7]] for run in runs]
    sums = " | ".join(f"{sum(column):,}" for column in zip(*columns, strict=True))
    _PAGE.write_text("\n".join([about + _START, *_HEAD, *runs, f"| all | | {sums} | |"]) + "\n" + after)


def publish_verified(result: Result, command: str) -> None:
    """Add a row with the figures of a run that verified to docs/fuzz-programs.md."""
    tally = result.tally
    assert tally is not None, "nothing was verified"
    figures = [result.n_programs, tally.programs, len(tally.distinct), len(tally.structures), tally.instructions, len(tally.ops)]
    figures += [len(tally.operators), tally.client_refusals.total(), result.counts["refused"], round(result.seconds)]
    about, runs, after = _rows(_VERIFIED)
    _PAGE.write_text("\n".join([about + _VERIFIED, *_VERIFIED_HEAD, *runs, _row(command, figures, result)]) + "\n" + after)


def _rows(start: str) -> tuple[str, list[str], str]:
    """The text of the page before the table under ``start``, the table's rows, and what follows it."""
    about, _, rest = _PAGE.read_text().partition(start)
    table, heading, after = rest.partition("\n## ")
    return about, [line for line in table.splitlines() if line.startswith("| `")], heading + after


def _row(command: str, figures: Sequence[int], result: Result) -> str:
    revision = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    seeds = ", ".join(str(failure.seed) for failure in result.failures)
    return f"| `{command}` | {revision} | {' | '.join(f'{n:,}' for n in figures)} | {seeds} |"
