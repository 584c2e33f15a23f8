"""The sandbox of a process that handles what tenants send: Linux's own means, entered by the process itself before it takes any of it.

What a process loses when it enters stays lost, for its children too. Three layers work without privileges, each where the kernel has it:
*no_new_privs* (a set-user-id program gives none), *seccomp* (system calls that nothing here needs fail with EPERM), *Landlock* (files, TCP
ports, signals and abstract sockets beyond those that are named are denied). Around them are a user, a network and limits of its own
(``isolation``).

Sources: Linux's userspace-api/seccomp_filter, userspace-api/landlock and their uapi headers; numbers of system calls from asm/unistd_64.h
(x86-64) and asm-generic/unistd.h (aarch64).
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import platform
import struct
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from wooly_server import module_command
from wooly_server.cgroup import offered_limits
from wooly_server.isolation import User, limit, own_network, own_user

EXECUTOR_UID: Final = 61_183
"""The user of an executor that no configuration names: a number that neither distributions nor systemd give to anything (the last of the
unused ones in systemd's table of user ids)."""

_libc: Final = ctypes.CDLL(None, use_errno=True)
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2

_SYSTEM_FOLDERS: Final = (
    "/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/sys", "/opt/rocm", "/opt/cuda", "/opt/nvidia", "/opt/intel",
    "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/OpenCL", "/etc/localtime", "/etc/passwd",
    "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/version", "/proc/filesystems", "/proc/devices", "/proc/modules", "/proc/driver",
    "/proc/sys", "/etc/group", "/etc/hosts", "/etc/host.conf", "/etc/nsswitch.conf", "/etc/resolv.conf", "/etc/gai.conf",
)  # fmt: skip
_FOLDER_VARIABLES: Final = ("LD_LIBRARY_PATH", "CUDA_PATH", "CUDA_HOME", "ROCM_PATH", "OCL_ICD_VENDORS", "OPENCL_VENDOR_PATH")
"""Where an operator may have put libraries and drivers."""
_OUR_PACKAGES: Final = ("bus_schemas", "jit", "scheduler", "services", "wis", "wooly", "wooly_server")


@dataclass(frozen=True, slots=True)
class Sandbox:
    """What stays allowed. No TCP port may be bound, and none be connected to."""

    #: Folders and files that may be read, and programs in them executed.
    read: tuple[str, ...] = ()
    #: Folders of which, and of those below, the names may be listed.
    listed: tuple[str, ...] = ()
    #: Folders that may be read and written. They become those of ``user``.
    write: tuple[str, ...] = ()
    #: Device files below /dev may be used.
    devices: bool = False
    #: Sockets may be made, and connected.
    sockets: bool = False
    connect: bool = False
    #: Other programs may be started.
    execute: bool = False
    #: The user to become, where the process starts as root; None: it is not asked for.
    user: User | None = None
    #: How many files may be open, and how many processes the user may have, where it has one of its own. 0: as many as before.
    files: int = 0
    processes: int = 0


def for_programs(**more: Any) -> Sandbox:
    """A sandbox in which Python, our packages, libraries and compilers work, and ``more``. Not all of /proc is there: it shows the
    environment of other processes of the user."""
    ours = _ours()
    named = [folder for name in _FOLDER_VARIABLES for folder in os.environ.get(name, "").split(os.pathsep) if folder]
    read = (*_SYSTEM_FOLDERS, f"/proc/{os.getpid()}", sys.prefix, sys.base_prefix, *ours, *named, *filter(None, sys.path))
    # Drivers look for devices from the root on; Python lists the folders of packages.
    listed = ("/",) if more.get("devices") else tuple({str(Path(folder).parent) for folder in ours})
    return Sandbox(read=read, listed=listed, **more)


def _ours() -> list[str]:
    """The folders of our packages."""
    found = (importlib.util.find_spec(name) for name in _OUR_PACKAGES)
    return [folder for spec in found if spec is not None for folder in spec.submodule_search_locations or ()]


def enter(sandbox: Sandbox) -> tuple[str, ...]:
    """Give up everything else, for ever; the layers that hold, and ``no ...`` with the reason for those that do not. Call it before there
    is a second thread: threads that exist are not held."""
    network = own_network()
    needed = () if sandbox.user is None else (sys.executable, os.__file__, *_ours())
    user = own_user(sandbox.user, sandbox.write, sandbox.read, needed)
    limits = limit(sandbox.files, 0 if user.startswith("no ") else sandbox.processes)
    if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        return (user, network, limits, "no no_new_privs, and no layer that needs it: refused")
    return (user, network, limits, "no_new_privs", _enter_landlock(sandbox), _enter_seccomp(sandbox))


def offered() -> tuple[str, ...]:
    """The layers that a process of this user has on this machine, and those that it lacks, with the reason: one enters, with the default
    user where it may become another."""
    done = subprocess.run(module_command("wooly_server.sandbox"), capture_output=True, text=True, check=True)
    return tuple(done.stdout.splitlines())


# -- Landlock ----------------------------------------------------------------------------------------------------------------------

_ABI_LEAST: Final = 2
"""The first (Linux 5.19) that lets files be moved between folders."""
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_PATH_BENEATH: Final = 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_TRUNCATE, _IOCTL_DEV = 1 << 14, 1 << 15
_OF_FILES: Final = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_FS_RIGHTS: Final = {2: 14, 3: 15, 4: 15}
"""Version: how many rights of files there are; 16 in later ones."""
_BIND_TCP, _CONNECT_TCP = 1, 2
_SCOPES: Final = 3
"""Abstract sockets and signals of processes outside."""


def _landlock_abi() -> int:
    """The version that the kernel has; 0: none."""
    return max(0, int(_libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), 1)))


def _enter_landlock(sandbox: Sandbox) -> str:
    abi = _landlock_abi()
    if abi < _ABI_LEAST:
        return f"no Landlock: version {abi} in this kernel, {_ABI_LEAST} is needed"
    files = (1 << _FS_RIGHTS.get(abi, 16)) - 1
    net = _BIND_TCP | _CONNECT_TCP if abi >= 4 else 0
    attributes = struct.pack("=QQQ", files, net, _SCOPES if abi >= 6 else 0)[: 24 if abi >= 6 else 16 if abi >= 4 else 8]
    ruleset = _libc.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0)
    if ruleset < 0:
        return f"no Landlock: {os.strerror(ctypes.get_errno())}"
    try:
        reading = _READ_FILE | _READ_DIR | (_EXECUTE if sandbox.execute else 0)
        _allow(ruleset, sandbox.read, reading)
        _allow(ruleset, sandbox.listed, _READ_DIR)
        _allow(ruleset, sandbox.write, files & ~_EXECUTE | reading)
        if sandbox.devices:  # CUDA does not start where it cannot name its threads, which is to write task/N/comm
            _allow(ruleset, (f"/proc/{os.getpid()}/task",), (reading | _WRITE_FILE | _TRUNCATE) & files)
        _allow(ruleset, ("/dev",) if sandbox.devices else ("/dev/null", "/dev/urandom"), (reading | _WRITE_FILE | _IOCTL_DEV) & files)
        if _libc.syscall(_RESTRICT_SELF, ruleset, 0) != 0:
            return f"no Landlock: {os.strerror(ctypes.get_errno())}"
    finally:
        os.close(ruleset)
    return f"Landlock {abi}"


def _allow(ruleset: int, paths: Iterable[str], rights: int) -> None:
    for path in paths:
        with contextlib.suppress(OSError):  # it does not exist: nothing to allow
            place = os.open(path, os.O_PATH | os.O_CLOEXEC)
            try:
                held = rights if os.path.isdir(path) else rights & _OF_FILES
                _libc.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", held, place), 0)  # one refused allows less
            finally:
                os.close(place)


# -- seccomp -----------------------------------------------------------------------------------------------------------------------

_CALLS: Final[dict[str, dict[str, int]]] = {
    "x86_64": {
        "socket": 41, "connect": 42, "bind": 49, "execve": 59, "ptrace": 101, "syslog": 103, "modify_ldt": 154,
        "pivot_root": 155, "adjtimex": 159, "chroot": 161, "acct": 163, "settimeofday": 164, "mount": 165, "umount2": 166,
        "swapon": 167, "swapoff": 168, "reboot": 169, "sethostname": 170, "setdomainname": 171, "iopl": 172, "ioperm": 173,
        "init_module": 175, "delete_module": 176, "quotactl": 179, "clock_settime": 227, "kexec_load": 246, "add_key": 248,
        "request_key": 249, "keyctl": 250, "unshare": 272, "perf_event_open": 298, "fanotify_init": 300, "name_to_handle_at": 303,
        "open_by_handle_at": 304, "clock_adjtime": 305, "setns": 308, "process_vm_readv": 310, "process_vm_writev": 311,
        "kcmp": 312, "finit_module": 313, "kexec_file_load": 320, "bpf": 321, "execveat": 322, "userfaultfd": 323,
        "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428, "move_mount": 429, "fsopen": 430,
        "fsconfig": 431, "fsmount": 432, "fspick": 433, "pidfd_getfd": 438, "mount_setattr": 442,
    },
    "aarch64": {
        "umount2": 39, "mount": 40, "pivot_root": 41, "chroot": 51, "quotactl": 60, "acct": 89, "unshare": 97, "kexec_load": 104,
        "init_module": 105, "delete_module": 106, "clock_settime": 112, "syslog": 116, "ptrace": 117, "reboot": 142,
        "sethostname": 161, "setdomainname": 162, "settimeofday": 170, "adjtimex": 171, "socket": 198, "bind": 200,
        "connect": 203, "add_key": 217, "request_key": 218, "keyctl": 219, "execve": 221, "swapon": 224, "swapoff": 225,
        "perf_event_open": 241, "fanotify_init": 262, "name_to_handle_at": 264, "open_by_handle_at": 265, "clock_adjtime": 266,
        "setns": 268, "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272, "finit_module": 273, "bpf": 280,
        "execveat": 281, "userfaultfd": 282, "kexec_file_load": 294, "io_uring_setup": 425, "io_uring_enter": 426,
        "io_uring_register": 427, "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432,
        "fspick": 433, "pidfd_getfd": 438, "mount_setattr": 442,
    },
}  # fmt: skip
_ARCHITECTURE: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""AUDIT_ARCH of linux/audit.h."""
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
"""BPF_LD | BPF_W | BPF_ABS, BPF_JMP | BPF_JEQ, BPF_JMP | BPF_JGE, BPF_RET; all with BPF_K."""
_ALLOW, _FAIL, _KILL = 0x7FFF0000, 0x00050000 | 1, 0x80000000
"""SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO with EPERM, SECCOMP_RET_KILL_PROCESS."""
_X32: Final = 0x40000000
"""Calls of the x32 ABI begin here: they would go past the numbers of the filter."""


def _enter_seccomp(sandbox: Sandbox) -> str:
    machine = platform.machine()
    calls = _CALLS.get(machine)
    if calls is None or sys.maxsize < 1 << 32:
        return f"no seccomp: no filter for {machine}"
    groups = ((sandbox.sockets, ("socket", "bind")), (sandbox.connect, ("connect",)), (sandbox.execute, ("execve", "execveat")))
    kept = {name for allowed, names in groups if allowed for name in names}
    code = b"".join(_filter(machine, [number for name, number in calls.items() if name not in kept]))
    steps = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("@HP", len(code) // 8, ctypes.addressof(steps))
    if _libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, program, 0, 0) != 0:
        return f"no seccomp: {os.strerror(ctypes.get_errno())}"
    return "seccomp"


def _filter(machine: str, numbers: list[int]) -> Iterator[bytes]:
    """A program of struct sock_filter over struct seccomp_data: number of the call at 0, architecture at 4."""

    def step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
        return struct.pack("=HBBI", code, if_true, if_false, value)

    yield step(_LOAD, 4)
    yield step(_EQUAL, _ARCHITECTURE[machine], 1, 0)
    yield step(_RETURN, _KILL)
    yield step(_LOAD, 0)
    yield step(_AT_LEAST, _X32, len(numbers) + 1, 0)
    for at, number in enumerate(numbers):
        yield step(_EQUAL, number, len(numbers) - at, 0)
    yield step(_RETURN, _ALLOW)
    yield step(_RETURN, _FAIL)


if __name__ == "__main__":
    user = User(EXECUTOR_UID, EXECUTOR_UID) if os.geteuid() == 0 else None
    limits = offered_limits()
    sys.stdout.write("\n".join((*enter(for_programs(user=user)), *limits)) + "\n")
