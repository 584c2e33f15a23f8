"""The sandbox, from inside: everything that a process tries after it entered, and the same without one, as root and as another user."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.stack import ROOT
from wooly_server.sandbox import offered

ATTEMPTS = """
import ctypes, json, os, socket, subprocess, sys
from pathlib import Path
import wooly_server.sandbox
from wooly_server.sandbox import Sandbox, enter, for_programs

folder, secret, user = sys.argv[1], sys.argv[2], int(sys.argv[3])
libc = ctypes.CDLL(None, use_errno=True)

def call(number, *arguments):
    if libc.syscall(number, *arguments) < 0 and ctypes.get_errno() == 1:
        raise PermissionError(1, "refused")

def connect(address):
    with socket.socket() as s:
        s.connect(address)

def bind(port):
    with socket.socket() as s:
        s.bind(("127.0.0.1", port))

def unix(path):
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(path)

ATTEMPTS = {
    "read a key": lambda: Path(secret).read_text(),
    "read the passwords of the machine": lambda: Path("/etc/shadow").read_text(),
    "list a home": lambda: os.listdir(Path(secret).parent),
    "write a file elsewhere": lambda: Path(secret + ".new").write_text("x"),
    "delete a file elsewhere": lambda: os.unlink(secret + ".spare"),
    "read a parent's environment": lambda: Path(f"/proc/{os.getppid()}/environ").read_bytes(),
    "signal a parent": lambda: os.kill(os.getppid(), 0),
    "connect": lambda: connect(("127.0.0.1", 1)),
    "connect to a socket of the machine": lambda: unix(secret + ".socket"),
    "bind another port": lambda: bind(0),
    "look into a parent": lambda: call({"x86_64": 101, "aarch64": 117}[os.uname().machine], 2, os.getppid(), 0, 0),
    "leave a namespace": lambda: call({"x86_64": 272, "aarch64": 97}[os.uname().machine], 0),
    "set up an io_uring": lambda: call(425, 0, 0),
    "write its folder": lambda: Path(folder, "own").write_text("x"),
    "rename in its folder": lambda: os.rename(Path(folder, "there"), Path(folder, "moved")),
    "start a program": lambda: subprocess.run(["/bin/true"], check=True),
}
"""

RUN = """
def outcome(attempt):
    try:
        attempt()
    except PermissionError as error:
        return str(error)
    except ConnectionRefusedError:  # nothing listens there: it was let through
        pass
    return ""

if user != os.getuid():
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
layers = ENTER
print(json.dumps([layers, {name: outcome(attempt) for name, attempt in ATTEMPTS.items()}]))
"""

ENTERED = {
    "nothing": "()",
    "an executor": "enter(for_programs(write=(folder,), listen=1, sockets=True, execute=True))",
    "a compiler": "enter(Sandbox())",
}
NEEDED = {"write its folder", "rename in its folder", "start a program"}
NO_ROOT = {"read the passwords of the machine", "read a parent's environment", "signal a parent"}
"""What another user than root may not do anyway."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that any user may use, unlike those of pytest."""
    with tempfile.TemporaryDirectory(prefix="sandbox-", dir="/var/tmp") as name:
        for part in ("own", "home"):
            Path(name, part).mkdir()
        yield Path(name)


def refused(folder: Path, entered: str, user: int) -> set[str]:
    """The attempts that are not permitted; the layers that hold are all there."""
    for file in ("home/key", "home/key.spare", "home/key.socket", "own/there"):
        (folder / file).write_text("secret")
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o777)
    script = ATTEMPTS + RUN.replace("ENTER", ENTERED[entered])
    command = [sys.executable, "-P", "-c", script, str(folder / "own"), str(folder / "home" / "key"), str(user)]
    done = subprocess.run(command, capture_output=True, text=True, env={"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}, timeout=60)
    assert done.returncode == 0, done.stderr
    layers, outcomes = json.loads(done.stdout.splitlines()[-1])
    assert layers == ([] if entered == "nothing" else ["no new privileges", *offered()])
    return {name for name, outcome in outcomes.items() if outcome}


@pytest.mark.skipif(any(layer.startswith("no ") for layer in offered()), reason=f"this kernel lacks a layer: {', '.join(offered())}")
@pytest.mark.parametrize("user", [os.getuid(), 65_534], ids=["this user", "another user"])
def test_what_is_denied_is_denied_and_what_is_needed_is_not(folder: Path, user: int) -> None:
    if user != os.getuid() != 0:
        pytest.skip("only root can become another user")
    free = refused(folder, "nothing", user)
    assert free <= (NO_ROOT if user else set()), "without a sandbox every attempt succeeds"
    everything = refused(folder, "a compiler", user)
    assert everything >= NEEDED and refused(folder, "an executor", user) == everything - NEEDED
    assert len(everything - NEEDED) == 13
