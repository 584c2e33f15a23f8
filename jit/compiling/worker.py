"""``python -P -m jit.compiling.worker ADDRESS_SPACE_BYTES``: one job after the other from stdin, answers to stdout.

Frames both ways: length (u32 little-endian), then msgpack: ``[job, payload]`` in, ``[ok, result or message]`` (bytes) out. Ends when stdin
does.
"""

from __future__ import annotations

import importlib
import os
import resource
import struct
import sys
from collections.abc import Callable
from typing import BinaryIO, Final

import msgspec

from jit.errors import ToolchainError

JOBS: Final[dict[str, str]] = {
    "llvm": "jit.host.toolchain:compile_job",
    "opencl": "jit.opencl:compile_job",
    "nvrtc": "jit.cuda:compile_job",
}
"""Each job as ``module:function`` from bytes to bytes. The module is imported when the job is first asked for; the function raises
ToolchainError for input that its compiler refuses."""

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
                module, _, name = JOBS[job].partition(":")
                functions[job] = getattr(importlib.import_module(module), name)
            answer = _encode((True, functions[job](payload)))
        except (ToolchainError, MemoryError, RecursionError) as error:
            answer = _encode((False, (str(error) or type(error).__name__).encode()))
        answers.write(struct.pack("<I", len(answer)) + answer)
        answers.flush()
    return 0


def _read(stream: BinaryIO) -> bytes | None:
    head = stream.read(4)
    return stream.read(struct.unpack("<I", head)[0]) if len(head) == 4 else None


if __name__ == "__main__":
    sys.exit(main())
