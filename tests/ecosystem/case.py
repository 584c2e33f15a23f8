"""One case: its header, its runs on the CPU and on the device, its verdict.

A case is a script as its author would run it: ``cuda`` where it is available, results written with ``torch.save`` to the path in its first
argument. Comment lines at its head say what it needs:

``# requires: a, b``     modules that must be importable; without them the case is not installed, and is not run.
``# cpu: no``            there is nothing to compare with: the script checks its results itself.
``# tolerance: 1e-3``    for floating-point results, instead of the table in tests/support/results.py.
``# timeout: 600``       seconds for each of the two runs, instead of the runner's.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

import torch

from tests.support.results import compare

__all__ = ["CASES", "VERDICTS", "Case", "Outcome", "read", "run"]

CASES: Final = Path(__file__).parent / "cases"
_HOOKS: Final = Path(__file__).parent / "hooks"
VERDICTS: Final = ("pass", "fallback", "wrong", "error", "hang", "session-lost", "invalid", "not installed")
"""*invalid*: the script failed on the CPU, so that nothing was compared."""


@dataclass(frozen=True, slots=True)
class Case:
    """A script and what its head says."""

    name: str
    path: Path
    title: str
    requires: tuple[str, ...]
    on_cpu: bool
    tolerance: float | None
    timeout_s: float | None


@dataclass(slots=True)
class Outcome:
    """What a case came to. ``note``: the difference or the last line of the error; ``seconds``: of both runs."""

    case: Case
    verdict: str
    note: str = ""
    fallbacks: dict[str, int] = field(default_factory=dict)
    ops: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class _Run:
    code: int | None  # None: it did not end in time
    errors: str
    reports: list[dict[str, Any]]


def read(path: Path) -> Case:
    """The case in ``path``. Raises ValueError for a header that is not known."""
    text = path.read_text()
    found = dict(re.findall(r"^# ([a-z]+): (.*)$", text.partition("\nimport ")[0], re.MULTILINE))
    title = re.match(r'"""(.*?)"""', text, re.DOTALL)
    if title is None or found.keys() - {"requires", "cpu", "tolerance", "timeout"}:
        raise ValueError(f"{path.name}: no title, or an unknown header among {sorted(found)}")
    return Case(
        name=path.stem.partition("_")[0],
        path=path,
        title=" ".join(title[1].split()).rstrip("."),
        requires=tuple(name.strip() for name in found.get("requires", "").split(",") if name.strip()),
        on_cpu=found.get("cpu") != "no",
        tolerance=float(found["tolerance"]) if "tolerance" in found else None,
        timeout_s=float(found["timeout"]) if "timeout" in found else None,
    )


@cache
def _installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


@cache
def _versions() -> str:
    return " ".join(sorted({f"{d.metadata['Name']}=={d.version}" for d in importlib.metadata.distributions()}))


def run(case: Case, environment: dict[str, str], plain: dict[str, str], references: Path, timeout_s: float) -> Outcome:
    """Run ``case`` on the CPU (unless ``references`` holds its results) and on the device; ``environment``: with the device."""
    missing = [name for name in case.requires if not _installed(name)]
    if missing:
        return Outcome(case, "not installed", ", ".join(missing))
    limit = case.timeout_s or timeout_s
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        reference = references / (hashlib.sha256(f"{case.path.read_text()}\0{_versions()}".encode()).hexdigest()[:32] + ".pt")
        if case.on_cpu and not reference.exists():
            done = _script(case, folder / "cpu", plain, limit)
            saved = folder / "cpu" / "results.pt"
            if done.code != 0 or not saved.exists():
                return Outcome(case, "invalid", "on the CPU: " + (_last_line(done.errors) if done.code is not None else "no end"))
            references.mkdir(parents=True, exist_ok=True)
            shutil.move(saved, reference)
        done = _script(case, folder / "device", environment, limit)
        outcome = _judged(case, done, folder / "device" / "results.pt", reference)
    outcome.seconds = time.monotonic() - started
    return outcome


def _script(case: Case, folder: Path, environment: dict[str, str], limit_s: float) -> _Run:
    """Run the script in a new process group, whose processes are all ended when it takes longer than ``limit_s``."""
    (folder / "reports").mkdir(parents=True)
    environment = environment | {"PYTHONPATH": str(_HOOKS), "ECOSYSTEM_REPORTS": str(folder / "reports"), "PYTHONFAULTHANDLER": "1"}
    with (folder / "output").open("wb") as output, (folder / "errors").open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, str(case.path), str(folder / "results.pt")],
            env=environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            start_new_session=True,
        )
        code: int | None = None
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            pass
        finally:
            _end_group(process)
    reports = [json.loads(path.read_text() or "{}") for path in (folder / "reports").iterdir()]
    return _Run(code, (folder / "errors").read_text(errors="replace"), reports)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def _judged(case: Case, done: _Run, saved: Path, reference: Path) -> Outcome:
    fallbacks: dict[str, int] = {}
    ops = 0
    for report in done.reports:
        ops += report.get("stats", {}).get("ops", 0)
        for name, n in report.get("stats", {}).get("fallbacks", {}).items():
            fallbacks[name] = fallbacks.get(name, 0) + n
    lost = next((report["lost"] for report in done.reports if report.get("lost")), "")
    outcome = Outcome(case, "fallback" if fallbacks else "pass", fallbacks=fallbacks, ops=ops)
    if done.code is None:
        outcome.verdict, outcome.note = "hang", _last_line(done.errors)
    elif done.code != 0:
        outcome.verdict, outcome.note = ("session-lost" if lost else "error"), _last_line(done.errors)
    elif not saved.exists():
        outcome.verdict, outcome.note = "error", "the script saved no results"
    elif case.on_cpu:
        have = torch.load(saved, weights_only=False, map_location="cpu")
        try:
            compare(have, torch.load(reference, weights_only=False), exact=False, tolerance=case.tolerance)
        except AssertionError as difference:
            outcome.verdict, outcome.note = "wrong", " ".join(str(difference).split())
    return outcome


_EXCEPTION: Final = re.compile(r"(\[rank\d+\]: )?([A-Za-z_]\w*\.)*[A-Z][A-Za-z]+(: |$)")


def _last_line(errors: str) -> str:
    """The last line that names an exception; else the last line, but for the client's totals."""
    lines = [line.strip() for line in errors.splitlines() if line.strip() and not line.startswith(("wooly: ", "Extension modules: "))]
    crashes = [line for line in lines if line.startswith("Fatal Python error")]
    return (crashes or [line for line in lines if _EXCEPTION.match(line)] or lines or ["no message"])[-1]
