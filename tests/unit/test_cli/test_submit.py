"""`wooly submit`: what is refused before anything is sent, and what a terminal is shown."""

from __future__ import annotations

import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus_schemas.texts import printable
from tests.support.command import Wooly, command_in


@given(st.text())
def test_no_control_character_reaches_the_terminal(text: str) -> None:
    shown = printable(text)
    assert all(char in "\n\t" or char >= " " for char in shown) and not any("\x7f" <= char <= "\x9f" for char in shown)


def test_text_is_shown_as_it_is() -> None:
    assert printable("ü 日本 \u00a0€\tx\n") == "ü 日本 \u00a0€\tx\n"
    assert printable("\x1b[31mred\x07 10 %\r20 %\r\n") == "\\x1b[31mred\\x07 10 %\n20 %\n"
    assert printable(string.printable.strip()) == string.printable.strip()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("missing.py",), "'missing.py' cannot be read"),
        (("long.py",), "'long.py' has more than 256 KiB"),
        (("binary.py",), "'binary.py' is not UTF-8 text"),
        (("--env", "NAME", "good.py"), "--env 'NAME' has no value; write NAME=VALUE"),
        (("good.py",), "does not answer"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(tmp_path: Path, arguments: tuple[str, ...], says: str) -> None:
    (tmp_path / "long.py").write_text("#" * ((256 << 10) + 1))
    (tmp_path / "binary.py").write_bytes(b"\xff")
    (tmp_path / "good.py").write_text("pass")
    done = command_in(tmp_path)("submit", "--controller", "http://127.0.0.1:9", *arguments)
    assert done.returncode == 2 and says in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr


def test_a_controller_that_does_not_answer_is_a_reason_to_try_again(wooly: Wooly) -> None:
    away = {"CONTROLLER_URL": "http://127.0.0.1:1"}
    done = wooly("reserve", "--id", "job", "--required-vram", "64", **away)
    assert (done.returncode, done.stdout) == (75, "")
    assert done.stderr.startswith("wooly: waiting for the controller: the controller at http://127.0.0.1:1 does not answer")
    done = wooly("release", "job", **away)
    assert (done.returncode, done.stdout) == (75, "") and "the controller at http://127.0.0.1:1 does not answer" in done.stderr
