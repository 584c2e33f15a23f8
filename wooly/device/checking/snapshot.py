"""Copies of a call's tensors in this machine's memory: bytes as they were, with every alias between the tensors kept.

Tensors that view one buffer on the device view one buffer here, so an in-place operation on the copies does to each of them what it does
on the device.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from wooly.device import transfer
from wooly.device.backend import handle_of, is_ours, offset_of, storage_of
from wooly.device.lowering.values import span_nbytes
from wooly.device.recorder import RECORDER

_ALIGN: Final = 16
"""A copied range begins at a multiple of this many bytes, so that views of any type fit."""

_WHOLE_MAX: Final = 1 << 16
"""A buffer of at most this many bytes is copied whole: a write beside the views of the call is noticed too."""


def tensors_in(values: Iterable[Any]) -> list[torch.Tensor]:
    """Every tensor among ``values``, those in lists and tuples included, in order."""
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += tensors_in(value)
    return found


@dataclass(frozen=True, slots=True)
class View:
    """How one tensor looks at its buffer."""

    #: Number of the buffer in the snapshot.
    buffer: int
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    #: In elements, from the first copied byte.
    offset: int
    conj: bool
    neg: bool
    #: Whether the tensor lives on the device (else on this machine).
    ours: bool

    def over(self, buffer: torch.Tensor) -> torch.Tensor:
        """The tensor over ``buffer``, one byte an element."""
        tensor = torch.empty(0, dtype=self.dtype, device="cpu").set_(buffer.untyped_storage(), self.offset, self.size, self.stride)
        if self.conj:
            tensor = tensor.conj()
        return torch._neg_view(tensor) if self.neg else tensor


class Snapshot:
    """The tensors of one call, copied with one wait for the node. A call that has an undefined or a repeated tensor is no special case."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        #: Number of each buffer by (on the device, handle or address).
        self.keys: dict[tuple[bool, int], int] = {}
        #: Bytes of each buffer that are copied: first, and behind the last.
        self.spans: list[list[int]] = []
        spans = self.spans
        storages: list[Any] = []
        for tensor in tensors:
            key = _key(tensor)
            number = self.keys.setdefault(key, len(spans))
            low = offset_of(tensor) * tensor.dtype.itemsize
            high = span_nbytes(tensor.dtype.itemsize, tensor.size(), tensor.stride(), offset_of(tensor))
            if number == len(spans):
                storage = storage_of(tensor)
                storages.append(storage)
                spans.append([0, storage.nbytes()] if storage.nbytes() <= _WHOLE_MAX else [low, high])
            elif high:
                span = spans[number]
                span[0], span[1] = min(span[0], low), max(span[1], high)
        for span in spans:
            span[0] -= span[0] % _ALIGN
            span[1] = max(span)
        self.buffers = _copies(self.keys, storages, spans)
        self.views: dict[int, View] = {id(t): self._view(t, spans) for t in tensors}

    def _view(self, tensor: torch.Tensor, spans: Sequence[Sequence[int]]) -> View:
        number = self.keys[_key(tensor)]
        itemsize = tensor.dtype.itemsize
        offset = offset_of(tensor) - spans[number][0] // itemsize
        size, stride = tuple(tensor.size()), tuple(tensor.stride())
        return View(number, tensor.dtype, size, stride, max(offset, 0), tensor.is_conj(), tensor.is_neg(), is_ours(tensor))

    def tensors(self) -> tuple[dict[int, torch.Tensor], list[torch.Tensor]]:
        """Fresh CPU tensors by the id of their originals, and the fresh buffers (of bytes) under them."""
        buffers = [buffer.clone() for buffer in self.buffers]
        return {key: view.over(buffers[view.buffer]) for key, view in self.views.items()}, buffers


def _key(tensor: torch.Tensor) -> tuple[bool, int]:
    ours = is_ours(tensor)
    return ours, handle_of(tensor) if ours else storage_of(tensor)._cdata


def _copies(keys: dict[tuple[bool, int], int], storages: Sequence[Any], spans: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """The bytes of every span."""
    reads = [(handle, spans[i][0], spans[i][1] - spans[i][0]) for (ours, handle), i in keys.items() if ours and spans[i][1] > spans[i][0]]
    answers = iter(RECORDER.fetch(reads) if reads else ())
    copies = []
    for (ours, _), i in keys.items():
        low, high = spans[i]
        if ours:
            copies.append(transfer.bytes_tensor(next(answers) if high > low else b"", high - low))
        else:
            whole = torch.empty(0, dtype=torch.uint8, device="cpu").set_(storages[i])
            copies.append(whole[low:high].clone())
    return copies
