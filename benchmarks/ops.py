"""Measures the cost of recording one operation, on tiny tensors, so that issuing dominates. Works with any device name."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import torch

__all__ = ["OPS", "op_round"]

_COUNT: Final = 1000

OPS: Final[dict[str, Callable[[dict[str, torch.Tensor]], Any]]] = {
    "add": lambda t: t["a"] + t["b"],
    "mul_scalar": lambda t: t["a"] * 1.5,
    "relu": lambda t: torch.relu(t["a"]),
    "mm": lambda t: torch.mm(t["a"], t["b"]),
    "add_": lambda t: t["c"].add_(t["b"]),
    "softmax": lambda t: torch.softmax(t["a"], -1),
    "cat": lambda t: torch.cat((t["a"], t["b"])),
    "embedding": lambda t: torch.nn.functional.embedding(t["i"], t["a"]),
}


def op_round(name: str, device: str) -> Callable[[], dict[str, Any]]:
    """A round of ``_COUNT`` calls; microseconds a call, the best of three after a warm-up, flushing included, execution not waited for."""
    operation = OPS[name]
    tensors = {key: torch.ones(4, 4).to(device) for key in "abc"} | {"i": torch.tensor([0, 3, 1]).to(device)}

    def one() -> float:
        started = time.perf_counter()
        for _ in range(_COUNT):
            operation(tensors)
        return (time.perf_counter() - started) / _COUNT * 1e6

    def round_() -> dict[str, Any]:
        best = float("inf")
        for _ in range(4):
            best = min(best, one())
            tensors["c"].cpu()  # what was issued is executed before the next repetition
        return {"us": best, "counts": {}}

    return round_
