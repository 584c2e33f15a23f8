"""Arrays of numba.cuda on the device behave as NumPy's do. (Its kernels run in tests/ecosystem, where Numba is installed.)"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from wooly.errors import KernelArgumentError
from wooly.kernels.numba import as_cuda_array, device_array, device_array_like, to_device

POINTS = np.dtype([("x", "f4"), ("n", "u2"), ("y", "f8")])


@pytest.mark.parametrize(
    "of",
    [
        lambda a: a[1],
        lambda a: a[:, 2],
        lambda a: a[::2, 1:3],
        lambda a: a[::-1],
        lambda a: a[1:1],
        lambda a: a.T,
        lambda a: a.T[2:, 1],
        lambda a: a.reshape(2, 6)[1],
        lambda a: a.ravel()[3:],
        lambda a: a[..., 1],
        lambda a: a[None, 1],
        lambda a: a.view(np.int32)[:, ::3],
    ],
)
def test_views_are_numpys(of: Callable[[Any], Any]) -> None:
    host = np.arange(12, dtype=np.float64).reshape(3, 4)
    device = to_device(host)
    found, want = of(device), of(host)
    assert (found.shape, found.strides, found.dtype) == (want.shape, want.strides, want.dtype)
    np.testing.assert_array_equal(found.copy_to_host(), want)
    found[...] = np.ones(found.shape, found.dtype)
    want[...] = np.ones(want.shape, want.dtype)
    np.testing.assert_array_equal(device.copy_to_host(), host)


@pytest.mark.parametrize("dtype", ["f4", "i8", "u2", "c8", "?", POINTS])
@pytest.mark.parametrize("order", ["C", "F"])
def test_any_type_and_order_comes_back(dtype: Any, order: Any) -> None:
    host = np.zeros((3, 2), dtype, order)
    host[1, 1] = 1
    device = to_device(host)
    found = device.copy_to_host()
    np.testing.assert_array_equal(found, host)
    assert (device.strides, device_array_like(host).strides) == (host.strides, host.strides)
    assert device[1, 1] == host[1, 1]


def test_a_tensor_and_its_array_are_one_memory() -> None:
    tensor = torch.arange(12.0, device="cuda").view(3, 4)
    array = as_cuda_array(tensor[1:].t())
    assert (array.shape, array.strides) == ((4, 2), (4, 16))
    array[0] = 7
    assert tensor[:, 0].tolist() == [0, 7, 7]
    tensor += 1
    assert array[3].copy_to_host().tolist() == [8, 12]


def test_memory_reaches_as_far_as_its_strides() -> None:
    array = device_array((3, 2), np.float64, strides=(64, 8))
    array[...] = np.arange(6.0).reshape(3, 2)
    assert array.copy_to_host().tolist() == [[0, 1], [2, 3], [4, 5]]


def test_memory_is_of_zeros_and_is_counted() -> None:
    before = torch.cuda.memory_allocated()
    array = device_array((256, 4), np.float32)
    assert torch.cuda.memory_allocated() == before + 4096
    assert not array.copy_to_host().any()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: as_cuda_array(x.bfloat16()), KernelArgumentError, r"numba\.cuda has no arrays of torch\.bfloat16"),
        (lambda x: as_cuda_array(x.requires_grad_()), RuntimeError, "on Variable that requires grad"),
        (lambda x: as_cuda_array(x.cpu()), TypeError, "doesn't implement the cuda array interface"),
        (lambda x: as_cuda_array(x)[[0, 1]], NotImplementedError, "needs a copy"),
        (lambda x: as_cuda_array(x).copy_to_device(np.zeros(3)), ValueError, "incompatible array: float64 of shape"),
        (lambda x: as_cuda_array(x)[4], IndexError, "out of bounds"),
    ],
)
def test_what_has_no_meaning_is_refused(call: Callable[[torch.Tensor], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(torch.zeros(4, device="cuda"))
