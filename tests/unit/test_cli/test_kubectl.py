"""``kubectl wooly``: what it asks kubectl, and what it says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from wooly.cli.kubectl import main


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A kubectl that answers with a file, and with an error when there is none; ``asked`` beside it holds its arguments."""
    script = tmp_path / "kubectl"
    script.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\ncat {tmp_path}/answer\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path / "answer"


def said(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[int, str]:
    monkeypatch.setattr("sys.argv", ["kubectl-wooly", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    captured = capsys.readouterr()
    return int(ended.value.code or 0), captured.out + captured.err


def test_why_a_pod_waits(kubectl: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    status: dict[str, Any] = {"phase": "Waiting", "reason": "it waits for a device: 2 devices lack memory", "remedy": "the end of task x"}
    kubectl.write_text(json.dumps({"spec": {"task": "k1-2"}, "status": status}))
    code, text = said(capsys, monkeypatch, "why", "train", "-n", "research")
    assert (code, text.strip()) == (0, f"pod train is waiting: {status['reason']}; what helps: the end of task x")
    assert (kubectl.parent / "asked").read_text().split() == ["get", "woolytask", "train", "-o", "json", "--namespace", "research"]


def test_why_of_a_placed_pod_is_that_of_its_task(
    kubectl: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kubectl.write_text(json.dumps({"spec": {"task": "k1-2"}, "status": {"phase": "Running"}}))
    monkeypatch.setenv("CONTROLLER_URL", "http://127.0.0.1:1")
    code, text = said(capsys, monkeypatch, "why", "train")
    assert code == 2 and "http://127.0.0.1:1" in text, "`wooly why` asks the controller"


def test_a_pod_that_runs_without_a_reservation_is_told_what_to_do(
    kubectl: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    status = {"phase": "Running", "reason": "it has started without a reservation", "remedy": "delete the pod and create it again"}
    kubectl.write_text(json.dumps({"spec": {"task": "k1-2"}, "status": status}))
    code, text = said(capsys, monkeypatch, "why", "train")
    assert (code, text.strip()) == (0, f"pod train is running: {status['reason']}; what helps: {status['remedy']}")


def test_an_unknown_pod_is_an_error_in_one_line(kubectl: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    code, text = said(capsys, monkeypatch, "why", "train")
    assert code == 2 and "gpu-runtime: woolyai" in text and text.count("\n") == 1


@pytest.mark.parametrize("command", ["top", "credits"])
def test_options_are_those_of_the_command(command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    code, text = said(capsys, monkeypatch, command, "--help")
    assert code == 0 and f"Usage: wooly {command}" in text
