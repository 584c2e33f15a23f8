"""``torch.cuda._compile_kernel``: torch's own way to a CUDA C++ kernel, on our device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from wooly.device.face.api import Face, put, wrapping

__all__ = ["patch"]


class _CompiledKernel:
    """Called as torch's is: ``kernel(grid, block, args, shared_mem, stream)``; launches are in order with the device's other work."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw

    def __call__(
        self,
        grid: Sequence[int] = (1, 1, 1),
        block: Sequence[int] = (1, 1, 1),
        args: Sequence[Any] | None = None,
        shared_mem: int = 0,
        stream: Any = None,
    ) -> None:
        self._raw(grid, block, args or (), shared_mem=shared_mem)

    def set_shared_memory_config(self, shared_mem_bytes: int) -> None:
        """Nothing needs to be configured; too much is an error of the launch."""


def patch(face: Face) -> None:
    original = torch.cuda._compile_kernel

    @wrapping(original)
    def compile_kernel(
        kernel_source: str,
        kernel_name: str,
        compute_capability: str | None = None,
        cuda_include_dirs: Sequence[str] | None = None,
        nvcc_options: Sequence[str] | None = None,
    ) -> _CompiledKernel:
        from wooly.kernels.raw import RawKernel  # the compiler's library is looked for when it is first needed

        options = [f"-arch=compute_{compute_capability}"] if compute_capability else []
        options += [f"-I{folder}" for folder in cuda_include_dirs or ()]
        raw = RawKernel(kernel_source, kernel_name, (*options, *(nvcc_options or ())))
        raw.compile()
        return _CompiledKernel(raw)

    put(torch.cuda, "_compile_kernel", compile_kernel)
