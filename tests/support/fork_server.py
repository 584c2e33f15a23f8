"""Processes that are copies of one Python, which has imported already what they need: scripts, and services of the platform.

An import of torch costs 1 to 2 seconds of processor time, those of a controller one: more than most tests need for what they do. A fork
server (one for scripts, one for services, in each process of the tests) forks for every request. The copy takes the environment, folder,
arguments and files of the request and runs the script or module as ``__main__``. A script switches the device on by its own
``import torch``, as in any process: the import system hands out the module that is loaded, and calls torch's entry points.

What differs from a process of its own: the frame of this module on top of a traceback, its parent, a hash seed that all copies share, and
the modules that are there already. A test that uses a copy of a script also runs it as a process of its own. Whole stacks, compose's
services, executors, and a service that has to refuse its start are processes of their own. ``multiprocessing`` has a fork server too; its
children run a function, without the interpreter's end, and cannot take files.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib.abc
import importlib.machinery
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final, NoReturn

from tests.support.stack import ROOT, plain_environment
from wooly_server import run_module

__all__ = ["ForkedProcess", "run_script", "start_script", "start_service"]

_MESSAGE_BYTES: Final = 1 << 18
_SCRIPTS: Final = ("torch", "torch._dynamo", "wooly.activation", "wooly.session")
"""Not transformers: it looks for a device while it is imported."""
_SERVICES: Final = (
    *("services.controller.__main__", "services.billing.__main__", "services.server.__main__"),
    *("httpcore", "anyio._backends._asyncio", "litestar.plugins.pydantic", "litestar.plugins.attrs"),  # loaded by the first use otherwise
)


class ForkedProcess:
    """A copy. The interface is that of ``subprocess.Popen``, as far as the tests need it."""

    def __init__(self, server: _Server, pid: int, stdout: IO[bytes] | None = None) -> None:
        self._server = server
        self.pid = pid
        self.stdout = stdout
        """The end of a pipe that standard output goes to."""
        self.returncode: int | None = None
        """The exit code, negative for a signal; None while it runs."""

    def poll(self) -> int | None:
        return self._await_end(0)

    def wait(self, timeout: float | None = None) -> int:
        """The exit code. Raises TimeoutExpired."""
        code = self._await_end(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Ask for the end by a signal, wait for it and close the pipe; the exit code. Killed if that takes longer than 30 seconds."""
        self.send_signal(number)
        try:
            return self.wait(30)
        finally:
            self.kill()
            if self.stdout is not None:
                self.stdout.close()

    def _await_end(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            self.returncode = self._server.await_end(self.pid, timeout)
        return self.returncode


class _Server:
    """The process that forks, and what it has reported of its children."""

    def __init__(self, modules: Sequence[str]) -> None:
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = plain_environment(TORCH_DEVICE_BACKEND_AUTOLOAD="0", PYTHONPATH=str(ROOT))
        with theirs:
            command = [sys.executable, "-P", "-m", __name__, str(theirs.fileno()), *modules]
            self._process = subprocess.Popen(command, env=environment, pass_fds=[theirs.fileno()], start_new_session=True)
        self._ends: dict[int, int] = {}
        atexit.register(self._close)

    def fork(self, request: Mapping[str, Any], files: Sequence[int]) -> int:
        """The pid of a copy. ``files``: its standard input, output and error."""
        socket.send_fds(self._connection, [json.dumps(request).encode()], files)
        while True:
            report = self._receive()
            if "started" in report:
                return report["started"]

    def await_end(self, pid: int, timeout: float | None) -> int | None:
        """The exit code of a copy; None: it runs on after ``timeout`` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while pid not in self._ends:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not select.select([self._connection], [], [], left)[0]:
                return None
            self._receive()
        return self._ends.pop(pid)

    def _receive(self) -> dict[str, int]:
        data = self._connection.recv(_MESSAGE_BYTES)
        if not data:
            raise RuntimeError("the fork server ended")
        report: dict[str, int] = json.loads(data)
        if "ended" in report:
            self._ends[report["ended"]] = os.waitstatus_to_exitcode(report["status"])
        return report

    def _close(self) -> None:
        self._connection.close()
        self._process.wait()


@functools.cache
def _server(modules: tuple[str, ...]) -> _Server:
    return _Server(modules)


def start_script(script: Path, *arguments: str, env: Mapping[str, str], cwd: Path, stdout: IO[bytes], stderr: IO[bytes]) -> ForkedProcess:
    """``python SCRIPT ARGUMENT...`` in a copy that runs on."""
    request = {"script": str(script), "arguments": arguments, "environment": dict(env), "folder": str(cwd)}
    server = _server(_SCRIPTS)
    with open(os.devnull, "rb") as nothing:
        return ForkedProcess(server, server.fork(request, [nothing.fileno(), stdout.fileno(), stderr.fileno()]))


def run_script(script: Path, *arguments: str, env: Mapping[str, str], cwd: Path) -> subprocess.CompletedProcess[str]:
    """``python SCRIPT ARGUMENT...`` in a copy. Raises TimeoutExpired after four minutes."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as error:
        process = start_script(script, *arguments, env=env, cwd=cwd, stdout=output, stderr=error)
        try:
            code = process.wait(240)
        finally:
            process.kill()
        texts = []
        for file in (output, error):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
        return subprocess.CompletedProcess([str(script), *arguments], code, *texts)


def start_service(module: str, *, env: Mapping[str, str], stderr: IO[bytes] | None = None) -> ForkedProcess:
    """``python -P -m MODULE`` in a copy, with a pipe as standard output. It ends with this process."""
    reader, writer = os.pipe()
    request = {"module": module, "environment": dict(env), "folder": os.getcwd()}
    server = _server(_SERVICES)
    with open(writer, "wb") as output, open(os.devnull, "rb") as nothing:
        pid = server.fork(request, [nothing.fileno(), output.fileno(), 2 if stderr is None else stderr.fileno()])
    return ForkedProcess(server, pid, open(reader, "rb"))


class _Loaded(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Hands out torch, which is loaded, as if it were imported now."""

    def __init__(self, torch: types.ModuleType) -> None:
        self._torch = torch
        self._spec = torch.__spec__

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(name, self) if name == "torch" else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return self._torch

    def exec_module(self, module: types.ModuleType) -> None:
        module.__spec__ = self._spec
        if module._is_device_backend_autoload_enabled():
            module._import_device_backends()


def _serve(connection: socket.socket) -> dict[str, Any]:
    """Fork for every request until the connection ends. Returns in a copy only: its request."""
    awake, waker = socket.socketpair()
    waker.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(waker.fileno())
    running: set[int] = set()
    while True:
        ready = select.select([connection, awake], [], [])[0]
        if awake in ready:
            awake.recv(4096)
        for pid in list(running):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                running.discard(pid)
                connection.send(json.dumps({"ended": pid, "status": status}).encode())
        if connection not in ready:
            continue
        data, files, _, _ = socket.recv_fds(connection, _MESSAGE_BYTES, 3)
        if not data:
            _end(running)
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            for ours in (connection, awake, waker):
                ours.close()
            for number, file in enumerate(files):
                os.dup2(file, number)
                os.close(file)
            return dict(json.loads(data))
        running.add(pid)
        for file in files:
            os.close(file)
        connection.send(json.dumps({"started": pid}).encode())


def _end(running: set[int]) -> NoReturn:
    for pid in running:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    os._exit(0)


def _become(request: Mapping[str, Any]) -> Callable[[], object]:
    """Make this process the one that was asked for; what runs its script or module."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    if "module" in request:
        sys.argv = [request["module"]]
        return functools.partial(run_module, request["module"])
    script = request["script"]
    sys.argv = [script, *request["arguments"]]
    sys.path.insert(0, os.path.dirname(script))
    sys.meta_path.insert(0, _Loaded(sys.modules.pop("torch")))
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__=script, __builtins__=__builtins__)
    sys.modules["__main__"] = main
    return functools.partial(exec, compile(Path(script).read_bytes(), script, "exec"), main.__dict__)


if __name__ == "__main__":
    for _name in sys.argv[2:]:
        importlib.import_module(_name)
        if _name.endswith(".__main__"):
            del sys.modules[_name]  # to be run, not imported
    gc.freeze()  # or the first collection of every copy writes to all pages that they share
    _become(_serve(socket.socket(fileno=int(sys.argv[1]))))()
