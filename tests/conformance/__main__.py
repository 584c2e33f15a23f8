"""``make conformance``: the operator database on the device, and docs/conformance.md.

usage: python -m tests.conformance [--publish] [--ops NAME,NAME] [--dtypes NAME,NAME] [--forward N] [--backward N] [--variants N]
           [--every N] [--first N] [--seed N] [--whole NAME,NAME] [--backend NAME] [--in-process [--cut] [--processes N]] [--keep FILE]
           [--report FILE]

Through a bus and a node of its own, unless ``--in-process``, which for `opencl` and `cuda` it always is.
Exit status 1: something was wrong or a session was lost; 2: bad arguments.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.conformance.client import rows_of, run_rows, unknown_names
from tests.conformance.document import document, lines
from tests.conformance.harness import DTYPES, Outcome, op_name
from tests.conformance.wire import Record, add_kept, read_kept, run_on_wire

_DOCS = Path(__file__).parents[2] / "docs"
_PUBLISHED = {
    "host": ("conformance.md", {"forward": 5, "backward": 2, "variants": 2, "whole": ["float32"]}),
    "opencl": ("conformance-opencl.md", {"forward": 2, "backward": 1, "variants": 0, "whole": [], "dtypes": ["float32"]}),
    "cuda": (
        "conformance-cuda.md",
        {"forward": 2, "backward": 1, "variants": 0, "whole": [], "dtypes": ["float32", "float16", "bfloat16", "int64"]},
    ),
}
"""By backend: the file, and what is run for it."""


_PLAN = ("ops", "dtypes", "forward", "backward", "variants", "every", "first", "seed", "whole", "errors")


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("--ops", type=_names, default=[], help="only these operators")
    parser.add_argument("--dtypes", type=_names, default=list(DTYPES), help="only these element types")
    parser.add_argument("--forward", type=int, default=None, help="samples a row, forward (default: all; 0: none)")
    parser.add_argument("--backward", type=int, default=3, help="samples a row, backward (0: none)")
    parser.add_argument("--variants", type=int, default=2, help="cases a row with other layouts, batched, in place, out=")
    parser.add_argument("--every", type=int, default=1, help="only every Nth operator")
    parser.add_argument("--first", type=int, default=0, help="from this operator on")
    parser.add_argument("--seed", type=int, default=0, help="of values and of the choice of samples")
    parser.add_argument("--whole", type=_names, default=[], help="element types of which all samples are run forward")
    parser.add_argument("--no-errors", dest="errors", action="store_false", help="leave out calls that must raise")
    parser.add_argument("--publish", action="store_true", help="the samples that are published, and the file in docs/")
    parser.add_argument("--in-process", action="store_true", help="without bus and node")
    parser.add_argument("--backend", default="host", choices=["reference", "host", "opencl", "cuda"])
    parser.add_argument("--cut", action="store_true", help="stop every run in many places and go on with it (in process)")
    parser.add_argument("--processes", type=int, default=1, help="which share the operators (in process)")
    parser.add_argument("--keep", default="", help="add outcomes to this file as they come; those that it holds are not made again")
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    parser.add_argument("--report", default="", help="write every row that is not native to this file; outcomes as JSON beside it")
    arguments = parser.parse_args(argv)
    types = sorted({*arguments.dtypes, *arguments.whole} - set(DTYPES))
    for what, unknown in (("operators", unknown_names(arguments.ops)), ("element types", types)):
        if unknown:
            parser.error(f"unknown {what}: {', '.join(unknown)}")
    if arguments.publish:
        vars(arguments).update(_PUBLISHED[arguments.backend][1])
    return arguments


def _in_process(plan: dict[str, Any], backend: str, kept: Path | None, *, cut: bool) -> Record:
    """Every row in this process, with the backend in this process as well. ``kept``: as for ``run_on_wire``."""
    from tests.support.cutting import CutEngine
    from tests.support.loopback import LoopbackLink
    from wooly.activation import activate
    from wooly.config import Config

    engine = None
    if backend != "reference" or cut:
        from jit.backends import create_engine

        engine = create_engine(backend, cache_dir=None, threads=2, vram_bytes=2 << 30)
    link = LoopbackLink(CutEngine(engine) if cut else engine)
    activate(Config(local_gpu=True), lambda index: link)
    rows = rows_of(plan)
    record, made, start = Record(sessions=1), read_kept(kept), time.monotonic()

    def write(number: int, outcome: Outcome | None) -> None:
        _progress(number, op_name(rows[number][0].op))
        if outcome is not None:
            made[number] = outcome
            add_kept(kept, number, outcome)

    while not run_rows(rows, 0, write, made):
        record.sessions_lost += 1
        record.sessions += 1
        link.forget_fault()
    record.outcomes = [made[number] for number in sorted(made)]
    record.seconds = time.monotonic() - start
    return record


def _in_processes(plan: dict[str, Any], options: argparse.Namespace) -> Record:
    """The operators of a plan dealt to processes that each do what ``_in_process`` does."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for share in range(options.processes):
            part = plan | {"first": plan["first"] + share * plan["every"], "every": plan["every"] * options.processes}
            report = Path(folder) / str(share)
            arguments = ["--child", json.dumps(part), "--backend", options.backend, "--in-process", "--report", str(report)]
            arguments += ["--keep", f"{report}.kept"]
            arguments += ["--cut"] if options.cut else []
            children.append((part, report, subprocess.Popen([sys.executable, "-m", "tests.conformance", *arguments])))
        records = []
        for part, report, child in children:
            child.wait()
            found = Path(f"{report}.json")
            records.append(_record(found.read_text()) if found.exists() else _crashed(Path(f"{report}.kept"), part, child.returncode))
    made = Record([o for record in records for o in record.outcomes], seconds=time.monotonic() - start)
    made.outcomes.sort(key=lambda o: o.name.casefold())
    for name in ("sessions_lost", "sessions", "crashes"):
        setattr(made, name, sum(getattr(record, name) for record in records))
    return made


def _record(text: str) -> Record:
    """That of a report."""
    fields = json.loads(text)
    return Record(**fields | {"outcomes": [Outcome(**outcome) for outcome in fields["outcomes"]]})


def _crashed(kept: Path, part: dict[str, Any], status: int) -> Record:
    """Of a process that ended without a report, in the row after those it kept; which that is, it alone knew."""
    outcomes = list(read_kept(kept).values())
    last = f"after {outcomes[-1].name} in {outcomes[-1].dtype}" if outcomes else f"first of every {part['every']} from {part['first']}"
    crash = Outcome(f"({last})", "", "forward")
    crash.add("wrong", "", f"the process ended with {status}", set())
    return Record([*outcomes, crash], crashes=1)


def _progress(number: int, name: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{number} {name:50.50}")


def main(argv: list[str] | None = None) -> int:
    arguments = _arguments(argv)
    plan = json.loads(arguments.child) if arguments.child else {name: getattr(arguments, name) for name in _PLAN}
    if not rows_of(plan):
        sys.exit("nothing to run: no operator has these types")
    arguments.in_process |= arguments.backend in ("opencl", "cuda") or arguments.cut
    if arguments.in_process and arguments.processes > 1:
        record = _in_processes(plan, arguments)
    elif arguments.in_process:
        record = _in_process(plan, arguments.backend, Path(arguments.keep) if arguments.keep else None, cut=arguments.cut)
    else:
        record = run_on_wire(plan, _progress, arguments.backend, Path(arguments.keep) if arguments.keep else None)
    print("\n".join(lines(record)))
    if arguments.report:
        Path(arguments.report).write_text(_report(record))
        Path(arguments.report + ".json").write_text(json.dumps(asdict(record)))
    if arguments.publish and not arguments.ops:
        file = _DOCS / _PUBLISHED[arguments.backend][0]
        file.write_text(document(record, plan, arguments.backend, wire=not arguments.in_process))
    return 1 if record.sessions_lost or record.crashes or any(o.counts["wrong"] for o in record.outcomes) else 0


def _report(record: Record) -> str:
    out = lines(record)
    for result in ("wrong", "refused", "fallback"):
        for o in record.outcomes:
            if o.result == result:
                note = o.note or ",".join(o.fallbacks)
                out.append(f"{o.direction:8} {o.dtype:10} {result:8} {o.name:45} {o.counts[result]}/{o.samples} {note}")
    return "\n".join(out) + "\n"


if __name__ == "__main__":
    sys.exit(main())
