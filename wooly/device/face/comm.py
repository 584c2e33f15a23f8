"""The C functions below torch.cuda.comm, for one device: what nn.DataParallel calls when it has nothing to spread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from wooly.device.face.api import Face, put
from wooly.device.face.devices import index_of, ours

__all__ = ["patch"]


def _to(tensor: Tensor, index: Any) -> Tensor:
    return tensor.to(ours(index_of(index)))


def _scatter(
    tensor: Tensor, devices: Sequence[int], chunk_sizes: Sequence[int] | None, dim: int, streams: Any = None
) -> tuple[Tensor, ...]:
    chunks = tensor.split_with_sizes(list(chunk_sizes), dim) if chunk_sizes else tensor.chunk(len(devices), dim)
    return tuple(_to(chunk, device) for chunk, device in zip(chunks, devices, strict=False))


def _gather(tensors: Sequence[Tensor], dim: int, destination: int | None) -> Tensor:
    joined = torch.cat(list(tensors), dim)
    return joined.cpu() if destination == -1 else _to(joined, destination)


def _broadcast(tensor: Tensor, devices: Sequence[int]) -> list[Tensor]:
    return [_to(tensor, device) for device in devices]


def _broadcast_coalesced(tensors: Sequence[Tensor], devices: Sequence[int], buffer_size: int) -> list[list[Tensor]]:
    return [[_to(tensor, device) for tensor in tensors] for device in devices]


def _broadcast_out(tensor: Tensor, outs: Sequence[Tensor]) -> list[Tensor]:
    return [out.copy_(tensor) for out in outs]


def _scatter_out(tensor: Tensor, outs: Sequence[Tensor], dim: int, streams: Any = None) -> list[Tensor]:
    chunks = tensor.split_with_sizes([out.size(dim) for out in outs], dim)
    return [out.copy_(chunk) for out, chunk in zip(outs, chunks, strict=True)]


def _gather_out(tensors: Sequence[Tensor], out: Tensor, dim: int) -> Tensor:
    return out.copy_(torch.cat(list(tensors), dim))


def patch(face: Face) -> None:
    """Put them in place."""
    for function in (_scatter, _gather, _broadcast, _broadcast_coalesced, _broadcast_out, _scatter_out, _gather_out):
        put(torch._C, function.__name__, function)
