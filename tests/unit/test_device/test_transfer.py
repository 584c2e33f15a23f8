"""Bytes to the device and back, for every type and layout."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.support.device import link
from wooly.device.recorder import RECORDER

DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64,
    torch.complex64, torch.complex128, torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2, torch.complex32,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_round_trip_of_every_type(dtype: torch.dtype) -> None:
    x = torch.tensor([0, 1, 2, 100]).to(dtype)
    back = x.to("cuda").cpu()
    assert back.dtype == dtype and torch.equal(back.view(torch.uint8), x.view(torch.uint8))
    filled = torch.zeros(4, dtype=dtype).to("cuda")
    filled.copy_(x)
    assert torch.equal(filled.cpu().view(torch.uint8), x.view(torch.uint8))


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x,
        lambda x: x.t(),
        lambda x: x[1:, ::2],
        lambda x: x[:, 0],
        lambda x: x.expand(2, 4, 6),
        lambda x: x[2, 3],
        lambda x: x[:0],
        lambda x: x.as_strided((3, 3), (1, 1)),
    ],
)
def test_layouts_fetched_and_uploaded(view: object) -> None:
    assert callable(view)
    x = torch.arange(24.0).reshape(4, 6)
    ours, cpu = view(x.to("cuda")), view(x)
    assert torch.equal(ours.cpu(), cpu)
    assert ours.cpu().stride() == cpu.clone().stride(), "a copy preserves what clone preserves"
    up = view(x).to("cuda")
    assert torch.equal(up.cpu(), cpu) and up.stride() == cpu.clone().stride()


def test_a_large_tensor_with_gaps_is_gathered_on_the_device_first() -> None:
    """Fetching one column of a large matrix must not move the matrix."""
    x = torch.arange(1 << 20, dtype=torch.float64, device="cuda").reshape(-1, 64)
    before = RECORDER.counters.fetch_bytes
    assert torch.equal(x[:, 3].cpu(), torch.arange(3, 1 << 20, 64, dtype=torch.float64))
    assert RECORDER.counters.fetch_bytes - before == 8 << 14


def test_an_upload_is_a_snapshot() -> None:
    x = torch.ones(3)
    y = x.to("cuda")
    x.zero_()
    assert y.tolist() == [1, 1, 1]


def test_copy_between_devices_converts_and_broadcasts() -> None:
    x = torch.zeros(2, 3, device="cuda")
    x.copy_(torch.tensor([1, 2, 3]))
    assert x.tolist() == [[1, 2, 3]] * 2
    here = torch.zeros(2, 3, dtype=torch.int32)
    here.copy_(x)
    assert here.tolist() == [[1, 2, 3]] * 2
    assert x.to(torch.float64).to("cpu", torch.int16).tolist() == [[1, 2, 3]] * 2
    assert torch.zeros_like(x, device="cpu").device.type == "cpu"


def test_item_equal_and_truth() -> None:
    x = torch.tensor([[1.5]], device="cuda")
    assert x.item() == 1.5 and bool(x > 1) and not bool(x > 2) and int(x) == 1 and f"{x.sum():.2f}" == "1.50"
    assert torch.equal(x, torch.tensor([[1.5]], device="cuda")) and not torch.equal(x, x + 1) and not torch.equal(x, x[0])


def test_buffers_are_freed_when_their_last_view_dies() -> None:
    RECORDER.synchronize()
    x = torch.ones(1000, device="cuda")
    view = x[10:20].detach()
    RECORDER.synchronize()
    held = set(link().handles)
    del x
    RECORDER.synchronize()
    assert link().handles == held, "a view keeps its buffer"
    del view
    RECORDER.synchronize()
    assert len(held - link().handles) == 1


def test_what_is_made_and_dropped_between_flushes_never_reaches_the_node() -> None:
    RECORDER.synchronize()
    held = set(link().handles)
    for _ in range(3):
        ((torch.ones(4, device="cuda") + 1) * 2).relu_()
        torch.empty(5, device="cuda")
        torch.arange(3).to("cuda")
    RECORDER.synchronize()
    assert link().handles == held


@pytest.mark.parametrize(
    "make",
    [
        lambda dtype: torch.empty(3, dtype=dtype, device="cuda"),
        lambda dtype: torch.empty_strided((3, 2), (1, 3), dtype=dtype, device="cuda"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.int64, torch.uint8, torch.bool])
def test_deterministic_algorithms_fill_uninitialized_memory(make: Callable[[torch.dtype], torch.Tensor], dtype: torch.dtype) -> None:
    torch.use_deterministic_algorithms(True)
    try:
        filled = make(dtype)
        torch.utils.deterministic.fill_uninitialized_memory = False
        plain = make(dtype)
        torch.utils.deterministic.fill_uninitialized_memory = True
        expected = torch.empty(filled.shape, dtype=dtype)
    finally:
        torch.use_deterministic_algorithms(False)
    torch.testing.assert_close(filled.cpu(), expected, equal_nan=True)
    assert not plain.cpu().any()
