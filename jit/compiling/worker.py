"""``python -P -m jit.compiling.worker ADDRESS_SPACE_BYTES``: one job after the other from stdin, answers to stdout.

A job that needs neither files nor programs gives up both before the first input of a tenant; no job has a network.

Frames both ways: length (u32 little-endian), then msgpack: ``[job, payload]`` in, ``[ok, result or message]`` (bytes) out. Ends when stdin
does.
"""

from __future__ import annotations

import importlib
import os
import resource
import struct
import sys
import tempfile
from collections.abc import Callable
from typing import BinaryIO, Final

import msgspec

from jit.errors import ToolchainError
from wooly_server.sandbox import Sandbox, enter, for_programs

JOBS: Final[dict[str, tuple[str, bytes | None]]] = {
    "llvm": ("jit.host.toolchain:compile_job", b"\1define i64 @f() {\n  ret i64 1\n}\n"),
    "opencl": ("jit.opencl:compile_job", None),
    "nvrtc": ("jit.cuda:compile_job", None),
}
"""Each job as ``module:function`` from bytes to bytes. The module is imported when the job is first asked for; the function raises
ToolchainError for input that its compiler refuses. With an input: once that is compiled, the job needs neither files nor programs."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[str, bytes]).decode


def main() -> int:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a compiler prints must not get between the answers
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limit = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    functions: dict[str, Callable[[bytes], bytes]] = {}
    while (frame := _read(sys.stdin.buffer)) is not None:
        job, payload = _decode(frame)
        try:
            if job not in functions:
                functions[job] = _ready(*JOBS[job])
            answer = _encode((True, functions[job](payload)))
        except (ToolchainError, MemoryError, RecursionError) as error:
            answer = _encode((False, (str(error) or type(error).__name__).encode()))
        answers.write(struct.pack("<I", len(answer)) + answer)
        answers.flush()
    return 0


def _ready(name: str, first: bytes | None) -> Callable[[bytes], bytes]:
    """The function, in the sandbox that it needs."""
    os.environ |= {"PYOPENCL_NO_CACHE": "1"}  # it is a file in the user's home
    module, _, function = name.partition(":")
    job: Callable[[bytes], bytes] = getattr(importlib.import_module(module), function)
    if first is not None:
        job(first)
        enter(Sandbox())
    elif os.environ.get("WOOLY_SANDBOX", "1") != "0":
        folders = (tempfile.gettempdir(), os.environ.get("POCL_CACHE_DIR", ""))
        enter(for_programs(write=tuple(filter(None, folders)), devices=True, execute=True))
    return job


def _read(stream: BinaryIO) -> bytes | None:
    head = stream.read(4)
    return stream.read(struct.unpack("<I", head)[0]) if len(head) == 4 else None


if __name__ == "__main__":
    sys.exit(main())
