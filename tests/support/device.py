"""The device switched on in the test's own process, over the loopback link."""

from __future__ import annotations

from typing import Any, Final

import torch

from tests.support.loopback import LoopbackLink
from wooly.activation import activate
from wooly.config import Config
from wooly.device import install

__all__ = ["switch_on", "link", "same", "address_of"]

_links: Final[dict[int, LoopbackLink]] = {}


def link(index: int = 0) -> LoopbackLink:
    """The one link of this process for a device."""
    if index not in _links:
        _links[index] = LoopbackLink()
    return _links[index]


def switch_on() -> None:
    """Once a process: later calls do nothing, because torch cannot be switched back."""
    torch.set_num_threads(1)
    if not install.installed():
        activate(Config(), link)


def address_of(tensor: torch.Tensor) -> int:
    """Of the first element of one of our tensors, as kernels see it."""
    pointer: Any = tensor.data_ptr()  # ours, which torch declares as a number
    return int(pointer.address)


def same(ours: torch.Tensor, expected: torch.Tensor) -> None:
    """``ours`` is on the device and has the values, type, shape and strides of ``expected``, which is on the CPU."""
    assert ours.device == torch.device("cuda", torch.cuda.current_device())
    assert ours.dtype == expected.dtype and ours.shape == expected.shape and ours.stride() == expected.stride()
    torch.testing.assert_close(ours.cpu(), expected)
