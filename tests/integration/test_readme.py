"""README, followed to the letter: its files are written, its commands run in order, and what they print is compared.

A block ``console`` holds commands (``$ ``) and what they print, where ``...`` stands for anything. A block of Python with a title is a
file. ``make readme`` runs the same in a bare environment with a fresh clone; the ordinary run leaves out what installs and takes this
environment.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.stack import ROOT, plain_environment

README: Final = (ROOT / "README.md").read_text()
BLOCK: Final = re.compile(r'^```(console|python title="([\w.]+)")\n(.*?)^```$', re.MULTILINE | re.DOTALL)
INSTALLS: Final = ("git clone ", "python3 -m venv ", ". wooly-env/", "pip install ")
STACK: Final = "wooly up"
TIMEOUT_S: Final = 900


def steps() -> Iterator[tuple[str, str]]:
    """What README says in its order: ``(file name, text)``, or ``("$ command", what it prints)``."""
    for kind, title, text in BLOCK.findall(README):
        if kind != "console":
            yield title, text
            continue
        for command in re.split(r"^(?=\$ )", text, flags=re.MULTILINE)[1:]:
            line, _, printed = command.partition("\n")
            yield line, printed


def matches(printed: str, wanted: str) -> bool:
    """Whether ``printed`` is ``wanted``, where ``...`` stands for any text and blanks are one. No wish: anything."""
    pieces = [re.escape(" ".join(piece.split())) for piece in wanted.split("...")]
    return not wanted or re.fullmatch(r"\s*.*\s*".join(pieces), " ".join(printed.split())) is not None


class Terminal:
    """One shell after the other in one folder; exports go on. ``bare``: with nothing of this environment."""

    def __init__(self, folder: Path, *, bare: bool) -> None:
        self.folder = folder
        self._exports: list[str] = [f"export REPOSITORY={ROOT}"]
        path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        self._environment = plain_environment(HOME=str(folder), PYTHONUNBUFFERED="1")
        self._environment.pop("PYTHONPATH", None)
        scripts = Path(sys.executable).parent
        self._environment["PATH"] = f"{Path(sys.base_prefix) / 'bin'}:{path}" if bare else f"{scripts}:{path}"
        self._stack: subprocess.Popen[str] | None = None

    def run(self, command: str) -> str:
        """What ``command`` prints, both streams. Raises AssertionError when it fails."""
        if command.startswith(". "):
            self._exports.append(command)
        done = subprocess.run(
            ["bash", "-c", "\n".join([*self._exports, command])], cwd=self.folder, env=self._environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"$ {command}\n{done.stdout}"
        return done.stdout

    def start_stack(self, command: str) -> str:
        """``wooly up`` in a terminal of its own; what it prints until it is ready. Its exports are pasted into this one."""
        words = ["bash", "-c", "\n".join([*self._exports, f"exec {command}"])]
        log = (self.folder / "up.log").open("w")
        self._stack = subprocess.Popen(words, cwd=self.folder, env=self._environment, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self._stack.stdout is not None
        printed = []
        for line in self._stack.stdout:
            printed.append(line)
            if line.startswith("# controller:"):
                break
        self._exports += [line for line in printed if line.startswith("export ")]
        return "".join(printed)

    def close(self) -> None:
        if self._stack is not None:
            self._stack.send_signal(signal.SIGINT)
            assert self._stack.wait(60) == 0
            assert self._stack.stdout is not None
            self._stack.stdout.close()


def follow(folder: Path, *, bare: bool) -> int:
    """Follow README; how many commands were run."""
    terminal, ran = Terminal(folder, bare=bare), 0
    try:
        for name, text in steps():
            if not name.startswith("$ "):
                (folder / name).write_text(text)
                continue
            command = name[2:]
            if not bare and command.startswith(INSTALLS):
                continue
            printed = terminal.start_stack(command) if command == STACK else terminal.run(command)
            assert matches(printed, text), f"$ {command}\n{printed}\n--- README says\n{text}"
            ran += 1
    finally:
        terminal.close()
    return ran


def test_the_comparison_sees_a_difference() -> None:
    assert matches("total  3.5 core\n", "total ... core\n") and matches("a\nb\nc\n", "a\n...\nc\n") and matches("x", "")
    assert not matches("total  3.5 cores\n", "total ... core\n") and not matches("b\n", "a\n...\n")


@pytest.mark.slow
def test_readme_in_this_environment(tmp_path: Path) -> None:
    assert follow(tmp_path, bare=False) >= 9


@pytest.mark.soak
@pytest.mark.timeout(TIMEOUT_S * 3)
def test_readme_in_a_bare_environment(tmp_path: Path) -> None:
    assert not os.environ.get("VIRTUAL_ENV"), "run by make readme, outside of any environment"
    assert follow(tmp_path, bare=True) >= 15
