"""``python -m tests.chaos [--rounds N] [--seed S] [--only WORDS] [--work NAME] [--publish]``: exits with 1 when something does not hold."""

from __future__ import annotations

import argparse
import multiprocessing
import random
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.bill import Work, bill, findings
from tests.chaos.faults import FAULTS, Fault
from tests.chaos.stack import WORKS, Script, Stack
from tests.support.sections import write_section
from tests.support.stack import ROOT

_SCRIPT_S = 900


@dataclass(slots=True)
class Row:
    """What held in the runs of one fault."""

    runs: int = 0
    finished: int = 0
    identical: int = 0
    billed: int = 0
    next: int = 0

    def add(self, other: Row) -> None:
        for name in Row.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


def undisturbed(steps: int, work: str) -> tuple[list[str], Work]:
    """The lines and the bill of a run of so many steps without faults."""
    with tempfile.TemporaryDirectory() as folder, Stack(Path(folder)) as stack:
        script = Script(stack, "undisturbed", steps=steps, work=work)
        if script.ends(_SCRIPT_S) != 0:
            raise RuntimeError(f"the undisturbed run failed:\n{script.errors}")
        if wrong := findings(stack):
            raise RuntimeError(f"the bill of the undisturbed run is not right: {wrong}")
        return script.lines, bill(stack)


def suffer(number: int, seed: int, work: str, wanted: tuple[list[str], Work]) -> tuple[Row, str]:
    """One run of the work under fault ``number``, which should be as ``wanted``: the verdict on it, and what went wrong."""
    fault, (lines, use), chance = FAULTS[number], wanted, random.Random(seed)
    with tempfile.TemporaryDirectory() as folder, Stack(Path(folder), nodes=fault.nodes, small=fault.small) as stack:
        after = None if fault.before is None else fault.before(stack)
        script = Script(stack, "disturbed", steps=fault.steps, work=work, paced=fault.paced)
        if after is not None:
            after()
        if script.reaches(len(lines) if fault.last else chance.randint(1, fault.lines_max), 120) and fault.strike is not None:
            fault.strike(stack, script, chance)
        script.allow(len(lines))
        code = script.ends(_SCRIPT_S)
        for part in ("controller", "billing"):
            if not stack.runs(part):
                stack.start(part)
        wrong = fault.bill(stack, use)
        again = Script(stack, "next", steps=fault.steps, work=work)
        continues = again.ends(_SCRIPT_S) == 0 and again.lines == lines
        row = Row(1, int(code == 0), int(script.lines == lines), int(not wrong), int(continues))
        if row == Row(1, 1, 1, 1, 1):
            return row, ""
        return row, f"seed {seed}, {work}, {fault.what}: exit code {code}; bill: {wrong}\n{script.errors[-3000:]}"


def table(rows: dict[Fault, Row]) -> str:
    """Markdown."""
    head = "| fault | script finished | identical | bill right | next script |\n|---|---|---|---|---|\n"
    return head + "".join(
        f"| {fault.what} | {row.finished} of {row.runs} | {row.identical} | {row.billed} of {row.runs} | {row.next} of {row.runs} |\n"
        for fault, row in rows.items()
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--rounds", type=int, default=1, help="runs of each fault; they take the kinds of work in turn")
    parser.add_argument("--seed", type=int, default=1, help="of the moments of the faults")
    parser.add_argument("--only", default="", help="faults whose description has these words")
    parser.add_argument("--work", choices=WORKS, action="append", help="only this kind; may be given again")
    parser.add_argument("--processes", type=int, default=1, help="runs beside each other")
    parser.add_argument("--publish", action="store_true", help="write the table to docs/durability.md")
    asked = parser.parse_args()
    works = asked.work or WORKS
    rows = {fault: Row() for fault in FAULTS if asked.only in fault.what}
    runs = [(number, fault, fault.work or works[number % len(works)]) for number in range(asked.rounds) for fault in rows]
    kinds = sorted({(fault.steps, work) for _, fault, work in runs})
    # A server ends with the thread that started it, so each run is in the main thread of a process.
    with ProcessPoolExecutor(asked.processes, multiprocessing.get_context("fork")) as pool:
        wanted = dict(zip(kinds, pool.map(undisturbed, *zip(*kinds, strict=True)), strict=True))
        verdicts = {
            pool.submit(suffer, FAULTS.index(fault), asked.seed + number, work, wanted[fault.steps, work]): (fault, work)
            for number, fault, work in runs
        }
        for verdict in as_completed(verdicts):
            fault, work = verdicts[verdict]
            row, wrong = verdict.result()
            rows[fault].add(row)
            print(f"{wrong}{work}, {fault.what}: {rows[fault]}", flush=True)
    print(table(rows))
    if asked.publish:
        commit = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
        ).stdout.strip()
        text = f"Commit {commit}: {len(runs)} runs.\n\n{table(rows)}"
        write_section(ROOT / "docs" / "durability.md", "chaos", text)
    return 0 if all(row.finished == row.identical == row.billed == row.next == row.runs for row in rows.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
