"""The sandbox, from inside: everything that a process tries after it entered, and the same without one, as root and as another user."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.sandbox import lacking, needs_every_layer
from tests.support.stack import ROOT
from wooly_server.cgroup import offered_limits
from wooly_server.sandbox import EXECUTOR_UID

ATTEMPTS = """
import ctypes, errno, json, os, socket, subprocess, sys
from pathlib import Path
import wooly_server.sandbox
from wooly_server.sandbox import Sandbox, enter, for_programs

folder, secret, user, port = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
libc = ctypes.CDLL(None, use_errno=True)

def call(number, *arguments):
    if libc.syscall(number, *arguments) < 0 and ctypes.get_errno() == 1:
        raise PermissionError(1, "refused")

def connect(address):
    with socket.socket() as s:
        s.connect(address)

def bind():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))

def send(address):
    with socket.socket(type=socket.SOCK_DGRAM) as s:
        s.sendto(b"out", address)

def unix(path):
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(path)

def name_a_thread():  # as pthread_setname_np names one that is not the caller
    with open(f"/proc/self/task/{os.getpid()}/comm", "w") as file:
        file.write("cuda")

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
    "send a datagram": lambda: send(("127.0.0.1", port)),
    "bind a port": bind,
    "look into a parent": lambda: call({"x86_64": 101, "aarch64": 117}[os.uname().machine], 2, os.getppid(), 0, 0),
    "leave a namespace": lambda: call({"x86_64": 272, "aarch64": 97}[os.uname().machine], 0),
    "set up an io_uring": lambda: call(425, 0, 0),
    "write its folder": lambda: Path(folder, "own").write_text("x"),
    "rename in its folder": lambda: os.rename(Path(folder, "there"), Path(folder, "moved")),
    "start a program": lambda: subprocess.run(["/bin/true"], check=True),
    "name a thread": name_a_thread,
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
    except OSError as error:  # there is no network
        if error.errno not in (errno.ENETUNREACH, errno.EADDRNOTAVAIL):
            raise
        return str(error)
    return ""

if user != os.getuid():
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
    libc.prctl(4, 1, 0, 0, 0)  # dumpable, as a process that such a user has started
layers = ENTER
print(json.dumps([layers, {name: outcome(attempt) for name, attempt in ATTEMPTS.items()}]))
"""

ENTERED = {
    "nothing": "()",
    "an executor": "enter(for_programs(write=(folder,), execute=True))",
    "an executor of a GPU": "enter(for_programs(write=(folder,), devices=True, sockets=True, connect=True, execute=True))",
    "a compiler": "enter(Sandbox())",
}
NEEDED = {"write its folder", "rename in its folder", "start a program"}
OF_DRIVERS = {"connect to a socket of the machine", "list a home", "name a thread"}
"""What drivers of GPUs do: they look for devices from the root folder on, and have services with sockets. CUDA does not start where it
cannot name its threads."""
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
    with socket.socket(type=socket.SOCK_DGRAM) as listening:
        listening.bind(("127.0.0.1", 0))
        layers, outcomes = inside(script, folder / "own", folder / "home" / "key", user, listening.getsockname()[1])
        listening.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            assert (listening.recv(3) == b"out") == (not outcomes["send a datagram"])
    assert not lacking(tuple(layers)), layers
    return {name for name, outcome in outcomes.items() if outcome}


def inside(script: str, *arguments: object) -> Any:
    """What ``script`` prints last, as JSON."""
    command = [sys.executable, "-P", "-c", script, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env={"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@needs_every_layer
@pytest.mark.parametrize("user", [os.getuid(), 65_534], ids=["this user", "another user"])
def test_what_is_denied_is_denied_and_what_is_needed_is_not(folder: Path, user: int) -> None:
    if user != os.getuid() != 0:
        pytest.skip("only root can become another user")
    free = refused(folder, "nothing", user)
    assert free <= (NO_ROOT if user else set()), "without a sandbox every attempt succeeds"
    everything = refused(folder, "a compiler", user)
    assert everything >= NEEDED and refused(folder, "an executor", user) == everything - NEEDED
    assert refused(folder, "an executor of a GPU", user) == everything - NEEDED - OF_DRIVERS
    assert len(everything - NEEDED) == 15


OWN_USER = """
import ctypes, dataclasses, json, os, subprocess, sys
from pathlib import Path
from wooly_server.isolation import User
from wooly_server.sandbox import enter, for_programs

def outcome(attempt):
    try:
        attempt()
    except OSError:
        return False
    return True

own, programs, loop = sys.argv[1:4]
os.umask(0o077)
asked = for_programs(write=(own,), devices=True, execute=True, user=USER)
layers = enter(dataclasses.replace(asked, read=(*asked.read, programs)))
Path(own, "new").write_text("x")
python = subprocess.run([sys.executable, "-P", "-m", "jit.compiling.worker", str(1 << 33)], stdin=subprocess.DEVNULL)
print(json.dumps([layers, {
    "user": [*os.getresuid(), *os.getresgid(), *os.getgroups()],
    "capabilities": [line.split()[1] for line in open("/proc/self/status") if line.startswith(("CapEff", "CapPrm"))],
    "reads root's file among programs": outcome(lambda: Path(programs, "key").read_text()),
    "opens root's device": outcome(lambda: os.close(os.open("/dev/kmsg", os.O_WRONLY))),
    "becomes root": outcome(lambda: os.setuid(0)),
    "its folder": [Path(own, "old").read_text(), Path(own, "new").read_text()],
    "starts the compile process": python.returncode,
}]))
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_an_executor_of_root_has_a_user_of_its_own(folder: Path) -> None:
    """It has its own folder, though the way there is closed to it, and what root alone may use it may not, though the sandbox lets it."""
    own, programs = folder / "closed" / "own", folder / "programs"
    for made in (own, programs):
        made.mkdir(parents=True)
    (own / "old").write_text("kept")
    (programs / "key").write_text("secret")
    (programs / "key").chmod(0o600)
    for link in ("symbolic", "hard"):
        (programs / link).write_text("root's")
    (own / "symbolic").symlink_to(programs / "symbolic")
    (own / "hard").hardlink_to(programs / "hard")
    for made in (own, own.parent):
        made.chmod(0o700)
    _, free = inside(OWN_USER.replace("USER", "None"), own, programs, "")
    assert free["user"] == [0] * 6 + free["user"][6:] and free["reads root's file among programs"] and free["opens root's device"]
    layers, held = inside(OWN_USER.replace("USER", f"User({EXECUTOR_UID}, {EXECUTOR_UID}, (44,))"), own, programs, "")
    assert f"user {EXECUTOR_UID}" in layers, layers
    assert held == {
        "user": [EXECUTOR_UID] * 6 + [44],
        "capabilities": ["0" * 16] * 2,
        "reads root's file among programs": False,
        "opens root's device": False,
        "becomes root": False,
        "its folder": ["kept", "x"],
        "starts the compile process": 0,
    }
    assert own.stat().st_uid == EXECUTOR_UID and own.parent.stat().st_uid == 0
    assert [(programs / link).stat().st_uid for link in ("symbolic", "hard")] == [0, 0], "links lead to nothing that becomes its own"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_folder_that_others_may_use_is_not_given_away_and_the_reason_is_named(folder: Path) -> None:
    own = folder / "own"
    own.chmod(0o755)
    (own / "old").write_text("kept")
    layers, held = inside(OWN_USER.replace("USER", f"User({EXECUTOR_UID}, {EXECUTOR_UID})"), own, folder, "")
    assert f"no user of its own: user {EXECUTOR_UID} may not use {own}" in layers and held["user"][0] == 0
    assert own.stat().st_uid == 0


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_folder_stays_its_users_when_another_executor_cannot_become_that_user(folder: Path) -> None:
    """Executors of one node, and of several, share the folder of their compiler's results. Root can use it as it is."""
    own, closed = folder / "own", folder / "closed"
    own.chmod(0o700)
    closed.mkdir(mode=0o755)  # may not be given away, so that executor stays root
    script = OWN_USER.replace("USER", f"User({EXECUTOR_UID}, {EXECUTOR_UID})")
    (own / "old").write_text("kept")
    layers, _ = inside(script, own, closed, "")
    assert f"user {EXECUTOR_UID}" in layers
    layers, held = inside(script.replace("write=(own,)", "write=(own, programs)"), own, closed, "")
    assert f"no user of its own: user {EXECUTOR_UID} may not use {closed}" in layers and held["its folder"] == ["kept", "x"]
    assert {path.stat().st_uid for path in (own, own / "old")} == {EXECUTOR_UID}


FORKS = """reading, writing = os.pipe()
try:
    while len(children) < 64:
        child = os.fork()
        if child == 0:
            os.close(writing)
            os.read(reading, 1)
            os._exit(0)
        children.append(child)
except OSError as error:
    reasons.append(error.errno)
os.close(writing)
for child in children:
    os.waitpid(child, 0)
"""
"""Forks until that is refused, with the reason."""

LIMITED = """
import json, os, resource, sys
from pathlib import Path
from wooly_server.isolation import User
from wooly_server.sandbox import enter, for_programs

enter(for_programs(write=(sys.argv[1],), user=USER, files=32, processes=16))
files, children, reasons = [], [], []
try:
    while len(files) < 64:
        files.append(os.open("/dev/null", os.O_RDONLY))
except OSError as error:
    reasons.append(error.errno)
for file in files:
    os.close(file)
FORKS
print(json.dumps([reasons, resource.getrlimit(resource.RLIMIT_CORE)]))
"""


def test_files_processes_and_core_files_are_limited(folder: Path) -> None:
    user = f"User({EXECUTOR_UID + 1}, {EXECUTOR_UID + 1})" if os.getuid() == 0 else "None"  # no other process has it
    (folder / "own").chmod(0o700)
    folder.chmod(0o711)
    reasons, core = inside(LIMITED.replace("USER", user).replace("FORKS", FORKS), folder / "own")
    assert reasons == [errno.EMFILE, *([errno.EAGAIN] if os.getuid() == 0 else [])] and core == [0, 0]


GROUPED = """
import json, os, sys, time
from pathlib import Path
from wooly_server.cgroup import Limits, enter_cgroup, group_of, ran_out_of_memory

layers = enter_cgroup(Limits(64 << 20, 16, 50))
group, reasons, children = group_of(os.getpid()), [], []
FORKS
assert not ran_out_of_memory(group)
child = os.fork()
if child == 0:
    Path("/proc/self/oom_score_adj").write_text("1000")
    b"x" * (256 << 20)
    os._exit(0)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
deadline = time.monotonic() + 60
while "nr_throttled 0" in Path(group, "cpu.stat").read_text() and time.monotonic() < deadline:
    pass
throttled = "nr_throttled 0" not in Path(group, "cpu.stat").read_text()
print(json.dumps([layers, reasons, status, ran_out_of_memory(group), Path(group, "cpu.max").read_text(), throttled]))
"""


_NO_GROUP = [layer for layer in offered_limits() if layer.startswith("no ")]


@pytest.mark.skipif(bool(_NO_GROUP), reason=", ".join(_NO_GROUP))
def test_a_group_limits_memory_processes_and_time() -> None:
    layers, reasons, status, counted, cpu, throttled = inside(GROUPED.replace("FORKS", FORKS))
    assert not [layer for layer in layers if layer.startswith("no ")], layers
    assert reasons == [errno.EAGAIN] and (status, counted) == (-signal.SIGKILL, True) and cpu == "50000 100000\n"
    assert throttled, "it computed without a pause, and was made to pause"
