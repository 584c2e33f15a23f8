"""Limits of a process and its children together: a control group (cgroup v2) of its own, where a part of the tree is delegated to the
service, or root may make one.

Sources: cgroups(7), Linux's admin-guide/cgroup-v2, systemd's CGROUP_DELEGATION.
"""

from __future__ import annotations

import contextlib
import errno
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_GROUP: Final = "wooly-executor-"
"""The group of a process is called so, and its id."""
_OTHERS: Final = "wooly-service"
"""Where the processes go that were in the delegated group: one with limits for its children has no processes itself."""
_PERIOD_US: Final = 100_000
_CONTROLLERS: Final = ("memory", "pids", "cpu")


@dataclass(frozen=True)
class Limits:
    """0: no limit. ``cpu_percent``: of one core."""

    memory_bytes: int = 0
    processes: int = 0
    cpu_percent: int = 0

    def files(self) -> dict[str, tuple[str, str]]:
        """For each controller that is needed: the file of the group, and what it is to hold."""
        values = {
            "memory": ("memory.max", self.memory_bytes, str(self.memory_bytes)),
            "pids": ("pids.max", self.processes, str(self.processes)),
            "cpu": ("cpu.max", self.cpu_percent, f"{self.cpu_percent * _PERIOD_US // 100} {_PERIOD_US}"),
        }
        return {controller: (file, text) for controller, (file, value, text) in values.items() if value}


def enter_cgroup(limits: Limits) -> tuple[str, ...]:
    """Put this process into a group of its own; the limits that hold, and ``no cgroup limit ...`` with the reason for those that do not."""
    parent, wanted = _parent(), limits.files()
    problems = {controller: why if controller in wanted else "none is set" for controller, why in _problems(parent).items()}
    can = {controller: wanted[controller] for controller in wanted if not problems[controller]}
    if parent is not None and can:
        try:
            _enter(parent, can)
        except OSError as error:
            problems |= dict.fromkeys(can, f"{error.strerror} ({parent})")
    return tuple(_layer(controller, why, *wanted.get(controller, ())) for controller, why in problems.items())


def offered_limits() -> tuple[str, ...]:
    """The limits that a process of this user can have, without entering a group."""
    return tuple(_layer(controller, why) for controller, why in _problems(_parent()).items())


def _layer(controller: str, problem: str, *file: str) -> str:
    return f"no cgroup limit of {controller}: {problem}" if problem else " ".join(("cgroup limit of", controller, *file))


def _problems(parent: Path | None) -> dict[str, str]:
    """Why a group below ``parent`` cannot have the limits of a controller; empty: it can."""
    if parent is None:
        return dict.fromkeys(_CONTROLLERS, "cgroup v2 is not mounted")
    try:
        there, enabled = ((parent / f"cgroup.{file}").read_text().split() for file in ("controllers", "subtree_control"))
    except OSError as error:
        return dict.fromkeys(_CONTROLLERS, f"{error.strerror} ({parent})")
    problem = ""
    if not os.access(parent / "cgroup.subtree_control", os.W_OK):
        problem = f"{parent} cannot be written to"
    elif not _delegated(parent):
        problem = f"{parent} is not delegated: set Delegate=yes in the unit of the service"
    return {
        controller: f"cgroup v2 has no such controller in {parent}" if controller not in there else "" if controller in enabled else problem
        for controller in _CONTROLLERS
    }


def group_of(pid: int) -> Path | None:
    """The group that a process made for itself; None: it has none."""
    with contextlib.suppress(OSError):
        place = _place(pid)
        return place if place is not None and place.name == f"{_GROUP}{pid}" else None
    return None


def ran_out_of_memory(group: Path) -> bool:
    """The kernel has ended a process of this group, because together they exceeded its limit."""
    with contextlib.suppress(OSError):
        return any(line.startswith("oom_kill ") and line != "oom_kill 0" for line in (group / "memory.events").read_text().splitlines())
    return False


def _place(pid: int) -> Path | None:
    """The folder of a process's group; None where cgroup v2 is not mounted. Raises OSError."""
    path = next((line[3:] for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines() if line.startswith("0::")), None)
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        about, _, kind = line.partition(" - ")
        if path is not None and kind.startswith("cgroup2 "):
            root, mounted = about.split()[3:5]
            return Path(mounted, os.path.relpath(path, root))
    return None


def _parent() -> Path | None:
    """Below which the group is made."""
    try:
        place = _place(os.getpid())
    except OSError:
        return None
    return place.parent if place is not None and place.name == _OTHERS else place


def _enter(parent: Path, wanted: dict[str, tuple[str, str]]) -> None:
    """Raises OSError."""
    _enable(parent, set(wanted))
    for old in parent.glob(f"{_GROUP}*"):
        with contextlib.suppress(OSError):  # one with processes stays
            old.rmdir()
    group = parent / f"{_GROUP}{os.getpid()}"
    group.mkdir()
    for file, text in wanted.values():
        (group / file).write_text(text)
    (group / "cgroup.procs").write_text("0")


def _enable(parent: Path, controllers: set[str]) -> None:
    """Let children of ``parent`` have these limits. Raises OSError."""
    control, text = parent / "cgroup.subtree_control", " ".join(f"+{controller}" for controller in sorted(controllers))
    if controllers <= set(control.read_text().split()):
        return
    try:
        control.write_text(text)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        others = parent / _OTHERS
        others.mkdir(exist_ok=True)
        for pid in (parent / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                (others / "cgroup.procs").write_text(pid)
        control.write_text(text)


def _delegated(group: Path) -> bool:
    """Whether the group is the service's to divide: root may write to all of them, and those of systemd are not its."""
    if os.geteuid() != 0 or not (group.parent / "cgroup.procs").exists():  # another user may write to its own only; a container's root
        return True
    with contextlib.suppress(OSError):
        return os.getxattr(group, "user.delegate") == b"1"
    return False
