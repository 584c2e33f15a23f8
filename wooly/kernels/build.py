"""Builds a verified module from source: compile, import, verify; cached in the process and on disk, where only what this user wrote is
believed: the folder may be shared."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

import msgspec
from blake3 import blake3

from wis.errors import DecodeError, VerifyError, WisError
from wis.frontends.ptx import import_ptx
from wis.kernel.model import KERNEL_VERSION, Math
from wis.kernel.module import MODULE_VERSION, Entry, Module, check_module, decode_module, encode_module
from wis.kernel.verify import VerifiedKernel, verify_kernel
from wooly import progress
from wooly.errors import CompileError
from wooly.kernels.nvrtc import compile_to_ptx, nvrtc_version
from wooly.shared.files import read_own

_FAST: Final = frozenset({"-use_fast_math", "--use_fast_math"})
"""Asks for the device's own math functions; everything else stays exact."""
_FORMAT: Final = 7
"""Of what is kept, and of what the import makes of a source: raised when that changes, so that no older result is found."""

_Stored = tuple[bytes, dict[str, str]]


@dataclass(frozen=True)
class Built:
    """A module, and what its name expressions are called in it."""

    module: Module
    names: dict[str, str]

    @cached_property
    def _verified(self) -> dict[str, VerifiedKernel]:
        return {}

    def entry(self, name: str) -> Entry:
        """The kernel of this name or name expression. Raises CompileError."""
        wanted = self.names.get(name, name)
        for entry in self.module.entries:
            if entry.name == wanted:
                return entry
        there = ", ".join(entry.name for entry in self.module.entries) or "none"
        raise CompileError(f"there is no kernel {name!r} in this module, which has: {there}")

    def verified(self, entry: Entry) -> VerifiedKernel:
        """The kernel, verified once. Raises CompileError with the first broken rule."""
        if entry.name not in self._verified:
            try:
                self._verified[entry.name] = verify_kernel(entry.kernel)
            except VerifyError as error:
                raise CompileError(f"kernel {entry.name}: {error}") from error
        return self._verified[entry.name]


def build_cuda(
    source: str, options: Sequence[str] = (), names: Sequence[str] = (), *, file: str = "kernel.cu", drops_prints: bool = False
) -> Built:
    """CUDA C++. ``names``: name expressions of the kernels wanted. ``drops_prints``: printf does nothing, instead of being refused. Raises
    CompileError with the compiler's log, or ToolchainMissing."""
    math = Math.NATIVE if _FAST.intersection(options) else Math.STRICT
    plain = tuple(option for option in options if option not in _FAST)
    key = _key("cuda", source, *plain, "\0", *names, file, nvrtc_version(), (int(math), drops_prints))
    found = _remembered(key)
    if found is None:
        with progress.slow(f"compiling {file}"):
            ptx = compile_to_ptx(source, plain, names, name=file)
        found = _keep(key, Built(_imported(ptx.text, file, math, drops_prints=drops_prints), ptx.names))
    return found


def build_ptx(text: str, *, file: str = "kernel.ptx", math: Math = Math.STRICT, drops_prints: bool = False) -> Built:
    """Ready PTX. ``drops_prints``: printf does nothing, instead of being refused. Raises CompileError naming the line."""
    key = _key("ptx", text, file, int(math), drops_prints)
    return _remembered(key) or _keep(key, Built(_imported(text, file, math, drops_prints=drops_prints), {}))


def load_wis(data: bytes) -> Built:
    """A module file. Raises CompileError."""
    try:
        module = decode_module(data)
    except DecodeError as error:
        raise CompileError(str(error)) from error
    if findings := check_module(module):
        raise CompileError(str(VerifyError(findings)))
    return Built(module, {})


def _imported(text: str, file: str, math: Math, *, drops_prints: bool = False) -> Module:
    try:
        return import_ptx(text, file, math=math, drops_prints=drops_prints)
    except WisError as error:
        raise CompileError(f"{file}: {error}") from error


# --- the cache

_built: Final[dict[str, Built]] = {}


def _key(*parts: object) -> str:
    text = "\0".join(map(str, (_FORMAT, KERNEL_VERSION, MODULE_VERSION, *parts)))
    return blake3(text.encode()).hexdigest()


def _folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "wooly" / "kernels"


def _remembered(key: str) -> Built | None:
    built = _built.get(key)
    if built is None:
        try:
            body, names = msgspec.msgpack.decode(read_own(_folder() / key), type=_Stored)
            built = _built[key] = Built(decode_module(body), names)
        except (OSError, msgspec.DecodeError, DecodeError):
            return None  # absent, or damaged, which is as good as absent
    return built


def _keep(key: str, built: Built) -> Built:
    _built[key] = built
    with contextlib.suppress(OSError):  # a full or read-only disk costs the next process a compilation
        folder = _folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=folder, prefix=".new-")
        with os.fdopen(handle, "wb") as file:
            file.write(msgspec.msgpack.encode((encode_module(built.module), built.names)))
        os.replace(name, folder / key)
    return built
