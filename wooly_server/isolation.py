"""Isolation of a process by what the kernel gives to root, and some of it to any user: a user, a file tree, a network and limits of its
own.

Each function gives something up for ever, for the process and its children, and returns the layer that holds, or ``no ...`` with the
reason.

Sources: namespaces(7), user_namespaces(7), mount_namespaces(7), capset(2), setrlimit(2).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import stat
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_libc: Final = ctypes.CDLL(None, use_errno=True)
_NEWNS, _NEWUSER, _NEWNET = 0x00020000, 0x10000000, 0x40000000
_MS_NOSUID, _MS_NODEV, _MS_BIND, _MS_REC, _MS_PRIVATE = 2, 4, 0x1000, 0x4000, 0x40000
_CAPABILITY_VERSION_3: Final = 0x20080522


@dataclass(frozen=True, slots=True)
class User:
    """An unprivileged user. ``groups``: supplementary groups that it keeps, by number; all others are dropped."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()


def limit(files: int, processes: int) -> str:
    """Write no core files, open at most ``files``, and start at most ``processes`` of this user (0: as many as before)."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    held = ["no core files"]
    for kind, most, text in ((resource.RLIMIT_NOFILE, files, "files"), (resource.RLIMIT_NPROC, processes, "processes of the user")):
        _, hard = resource.getrlimit(kind)
        if most:
            most = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(kind, (most, most))
            held.append(f"{most} {text}")
    return f"limits ({', '.join(held)})"


def own_network() -> str:
    """Keep the sockets that are open, and have no network interface for new ones. Without root, the process must have one thread."""
    uid, gid = os.geteuid(), os.getegid()
    try:
        if uid == 0:
            _unshare(_NEWNET)
            return "network namespace"
        _unshare(_NEWUSER | _NEWNET)
    except OSError as error:
        return f"no network namespace: {error.strerror}"
    how = "of a user namespace, without capabilities"
    try:
        for file, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            Path("/proc/self", file).write_text(text)
    except OSError as error:
        how += f"; the user has no number there: {error.strerror}"
    _checked("capset", _libc.capset(struct.pack("=Ii", _CAPABILITY_VERSION_3, 0), bytes(24)))
    return f"network namespace ({how})"


def own_user(user: User | None, owned: Iterable[str], reached: Iterable[str], needed: Iterable[str]) -> str:
    """Become ``user``. It gets the folders ``owned``, where they are root's alone, and reaches them, ``reached`` and ``needed`` also where
    a folder on the way is closed to it. It must be able to read ``needed``; what it may do with ``reached`` is what their modes say."""
    if os.geteuid() != 0:
        return f"no user of its own: the service runs as user {os.geteuid()}, not as root"
    if user is None:
        return "no user of its own: WOOLY_EXECUTOR_USER is root"
    owned, reached, needed = tuple(owned), tuple(path for path in reached if os.path.exists(path)), tuple(needed)
    try:
        for folder in owned:
            _give(folder, user.uid, user.gid)
        problem = _tried(lambda: _become(user, owned, reached, needed))
    except OSError as error:
        problem = f"its folders cannot be given to it: {error.strerror}"
    if problem:
        with contextlib.suppress(OSError):
            for folder in owned:
                if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):  # root that minds owners; else they stay: others may have that user
                    _give(folder, 0, 0)
        return f"no user of its own: {problem}"
    _become(user, owned, reached, needed)
    return f"user {user.uid}"


def _give(folder: str, uid: int, gid: int) -> None:
    """The folder and all that is in it, if it is its owner's alone and that is another user: what others may use is not given away. Names
    are looked up in open folders and links are not followed: what the former owner put there leads nowhere else."""
    about = os.stat(folder)
    if about.st_uid == uid or about.st_mode & 0o077:
        return
    for _, folders, files, place in os.fwalk(folder, follow_symlinks=False):
        for name in (*folders, *files):
            about = os.stat(name, dir_fd=place, follow_symlinks=False)
            if stat.S_ISDIR(about.st_mode) or (stat.S_ISREG(about.st_mode) and about.st_nlink == 1):
                os.chown(name, uid, gid, dir_fd=place, follow_symlinks=False)
    os.chown(folder, uid, gid)


def _become(user: User, owned: tuple[str, ...], reached: tuple[str, ...], needed: tuple[str, ...]) -> None:
    """Raises OSError."""
    _open_ways((*owned, *reached, *needed), {user.gid, *user.groups}, user.uid)
    os.setgroups(user.groups)
    os.setresgid(user.gid, user.gid, user.gid)
    os.setresuid(user.uid, user.uid, user.uid)
    for paths, mode in ((owned, os.R_OK | os.W_OK | os.X_OK), (needed, os.R_OK)):
        for path in paths:
            if not os.access(path, mode):
                raise PermissionError(0, f"user {user.uid} may not use {path}")


def _tried(action: Callable[[], None]) -> str:
    """Why ``action`` fails with OSError, tried in a child; empty: it does not."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            action()
            code = 0
        except OSError as error:
            os.write(writing, (error.strerror or str(error)).encode())
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    _, status = os.waitpid(child, 0)
    return text or ("" if status == 0 else "the attempt failed")


# -- closed ways -------------------------------------------------------------------------------------------------------------------


def _closed(path: str, uid: int, gids: set[int]) -> str:
    """The first folder on the way to ``path`` that the user may not pass through; empty: there is none."""
    for folder in reversed(Path(path).parents):
        about = folder.stat()
        shift = 6 if about.st_uid == uid else 3 if about.st_gid in gids else 0
        if not about.st_mode >> shift & 1:
            return str(folder)
    return ""


def _open_ways(paths: Iterable[str], gids: set[int], uid: int) -> None:
    """In a mount namespace of its own, an empty folder lies over each that is closed on the way to one of ``paths``, with the paths in
    it and nothing else. Raises OSError."""
    every = sorted({name for path in paths for name in (os.path.abspath(path), os.path.realpath(path))})
    closed = {path: folder for path in every if (folder := _closed(path, uid, gids))}
    if not closed:
        return
    if "/" in closed.values():
        raise PermissionError(0, "the root folder is closed to it")
    try:
        _unshare(_NEWNS)
    except OSError as error:
        raise PermissionError(0, f"{min(closed.values())} is closed to it, and a mount namespace is refused: {error.strerror}") from None
    _mount("none", "/", "", _MS_REC | _MS_PRIVATE)
    before = os.umask(0o022)
    places = {path: os.open(path, os.O_PATH | os.O_CLOEXEC) for path in closed}
    for folder in set(closed.values()):
        _mount("tmpfs", folder, "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=0755,size=1m")
    for path, place in places.items():  # sorted: a folder before what is in it
        if not os.path.exists(path):
            os.makedirs(path if os.path.isdir(f"/proc/self/fd/{place}") else os.path.dirname(path), exist_ok=True)
            if not os.path.exists(path):
                Path(path).touch()
            _mount(f"/proc/self/fd/{place}", path, "", _MS_BIND | _MS_REC)
        os.close(place)
    os.umask(before)


def _mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    arguments = [os.fsencode(text) for text in (source, target, kind, data)]
    _checked(f"mount {target}", _libc.mount(arguments[0], arguments[1], arguments[2], ctypes.c_ulong(flags), arguments[3]))


def _unshare(flags: int) -> None:
    _checked("unshare", _libc.unshare(flags))


def _checked(name: str, result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{os.strerror(number)} ({name})")
