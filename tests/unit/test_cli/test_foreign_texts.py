"""Texts that another party chose do not command the terminal of a person who lists them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

import wooly.cli
from bus_schemas.texts import TITLE_PATTERN, printable, title_of
from tests.support.command import on_a_terminal
from tests.support.stack import plain_environment
from wooly.errors import from_fault

EVIL = "a[/]b[link=https://evil.example]c[/link]\x1b]0;title\x07\x1b[2J\x9b31m\u202egpj.exe\u2066\r\nx"
_OURS = re.compile(r"\x1b\[[0-9;]*m")
"""Colours of our own tables."""


class Evil(BaseHTTPRequestHandler):
    """A controller whose tenants gave names like ``EVIL``."""

    def do_GET(self) -> None:
        device = {"index": 0, "name": EVIL, "vram_bytes": 1, "tasks": []}
        task = {"id": EVIL, "title": EVIL, "tenant": EVIL, "priority": 0, "state": EVIL, "node_name": EVIL, "node": EVIL, "gpus": [EVIL],
                "required_vram_mb": 1, "updated_at": EVIL, "reason": "café"}  # fmt: skip
        body = {
            "tasks": {"items": [task], "total": 2},
            "nodes": {"items": [{"id": EVIL, "name": EVIL, "state": EVIL, "devices": [device]}]},
            "telemetry": {"items": []},
            "tasks/y/log": {"text": "café\n", "next": 1, "ended": True, "run": {"task": "y", "reason": ""}},
            "groups": {"items": [{"id": EVIL, "title": EVIL, "nodes": [EVIL], "tasks": 0}]},
        }.get(self.path.removeprefix("/api/v1/").partition("?")[0])
        self.send_response(200 if body else 409)
        self.end_headers()
        self.wfile.write(json.dumps(body or {"detail": EVIL, "title": EVIL}).encode())

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def controller() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Evil) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(("command", "code"), [("tasks", 0), ("nodes", 0), ("groups", 0), ("logs x", 2)])
def test_a_listing_sends_no_command_to_the_terminal(tmp_path: Path, controller: str, command: str, code: int) -> None:
    environment = plain_environment(HOME=str(tmp_path), TERM="xterm-256color", COLUMNS="4000", PYTHONPATH=":".join(sys.path))
    found, said = on_a_terminal([sys.executable, "-m", "wooly.cli", *command.split(), "--controller", controller], environment)
    assert found == code, said
    lines = _OURS.sub("", said).replace("\r\n", "\n")
    assert not [char for char in lines if char != "\n" and not char.isprintable()], ascii(lines)
    assert "a[/]b[link=https://evil.example]c[/link]" in re.sub(r"\s*\n\s*", "", lines), ascii(lines)


@pytest.mark.parametrize("command", ["tasks", "logs y"])
def test_a_letter_that_the_encoding_of_the_output_lacks_is_escaped(tmp_path: Path, controller: str, command: str) -> None:
    environment = plain_environment(HOME=str(tmp_path), PYTHONIOENCODING="ascii", PYTHONPATH=":".join(sys.path))
    whole = [sys.executable, "-m", "wooly.cli", *command.split(), "--controller", controller]
    found = subprocess.run(whole, env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 0 and r"caf\xe9" in found.stdout, found.stderr


def test_a_log_may_be_asked_for_without_standard_output(tmp_path: Path, controller: str) -> None:
    environment = plain_environment(HOME=str(tmp_path), PYTHONPATH=":".join(sys.path))
    whole = ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-m", "wooly.cli", "logs", "y", "--controller", controller]
    found = subprocess.run(whole, env=environment, stderr=subprocess.PIPE, text=True, check=False)
    assert (found.returncode, found.stderr) == (0, "")


def test_a_full_disk_of_the_output_is_one_line(tmp_path: Path, controller: str) -> None:
    environment = plain_environment(HOME=str(tmp_path), PYTHONPATH=":".join(sys.path))
    whole = [sys.executable, "-m", "wooly.cli", "tasks", "--controller", controller]
    with open("/dev/full", "w") as full:
        found = subprocess.run(whole, env=environment, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (found.returncode, found.stderr) == (2, "wooly: the output cannot be written: No space left on device\n")


def test_commands_print_through_one_door() -> None:
    """``group.echo`` and ``output`` make foreign texts printable."""
    for file in Path(wooly.cli.__path__[0]).glob("*.py"):
        found = re.findall(r"click\.s?echo|(?<![.\w])print\(|\.add_row\((?!\*\(Text\()", file.read_text())
        assert found in ([], ["click.echo"] if file.name == "group.py" else []), file.name


def test_a_faults_words_are_printable() -> None:
    assert str(from_fault("DeviceTaken", EVIL, [EVIL])).isascii() and "\x1b" not in str(from_fault("x" + EVIL, EVIL, [EVIL]))


def test_titles() -> None:
    assert title_of(EVIL) == "a[/]b[link=https://evil.example]c[/link]]0;title[2J31mgpj.exex"
    assert title_of("x" * 201) == "x" * 200 and title_of("Größe 日本 🙂") == "Größe 日本 🙂"
    assert not re.match(TITLE_PATTERN, EVIL) and re.match(TITLE_PATTERN, "Größe 日本 🙂 [/]")
    assert printable("Größe 日本 🙂\n\tx") == "Größe 日本 🙂\n\tx"
