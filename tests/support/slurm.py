"""A Slurm cluster of real daemons in one folder: munged, slurmctld and two slurmd, for tests of the hooks. Needs root and the Debian
packages slurmctld, slurmd, slurm-client, munge and slurm-wlm-basic-plugins."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.node import until
from tests.support.stack import ROOT, plain_environment

__all__ = ["Slurm", "free_ports", "missing_program", "python_of_jobs"]

_CONF = """\
ClusterName=lab
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/run/munge.sock,cred_expire=5
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,bf_interval=1
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=2
GresTypes=woolyai_vram
JobSubmitPlugins=lua
BurstBufferType=burst_buffer/lua
TaskProlog={etc}/wooly_taskprolog.sh
Epilog={etc}/wooly_epilog.sh
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmctldDebug=info
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[0]} CPUs=4 RealMemory=1000 Gres=woolyai_vram:80000
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=4 RealMemory=1000 Gres=woolyai_vram:80000
PartitionName=main Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
"""
_GRES = "".join(f"NodeName={name} Name=woolyai_vram Count=80000 Flags=CountOnly\n" for name in ("n1", "n2"))
_PROGRAMS = ("slurmctld", "slurmd", "sbatch", "munged", "setpriv")


def missing_program() -> str:
    """The first program that is not installed; empty: all are."""
    return next((name for name in _PROGRAMS if shutil.which(name) is None), "")


class Slurm:
    """``with Slurm(CONTROLLER_URL=...) as slurm``: the cluster is idle, with the files of ``wooly slurm install``."""

    def __init__(self, **environment: str) -> None:
        self._own = tempfile.TemporaryDirectory(prefix="slurm-")
        self.folder = Path(self._own.name)
        self.etc = self.folder / "etc"
        self.version = subprocess.run(["slurmctld", "-V"], capture_output=True, text=True, check=True).stdout.strip()
        self.environment = plain_environment(
            HOME=str(self.folder / "out"),
            SLURM_CONF=str(self.etc / "slurm.conf"),
            PYTHONPATH=f"{ROOT}:{sysconfig.get_path('purelib')}",
            **environment,
        )
        self._controller: subprocess.Popen[bytes] | None = None
        self._daemons: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        self.folder.chmod(0o755)  # jobs are those of another user
        for name in ("etc", "run", "state", "spool", "out"):
            (self.folder / name).mkdir(mode=0o755)
        (self.folder / "out").chmod(0o777)
        (self.etc / "munge.key").write_bytes(os.urandom(1024))
        (self.etc / "munge.key").chmod(0o400)
        controller_port, *ports = free_ports(3)
        conf = _CONF.format(host=socket.gethostname(), folder=self.folder, etc=self.etc, controller_port=controller_port, ports=ports)
        (self.etc / "slurm.conf").write_text(conf)
        (self.etc / "gres.conf").write_text(_GRES)
        try:
            self._start(
                "munged", "--foreground", "--force", *(f"--{name}-file={self.folder}/run/munge.{name}" for name in ("pid", "log", "seed")),
                f"--key-file={self.etc}/munge.key", f"--socket={self.folder}/run/munge.sock",
            )  # fmt: skip
            until((self.folder / "run/munge.sock").exists, "munged listens")
            done = self.wooly("slurm", "install", "--prefix", str(self.etc))
            assert done.returncode == 0, done.stdout + done.stderr
            self.start_controller()
            for name in ("n1", "n2"):
                self._start("slurmd", "-D", "-N", name)
            until(lambda: self.node_states() == ["idle", "idle"], "both nodes are idle")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self.stop_controller(signal.SIGTERM)
        for daemon in reversed(self._daemons):
            daemon.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(10)
            daemon.kill()
            daemon.wait()
        self._own.cleanup()

    def start_controller(self) -> None:
        self._controller = self._popen("slurmctld", "-D")

    def stop_controller(self, number: int) -> None:
        if self._controller is not None:
            self._controller.send_signal(number)
            self._controller.wait(60)
            self._controller = None

    def until_saved(self) -> None:
        """slurmctld has written the state of its jobs, and has nothing to write now."""
        file = self.folder / "state/job_state"
        before = file.stat().st_mtime_ns if file.exists() else 0
        self.sbatch("true")
        until(lambda: file.exists() and file.stat().st_mtime_ns != before, "slurmctld has written its state")

    def set(self, name: str, value: str) -> None:
        """Replace a line of wooly.conf."""
        path = self.etc / "wooly.conf"
        path.write_text(re.sub(rf"(?m)^{name} = .*$", f"{name} = {value}", path.read_text()))

    def _start(self, *command: str) -> None:
        self._daemons.append(self._popen(*command))

    def _popen(self, *command: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{command[0]}.out").open("ab") as log:
            return subprocess.Popen(command, env=self.environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=self.folder)

    # -- commands ------------------------------------------------------------------------------------------------------------------

    def call(self, *command: str, stdin: str = "", user: str = "nobody") -> subprocess.CompletedProcess[str]:
        """Run a command of Slurm as ``user``: burst buffers refuse root."""
        command = ("setpriv", f"--reuid={user}", "--clear-groups", *command)
        return subprocess.run(
            command, input=stdin, env=self.environment, cwd=self.folder / "out", capture_output=True, text=True, timeout=120, check=False
        )

    def wooly(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(ROOT / ".venv/bin/wooly"), *arguments]
        return subprocess.run(command, env=self.environment, cwd=self.folder, capture_output=True, text=True, timeout=120, check=False)

    def sbatch(self, *lines: str, options: tuple[str, ...] = ()) -> str:
        """Submit a script of these lines; its job id."""
        done = self.call("sbatch", "--parsable", "--output=%j.txt", *options, stdin="\n".join(("#!/bin/sh", *lines, "")))
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def show(self, job: str, field: str) -> str:
        """A field of ``squeue --Format`` of a job; empty when Slurm has forgotten it."""
        done = self.call("squeue", "--noheader", "--states=all", f"--jobs={job}", f"--Format={field}:500")
        return done.stdout.strip()

    def state(self, job: str) -> str:
        return self.show(job, "State")

    def unfinished(self) -> list[str]:
        """Jobs that wait, run or are being staged."""
        return self.call("squeue", "--noheader", "--format=%i").stdout.split()

    def output(self, job: str) -> str:
        path = self.folder / "out" / f"{job}.txt"
        return path.read_text() if path.exists() else ""

    def node_states(self) -> list[str]:
        return self.call("sinfo", "--noheader", "--Node", "--format=%T").stdout.split()

    def log(self) -> str:
        return (self.folder / "slurmctld.log").read_text(errors="replace")


def python_of_jobs() -> str:
    """This Python, or that of the system, of the same version, where other users cannot reach this one."""
    own = Path(sys.executable).resolve()
    reached = all(folder.stat().st_mode & 0o001 for folder in own.parents)
    return str(own) if reached else f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that no process listens on now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
