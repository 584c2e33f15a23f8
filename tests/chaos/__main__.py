"""``python -m tests.chaos [--rounds N] [--seed S] [--only WORDS] [--work NAME] [--publish]``: exits with 1 when something does not hold."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
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


def undisturbed(folder: Path, steps: int, work: str) -> tuple[list[str], Work]:
    """The lines and the bill of a run of so many steps without faults."""
    with Stack(folder) as stack:
        script = Script(stack, "undisturbed", steps=steps, work=work)
        if script.ends(_SCRIPT_S) != 0:
            raise RuntimeError(f"the undisturbed run failed:\n{script.errors}")
        if wrong := findings(stack):
            raise RuntimeError(f"the bill of the undisturbed run is not right: {wrong}")
        return script.lines, bill(stack)


def suffer(fault: Fault, seed: int, folder: Path, work: str, wanted: tuple[list[str], Work], row: Row) -> None:
    """One run of the work under the fault, and the verdict on it, which should be as ``wanted``."""
    lines, use = wanted
    chance = random.Random(seed)
    with Stack(folder, nodes=fault.nodes, small=fault.small) as stack:
        after = None if fault.before is None else fault.before(stack)
        script = Script(stack, "disturbed", steps=fault.steps, work=work)
        if after is not None:
            after()
        if script.reaches(chance.randint(1, fault.lines_max), 120) and fault.strike is not None:
            fault.strike(stack, script, chance)
        code = script.ends(_SCRIPT_S)
        row.runs += 1
        row.finished += code == 0
        row.identical += script.lines == lines
        wrong = fault.bill(stack, use)
        row.billed += not wrong
        again = Script(stack, "next", steps=fault.steps, work=work)
        row.next += again.ends(_SCRIPT_S) == 0 and again.lines == lines
        if code != 0 or script.lines != lines or wrong:
            print(f"seed {seed}, {work}: exit code {code}; bill: {wrong}\n{script.errors[-3000:]}", flush=True)


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
    parser.add_argument("--publish", action="store_true", help="write the table to docs/durability.md")
    asked = parser.parse_args()
    rows = {fault: Row() for fault in FAULTS if asked.only in fault.what}
    works = asked.work or WORKS
    wanted: dict[tuple[int, str], tuple[list[str], Work]] = {}
    for number in range(asked.rounds):
        work = works[number % len(works)]
        for fault, row in rows.items():
            began_s = time.monotonic()
            if (fault.steps, work) not in wanted:
                with tempfile.TemporaryDirectory() as folder:
                    wanted[fault.steps, work] = undisturbed(Path(folder), fault.steps, work)
            with tempfile.TemporaryDirectory() as folder:
                suffer(fault, asked.seed + number, Path(folder), work, wanted[fault.steps, work], row)
            print(f"{work}, {fault.what}: {row}, {time.monotonic() - began_s:.0f} s", flush=True)
    print(table(rows))
    if asked.publish:
        write_section(ROOT / "docs" / "durability.md", "chaos", table(rows))
    return 0 if all(row.finished == row.identical == row.billed == row.next == row.runs for row in rows.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
