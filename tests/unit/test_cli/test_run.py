"""``wooly run`` runs a script as ``python`` would: arguments, path, ``__main__``, exit codes, tracebacks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.command import Wooly

BUS = "nats://127.0.0.1:1"  # never asked: these scripts do not use the device


def script(folder: Path, text: str, name: str = "script.py") -> str:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return str(path)


def test_a_script_sees_what_python_would_show_it(wooly: Wooly, tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "helper.py").write_text("VALUE = 42\n")
    path = script(
        tmp_path,
        "import json, sys, helper\n"
        "import __main__\n"
        "print(json.dumps([sys.argv, sys.path[0], __name__, __file__, helper.VALUE, __main__.__file__, __main__.marker]))\n".replace(
            "import __main__\n", "import __main__\nmarker = 'mine'\n"
        ),
        "app/script.py",
    )
    found = wooly("run", "--prio", "1", path, "--prio", "x", "-m", "--json", WOOLY_NATS_URL=BUS)
    assert found.stderr == "" and found.returncode == 0
    assert json.loads(found.stdout) == [[path, "--prio", "x", "-m", "--json"], str(tmp_path / "app"), "__main__", path, 42, path, "mine"]


def test_a_module(wooly: Wooly, tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__main__.py").write_text("import sys\nprint(__name__, sys.argv[1:], sys.path[0])\n")
    found = wooly("run", "-m", "package", "a", WOOLY_NATS_URL=BUS)
    assert found.stdout == f"__main__ ['a'] {tmp_path}\n", found.stderr


@pytest.mark.parametrize(
    ("text", "code", "stdout"),
    [
        ("print('done')", 0, "done\n"),
        ("import sys; sys.exit(7)", 7, ""),
        ("raise SystemExit", 0, ""),
        ("import sys; sys.exit('a message')", 1, ""),
        ("1 / 0", 1, ""),
        ("import os; os._exit(9)", 9, ""),
        ("import atexit; atexit.register(print, 'bye'); print('first')", 0, "first\nbye\n"),
        ("raise KeyboardInterrupt", 130, ""),
    ],
)
def test_exit_codes(wooly: Wooly, tmp_path: Path, text: str, code: int, stdout: str) -> None:
    found = wooly("run", script(tmp_path, text), WOOLY_NATS_URL=BUS)
    assert (found.returncode, found.stdout) == (code, stdout), found.stderr


def test_the_script_has_no_future_of_ours(wooly: Wooly, tmp_path: Path) -> None:
    path = script(tmp_path, "def f(x: int) -> float: ...\nprint(f.__annotations__)\n")
    assert wooly("run", path, WOOLY_NATS_URL=BUS).stdout == "{'x': <class 'int'>, 'return': <class 'float'>}\n"


def test_a_traceback_shows_the_script_only(wooly: Wooly, tmp_path: Path) -> None:
    path = script(tmp_path, "def f():\n    raise ValueError('no')\n\nf()\n")
    found = wooly("run", path, WOOLY_NATS_URL=BUS)
    lines = found.stderr.splitlines()
    assert lines[0] == "Traceback (most recent call last):" and lines[-1] == "ValueError: no"
    assert [line for line in lines if "File" in line] == [f'  File "{path}", line 4, in <module>', f'  File "{path}", line 2, in f']


def test_a_syntax_error_is_pythons_own(wooly: Wooly, tmp_path: Path) -> None:
    found = wooly("run", script(tmp_path, "def f(:\n"), WOOLY_NATS_URL=BUS)
    assert found.returncode == 1 and "SyntaxError: invalid syntax" in found.stderr and "wooly" not in found.stderr


def test_flags_reach_the_script_and_its_children(wooly: Wooly, tmp_path: Path) -> None:
    path = script(
        tmp_path,
        "import subprocess, sys\n"
        "subprocess.run([sys.executable, '-c', 'import os; print(os.environ[\"PRIO\"], os.environ[\"WOOLY_NATS_URL\"])'])\n",
    )
    assert wooly("run", "--prio", "3", "--nats-url", BUS, path).stdout == f"3 {BUS}\n"


def test_the_device_is_on_and_a_missing_bus_is_one_line(wooly: Wooly, tmp_path: Path) -> None:
    path = script(tmp_path, "import torch\nprint(torch.cuda.is_available())\ntorch.zeros(1, device='cuda')\n")
    found = wooly("run", "--nats-url", BUS, path, WOOLY_RECOVERY_WAIT_S="0")
    assert found.stdout == "True\n" and found.returncode == 2
    assert found.stderr.startswith(f"wooly: no NATS server answers at {BUS}") and found.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "environ", "says"),
    [
        (("script.py",), {}, "no bus is named: set WOOLY_NATS_URL (or --nats-url), or add --embedded to run on a private stack"),
        (("missing.py",), {"WOOLY_NATS_URL": BUS}, "'missing.py' is not a file"),
        (("--prio", "9", "script.py"), {"WOOLY_NATS_URL": BUS}, "PRIO='9' (from the flag --prio) is not allowed; use an integer from 0"),
        (("--queue", "script.py"), {"WOOLY_NATS_URL": BUS}, "WOOLY_QUEUE='1' (from the flag --queue) needs a controller"),
    ],
)
def test_mistakes(wooly: Wooly, tmp_path: Path, arguments: tuple[str, ...], environ: dict[str, str], says: str) -> None:
    script(tmp_path, "print('ran')")
    found = wooly("run", *arguments, **environ)
    assert found.returncode == 2 and found.stdout == "" and found.stderr.startswith("wooly: ") and says in found.stderr
    assert found.stderr.count("\n") == 1
