"""The process that runs rows: an ordinary client, switched on by ``import torch`` because its environment names a bus.

usage: python -m tests.conformance.client JOB   (a JSON file: rows, limits, where to write)

Every outcome is appended to the file at once as a line of JSON, so that the parent notices a session that was lost, and a process that
hangs, and starts another one at the next row. Exit status 3: the session was lost.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from tests.conformance.harness import DTYPES, Outcome, Row, SessionLost, claims, op_name, run_row
from tests.conformance.samples import Limits
from tests.support.op_db import op_db

__all__ = ["LOST", "rows_of", "run_rows", "unknown_names"]

LOST = 3
"""Exit status after a lost session."""

Plan = dict[str, Any]
"""What to run: ``ops`` (names; empty: all), ``every``, ``first``, ``dtypes``, ``forward``, ``backward``, ``variants``, ``errors``,
``seed``, ``whole`` (types whose samples are all run forward)."""


def unknown_names(names: Iterable[str]) -> list[str]:
    """Those that name no operator."""
    known = {name for op in op_db for name in (op.name, op_name(op))}
    return sorted(set(names) - known)


def rows_of(plan: Plan) -> list[tuple[Row, Limits]]:
    """The rows of a plan, in the order they are run."""
    wanted = set(plan["ops"])
    ops = [op for op in op_db if not wanted or op.name in wanted or op_name(op) in wanted][plan["first"] :: plan["every"]]
    return [row for op in ops for row in _rows(op, plan)]


def _rows(op: Any, plan: Plan) -> Iterator[tuple[Row, Limits]]:
    seed = plan["seed"]
    for name in plan["dtypes"]:
        dtype = DTYPES[name]
        if claims(op, dtype) and plan["forward"] != 0:
            samples = None if name in plan["whole"] else plan["forward"]
            yield Row(op, name, "forward"), Limits(samples, plan["variants"], seed)
        if plan["backward"] and claims(op, dtype, grad=True):
            yield Row(op, name, "backward"), Limits(plan["backward"], min(plan["variants"], 1), seed)
    if plan["errors"] and op.error_inputs_func is not None:
        yield Row(op, "", "errors"), Limits()


def run_rows(rows: list[tuple[Row, Limits]], start: int, write: Callable[[int, Outcome | None], None], done: Collection[int] = ()) -> bool:
    """Run rows from number ``start`` on, but those ``done``; ``write(row, None)`` before each, its outcome after it. False: the session was
    lost."""
    for number in (n for n in range(start, len(rows)) if n not in done):
        row, limits = rows[number]
        write(number, None)
        try:
            write(number, run_row(row, limits))
        except SessionLost as lost:
            outcome: Outcome = lost.args[0]
            outcome.add("wrong", "", outcome.note, set())
            write(number, outcome)
            return False
    return True


def main() -> int:
    job = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(1)
    if not torch.cuda.is_available():
        sys.exit("the device is off in this process")
    rows = rows_of(job["plan"])
    with open(job["out"], "a") as file:

        def write(number: int, outcome: Outcome | None) -> None:
            row, _ = rows[number]
            names = [op_name(row.op), row.dtype, row.direction]
            file.write(json.dumps([number, names, outcome.plain() if outcome is not None else None]) + "\n")
            file.flush()

        return 0 if run_rows(rows, job["start"], write, set(job["done"])) else LOST


if __name__ == "__main__":
    sys.exit(main())
