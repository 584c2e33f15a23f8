"""The runner tells passes, other values, errors and hangs apart; the cases and their explanations are well-formed."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests.ecosystem.case import CASES, VERDICTS, Outcome, read, run
from tests.ecosystem.table import document
from tests.support.stack import plain_environment

SAVE = "import os, sys, torch\non_device = os.environ.get('WHERE') == 'device'\n"


def test_every_case_has_an_id_of_its_own_and_every_explanation_a_case() -> None:
    cases = [read(path) for path in sorted(CASES.glob("*.py"))]
    names = [case.name for case in cases]
    assert len(names) == len(set(names)) == 170
    explained = tomllib.loads((CASES.parent / "explained.toml").read_text())
    assert set(explained) <= set(names)
    for name, entry in explained.items():
        assert set(entry) == {"verdict", "why"}, name
        assert entry["verdict"] in VERDICTS and entry["verdict"] not in ("wrong", "hang"), name
        assert entry["why"], name


def test_a_script_imports_nothing_of_the_runner() -> None:
    for path in CASES.glob("*.py"):
        assert "tests." not in path.read_text(), path.name


@pytest.mark.parametrize(
    ("body", "verdict", "note"),
    [
        (SAVE + "torch.save({'x': torch.ones(2)}, sys.argv[1])", "pass", ""),
        (SAVE + "torch.save({'x': torch.ones(2) + 0.1 * on_device}, sys.argv[1])", "wrong", "not close"),
        (SAVE + "torch.save({'x': 3 if on_device else 2}, sys.argv[1])", "wrong", ".x: 3, not 2"),
        (SAVE + "torch.save({'x': 1}, sys.argv[1])\nassert not on_device, 'on the device'", "error", "AssertionError: on the device"),
        (SAVE + "on_device or torch.save({'x': 1}, sys.argv[1])", "error", "saved no results"),
        ("raise OSError('no such case')", "invalid", "on the CPU: OSError: no such case"),
        ("# cpu: no\nimport time\ntime.sleep(60)", "hang", ""),
        ("# cpu: no\nimport os\nos.abort()", "error", "Fatal Python error: Aborted"),
        ("# cpu: no\n# requires: no_such_library_anywhere\n", "not installed", "no_such_library_anywhere"),
    ],
)
def test_the_verdict(body: str, verdict: str, note: str, tmp_path: Path) -> None:
    script = tmp_path / "x01_planted.py"
    script.write_text(f'"""Planted."""\n\n{body}\n')
    limit_s = 3.0 if verdict == "hang" else 120.0
    outcome = run(read(script), plain_environment(WHERE="device"), plain_environment(), tmp_path / "references", limit_s)
    assert outcome.verdict == verdict, outcome
    assert note in outcome.note


def test_a_case_that_runs_again_replaces_its_line_of_the_page(tmp_path: Path) -> None:
    def outcome(name: str, verdict: str) -> Outcome:
        script = tmp_path / f"{name}.py"
        script.write_text('"""Planted: a | b"""\n')
        return Outcome(read(script), verdict)

    page = document([outcome("a01_one", "pass"), outcome("b02_two", "error")], {"b02": {"verdict": "error", "why": "Known"}})
    assert "| A trainers | 1 | " in page and "| b02_two | Planted: a \\| b | error | 0 |  | Known |" in page
    again = document([outcome("b02_two", "pass")], {}, page)
    assert "| b02_two | Planted: a \\| b | pass | 0 |  |  |" in again and "Known" not in again
    assert next(line for line in again.splitlines() if line.startswith("| all |")).startswith("| all | 2 |")
    assert document([], {}, again) == again


def test_an_unknown_header_is_an_error(tmp_path: Path) -> None:
    script = tmp_path / "x02_planted.py"
    script.write_text('"""Planted."""\n\n# tolerence: 1e-3\n')
    with pytest.raises(ValueError, match="unknown header"):
        read(script)
