"""Errors of the engine: one tree; the class says whose fault it is."""

from __future__ import annotations


class JitError(Exception):
    """Any failure of the engine that a caller may want to handle."""


class UnknownBackend(JitError):
    """The operator's fault: the configured backend does not exist or cannot run here."""


class OutOfMemory(JitError):
    """The tenant's fault: the device's configured capacity does not hold the request."""

    def __init__(self, wanted_bytes: int, used_bytes: int, capacity_bytes: int) -> None:
        super().__init__(
            f"cannot allocate {wanted_bytes} bytes: {used_bytes} of {capacity_bytes} bytes are in use; free tensors or use a smaller batch"
        )
        self.wanted_bytes = wanted_bytes
        self.used_bytes = used_bytes
        self.capacity_bytes = capacity_bytes


class BadBuffer(JitError):
    """The caller's fault: a key that does not exist (or exists already), or a range outside the buffer."""


class Interrupted(JitError):
    """The run was stopped through ``Engine.interrupt``; buffers it wrote hold part of the result."""


class ToolchainError(JitError):
    """Our fault or the machine's: code generation failed, or a library the backend needs is missing."""


class Inexpressible(JitError):
    """A back end has no native form of an operation for these operands; the reference executes it."""


class Unspelled(JitError):
    """A kernel uses something that the C library lacks; run it on another back end."""


class KernelRefused(JitError):
    """The tenant's fault: this device cannot run the kernel (block shape, shared memory), or compiling it took more than is allowed."""


class Unfinished(JitError):
    """Compiling reached the time limit of its caller (jit.compiling.process.pausing_after); the same call again continues it."""
