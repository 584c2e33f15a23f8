"""One side of a comparison: a process that prepares one workload and runs a round of it for each command.

Protocol: one JSON line out when ready, then for every line in, one JSON line out: milliseconds a step, and our counters when there are any.
``python -m benchmarks.worker NAME DEVICE``
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import torch

from benchmarks.ops import OPS, op_round
from benchmarks.workloads import LARGE, WORKLOADS

_WARMUP_STEPS = 8


def _counters() -> dict[str, int]:
    """Our counters when this process runs on our device; nothing elsewhere."""
    if "WOOLY_NATS_URL" not in os.environ:
        return {}
    import wooly

    stats = wooly.stats()
    counts = {key: int(stats[key]) for key in ("waits", "batches", "wire_bytes", "ops")}
    return counts | {"fallbacks": sum(stats["fallbacks"].values())}


def _synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _round(step: Any, steps: int, device: str) -> dict[str, Any]:
    before = _counters()
    started = time.perf_counter()
    for _ in range(steps):
        step()
    issued = time.perf_counter()
    _synchronize(device)
    ended = time.perf_counter()
    after = _counters()
    counts = {key: (after[key] - before[key]) / steps for key in after}
    return {"ms": (ended - started) / steps * 1e3, "issue_ms": (issued - started) / steps * 1e3, "counts": counts}


def main() -> None:
    name, device = sys.argv[1:3]
    if name in OPS:
        call, steps = op_round(name, device), 0
    else:
        make, steps = (WORKLOADS | LARGE)[name]
        call = make(device)
        for _ in range(_WARMUP_STEPS):
            call()
        _synchronize(device)
    print(json.dumps({"torch": torch.__version__, "device": device}), flush=True)
    for _ in sys.stdin:
        print(json.dumps(call() if name in OPS else _round(call, steps, device)), flush=True)


if __name__ == "__main__":
    main()
