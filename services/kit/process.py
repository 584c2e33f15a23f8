"""Life cycle of a process: signals, death of the parent, the ready line, watching children. Linux only."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

import uvloop

from services.kit.errors import KitError
from services.kit.log import setup_logging

DIE_WITH_PARENT: Final = "WOOLY_DIE_WITH_PARENT"
"""Set to the parent's pid by a process that starts a service as a child: the service ends (as on SIGTERM) when that process does."""

_NEVER: Final = 1 << 30
"""Collections of the middle generation before one of all."""

PRIVATE_UMASK: Final = 0o077
"""Files and folders are their user's alone."""

_PR_SET_PDEATHSIG: Final = 1
_libc: Final = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent_pid: int, signal_number: int = signal.SIGTERM) -> None:
    """Ask the kernel for ``signal_number`` when the thread that started this process ends; send it at once if that has happened already."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0)
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signal_number)


@contextlib.contextmanager
def history_stays() -> Iterator[None]:
    """What is made inside stays: looking through it for garbage again and again would double the time in which a history is read, and stop
    every answer for long after that. Young objects are still looked through."""
    thresholds = gc.get_threshold()
    gc.set_threshold(*thresholds[:2], _NEVER)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.freeze()


def spawn(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    stdout: int | IO[bytes] | None = None,
    stderr: int | IO[bytes] | None = None,
    cwd: Path | None = None,
    tied: bool = True,
) -> subprocess.Popen[bytes]:
    """Start a child in a session of its own (Ctrl-C reaches only us). ``tied``: it gets SIGTERM when the calling thread ends, so call
    from the main one."""
    parent_pid = os.getpid()
    tie = (lambda: die_with_parent(parent_pid)) if tied else None
    return subprocess.Popen(
        list(command),
        env=None if env is None else dict(env),
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        cwd=cwd,
        start_new_session=True,
        preexec_fn=tie,  # one prctl call; libc is loaded before the fork
    )


def child_environment(**changes: str | None) -> dict[str, str]:
    """This process's environment with ``changes`` (None removes)."""
    env = dict(os.environ)
    for key, value in changes.items():
        if value is None:
            env.pop(key, None)
        else:
            env[key] = value
    return env


async def exited(process: subprocess.Popen[bytes]) -> int:
    """Wait for a child to end; its return code. Works for any child of this process, on any loop."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    pidfd = os.pidfd_open(process.pid)
    loop.add_reader(pidfd, lambda: None if done.done() else done.set_result(None))
    try:
        await done
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)
    return process.wait()


def stop_process(process: subprocess.Popen[bytes], *, grace_s: float = 10.0) -> int:
    """SIGTERM, and SIGKILL if it has not ended within ``grace_s``; the return code."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            return process.wait(grace_s)
        except subprocess.TimeoutExpired:
            process.kill()
    return process.wait()


def ready(text: str | Mapping[str, Any]) -> None:
    """Announce on standard output that the process does its work now: one line, flushed."""
    line = text if isinstance(text, str) else json.dumps(dict(text))
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def free_port(host: str = "127.0.0.1") -> int:
    """A TCP port that is free at this moment."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def run(main: Callable[[asyncio.Event], Coroutine[Any, Any, int]]) -> int:
    """Run ``main(stop)`` on uvloop until it returns. ``stop`` is set on SIGTERM and SIGINT, and when the parent named by
    WOOLY_DIE_WITH_PARENT ends. Files that this process and its children make are its user's alone."""
    os.umask(PRIVATE_UMASK)

    async def body() -> int:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        parent = os.environ.get(DIE_WITH_PARENT, "")
        if parent.isdigit():
            die_with_parent(int(parent))
        return await main(stop)

    try:
        return uvloop.run(body())
    finally:
        _let_go_of_output()


async def first_of(stop: asyncio.Event, *tasks: asyncio.Task[None]) -> None:
    """Return when ``stop`` is set; raises what one of ``tasks`` raises before. Ends them."""
    stopping = asyncio.create_task(stop.wait())
    done, _ = await asyncio.wait({stopping, *tasks}, return_when=asyncio.FIRST_COMPLETED)
    for task in (stopping, *tasks):
        task.cancel()
    for task in done - {stopping}:
        await task


def run_service(name: str, serve: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> int:
    """``run`` a service with its log set up; the exit code: 2, with one line on standard error, after one of our errors."""

    async def main(stop: asyncio.Event) -> int:
        setup_logging(name)
        try:
            await serve(stop)
        except KitError as error:
            sys.stderr.write(f"{name}: {error}\n")
            return 2
        return 0

    return run(main)


def _let_go_of_output() -> None:
    """What cannot be written (a full disk, a closed pipe) must not turn the exit code into the interpreter's 120 at its end."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            sink = os.open(os.devnull, os.O_WRONLY)
            os.dup2(sink, stream.fileno())
            os.close(sink)
