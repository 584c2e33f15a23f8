"""Runs the same rounds on rgpu 0.1.1 (PyPI, Apache-2.0), the nearest public alternative, with its server on the same cores.

Installed by ``make bench`` alone, without its dependencies (it asks for torch 2.14, and runs on 2.13).
``python -m benchmarks.rgpu NAME rgpu`` is its worker process.
"""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.stack import plain_environment

__all__ = ["installed", "server"]

_START_S = 60.0


def installed() -> bool:
    return importlib.util.find_spec("rgpu") is not None


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def server() -> Iterator[dict[str, str]]:
    """Run rgpu's server on this machine's CPU; the environment of its clients."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = plain_environment(
        OMP_NUM_THREADS=str(os.cpu_count() or 1), RGPU_OPSERVER=f"127.0.0.1:{port}", TORCH_DEVICE_BACKEND_AUTOLOAD="0"
    )
    command = [sys.executable, "-m", "rgpu.server", "--device", "cpu", "--bind", "127.0.0.1", "--port", str(port)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + _START_S
        while not _listens(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("rgpu's server did not start")
            time.sleep(0.05)
        yield environment
    finally:
        process.terminate()
        process.wait(30)


def main() -> None:
    import rgpu  # noqa: F401  (registers the device)

    from benchmarks.ops import OPS, op_round
    from benchmarks.workloads import WORKLOADS

    name = sys.argv[1]
    if name in OPS:
        call: Any = op_round(name, "rgpu")
    else:
        make, steps = WORKLOADS[name]
        step = make("rgpu")

        def call() -> dict[str, Any]:
            started = time.perf_counter()
            for _ in range(steps):
                last = step()
            last.cpu()
            return {"ms": (time.perf_counter() - started) / steps * 1e3}

    print(json.dumps({"device": "rgpu"}), flush=True)
    for _ in sys.stdin:
        print(json.dumps(call()), flush=True)


if __name__ == "__main__":
    main()
