"""Wooly: unmodified PyTorch programs on a machine without a GPU; the work runs on a shared node.

A script needs nothing from here: set ``WOOLY_NATS_URL``, or start it by ``wooly run``. Public names: ``__version__``, ``stats()``,
``errors``, and ``RawKernel`` and ``RawModule`` for kernels in CUDA C++. Importing this package imports neither torch nor anything else that
is slow.

May live here: what runs in the user's process, and the command line. May not: imports of anything but ``wis`` and ``bus_schemas``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wooly import errors

if TYPE_CHECKING:
    from wooly.kernels.raw import RawKernel, RawModule

__all__ = ["RawKernel", "RawModule", "__version__", "errors", "stats"]

__version__ = "0.1.0"


def stats() -> dict[str, Any]:
    """Counters of this process: ``ops``, ``batches``, ``waits``, ``wire_bytes`` and ``fallbacks`` (a count for each operation).

    All zero when the device is not switched on.
    """
    import sys

    recorder = sys.modules.get("wooly.device.recorder")
    if recorder is None:
        return {"ops": 0, "batches": 0, "waits": 0, "wire_bytes": 0, "fallbacks": {}}
    counters: dict[str, Any] = recorder.stats()
    return counters


def __getattr__(name: str) -> Any:
    """The classes that need torch are imported when they are asked for."""
    if name in ("RawKernel", "RawModule"):
        from wooly.kernels import raw

        return getattr(raw, name)
    raise AttributeError(f"module 'wooly' has no attribute {name!r}")
