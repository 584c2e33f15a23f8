"""One script as a process: its folder, environment, limits, and its end together with everything it started.

A script is the leader of a session of its own, dies with the runner, and carries the mark RUNNER_MARK in its environment. Processes that
leave its group are found by that mark, or as orphans that the kernel gives to the runner (a child subreaper). A process that hides from
both must have changed its environment and still have a parent: it then outlives the script until that parent ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

from bus_schemas.runs import RunOrder
from services.kit.process import die_with_parent
from services.runner.settings import Settings

MARK: Final = "RUNNER_MARK"
_PROCESSES_MAX: Final = 4096
"""RLIMIT_NPROC: processes and threads of the runner's user, all scripts together."""
_PASSES_MAX: Final = 20
_PR_SET_CHILD_SUBREAPER: Final = 36
_libc: Final = ctypes.CDLL(None, use_errno=True)


class ScriptProcess:
    """A started script. ``output``: the read end of its output, non-blocking."""

    def __init__(self, order: RunOrder, settings: Settings) -> None:
        """Start it. Raises OSError. Call from the main thread: the script ends with the thread that started it."""
        script = order.script
        self.mark = _mark(settings, script.task)
        settings.folder.mkdir(parents=True, exist_ok=True)
        self.folder = Path(tempfile.mkdtemp(prefix=f"{script.task}-", dir=settings.folder))
        self.output, write_end = os.pipe()
        try:
            file = self.folder / script.name
            file.write_text(script.script, encoding="utf-8")
            os.set_blocking(self.output, False)
            parent_pid, limits = os.getpid(), _limits(script.ram_mb)

            def before() -> None:
                die_with_parent(parent_pid, signal.SIGKILL)
                for kind, limit in limits:
                    resource.setrlimit(kind, limit)

            self.process = subprocess.Popen(
                [sys.executable, "-u", str(file), *script.arguments],
                env=_environment(order, settings, self.folder, self.mark),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=write_end,
                stderr=write_end,
                start_new_session=True,
                preexec_fn=before,  # system calls only
            )
        except BaseException:
            self.discard()
            raise
        finally:
            os.close(write_end)

    def signal(self, number: int) -> None:
        """Send a signal to the script and the processes of its group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def kill_rest(self) -> None:
        """Kill what the script has left behind."""
        self.signal(signal.SIGKILL)
        kill_marked(self.mark)

    def discard(self) -> None:
        """Close its output and remove its folder."""
        if self.output >= 0:
            os.close(self.output)
            self.output = -1
        remove_folder(self.folder)


def remove_folder(folder: Path) -> None:
    """Remove what can be removed, also below folders that a script made read-only. Call when no process of the script is left."""

    def permit(remove: Callable[..., object], path: str, _error: object) -> None:
        """Repeat one step of ``rmtree``, with permission to change the folder that refused it. What is around ``folder`` stays as it is."""
        entry = remove is os.unlink or remove is os.rmdir  # else a folder that could not be read
        refusing = os.path.dirname(path) if entry else path
        if (entry and Path(path) == folder) or os.path.islink(refusing):
            return
        with contextlib.suppress(OSError):
            os.chmod(refusing, stat.S_IRWXU)
            if entry:
                remove(path)
            else:
                shutil.rmtree(path, ignore_errors=True)

    shutil.rmtree(folder, onerror=permit)


def _mark(settings: Settings, task: str) -> str:
    return f"{settings.folder}:{task}"


def _environment(order: RunOrder, settings: Settings, folder: Path, mark: str) -> dict[str, str]:
    """Nothing of the runner's own environment; what the platform sets comes last."""
    script = order.script
    given = {
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "WOOLY_NATS_URL": settings.nats_url,
        "CONTROLLER_URL": settings.controller_url,
        "WOOLY_TASK_ID": script.task,
        "WOOLY_TENANT": script.tenant,
        "WOOLY_QUEUE": "1",
        MARK: mark,
    }
    if settings.python_path:
        given["PYTHONPATH"] = settings.python_path
    if settings.tls_ca:
        given["WOOLY_TLS_CA"] = settings.tls_ca
    if order.api_key:
        given["WOOLY_API_KEY"] = order.api_key
    plain = {"PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
    return {**plain, **script.environment, **given}


def _limits(ram_mb: int) -> list[tuple[int, tuple[int, int]]]:
    wanted = [(resource.RLIMIT_CORE, 0), (resource.RLIMIT_NPROC, _PROCESSES_MAX)]
    if ram_mb:
        wanted.append((resource.RLIMIT_AS, ram_mb << 20))
    out = []
    for kind, value in wanted:
        hard = resource.getrlimit(kind)[1]
        bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
        out.append((kind, (bound, bound)))
    return out


def become_subreaper() -> None:
    """From now on processes whose parents have ended become children of this one."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def kill_marked(mark: str) -> None:
    """Kill the processes of this user whose environment carries ``mark``, or with a ``mark`` that ends with ``:`` any that begins so."""
    wanted = f"{MARK}={mark}".encode()
    for _ in range(_PASSES_MAX):
        if not _kill_pass(wanted, prefix=mark.endswith(":")):
            return


def _kill_pass(wanted: bytes, *, prefix: bool) -> bool:
    """Whether there were any: they may have started others meanwhile."""
    found = False
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            for variable in Path(entry.path, "environ").read_bytes().split(b"\0"):
                if variable == wanted or (prefix and variable.startswith(wanted)):
                    os.kill(int(entry.name), signal.SIGKILL)
                    found = True
    return found


def kill_orphans(running: Collection[int], marks: Collection[str]) -> None:
    """Kill and reap the children that are none of ``running`` and carry none of ``marks``: orphans of scripts that have ended."""
    kept = {f"{MARK}={mark}".encode() for mark in marks}
    for pid in _children():
        if pid in running:
            continue
        with contextlib.suppress(OSError):
            if kept.intersection(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")):
                continue
            os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            os.waitpid(pid, os.WNOHANG)


def _children() -> list[int]:
    """Pids of this process's children, those of all its threads."""
    found: list[int] = []
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            found += [int(pid) for pid in (thread / "children").read_text().split()]
    return found
