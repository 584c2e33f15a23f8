"""Mistakes raise what CUDA raises."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.support.device import link
from wooly.device.memory import MEMORY
from wooly.device.recorder import RECORDER

ROOT = Path(__file__).parents[3]


def test_mixed_devices() -> None:
    x = torch.ones(2, device="cuda")
    with pytest.raises(RuntimeError, match=r"Expected all tensors to be on the same device.* cuda:0 and cpu"):
        x + torch.ones(2)
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(2, 2) @ torch.ones(2, 2, device="cuda")
    with pytest.raises(RuntimeError, match="same device"):
        torch.cat([x, torch.ones(2)])
    assert (x + torch.tensor(2.0)).tolist() == [3, 3], "a 0-dim CPU tensor is a number"
    assert (x.half() * torch.tensor(2.0)).dtype == torch.float16
    assert (torch.arange(4, device="cuda")[torch.tensor([2, 1])]).tolist() == [2, 1], "CPU indices are moved"


def test_a_device_that_does_not_exist() -> None:
    for make in (lambda: torch.ones(2, device="cuda:7"), lambda: torch.ones(2).to("cuda:7"), lambda: torch.ones(2).cuda(7)):
        with pytest.raises(RuntimeError, match="invalid device ordinal"):
            make()


def test_writing_memory_that_overlaps() -> None:
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
        torch.zeros(3, device="cuda").expand(2, 3).add_(1)
    x = torch.arange(4.0, device="cuda")
    with pytest.raises(RuntimeError, match="some elements of the input tensor and the written-to tensor"):
        x[1:].add_(x[:-1])
    x.add_(x)
    x[:2].add_(x[2:])
    assert x.tolist() == [4, 8, 4, 6]


def test_wrong_shapes_and_types_raise_at_once_in_torchs_words() -> None:
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        torch.ones(2, 3, device="cuda") @ torch.ones(2, 3, device="cuda")
    with pytest.raises(RuntimeError, match="must match the size of tensor b"):
        torch.ones(2, device="cuda") + torch.ones(3, device="cuda")
    with pytest.raises(RuntimeError, match="can't be cast"):
        torch.ones(2, dtype=torch.int64, device="cuda").add_(1.5)
    with pytest.raises(IndexError):
        torch.ones(2, device="cuda").sum(3)


def test_an_index_out_of_range_shows_at_the_next_wait() -> None:
    x = torch.arange(3, device="cuda")[torch.tensor([7], device="cuda")]
    try:
        with pytest.raises(RuntimeError, match="device-side assert triggered"):
            x.cpu()
        torch.ones(1, device="cuda").add_(1)
        with pytest.raises(torch.AcceleratorError):  # as on CUDA, everything after it fails too
            torch.cuda.synchronize()
    finally:
        link().forget_fault()
    assert torch.ones(1, device="cuda").item() == 1


def test_out_of_memory_names_quota_use_and_request() -> None:
    torch.cuda.synchronize()
    kept = torch.empty(1 << 18, device="cuda")
    MEMORY.limit(MEMORY.allocated + (2 << 20))
    try:
        before = MEMORY.allocated
        with pytest.raises(torch.cuda.OutOfMemoryError, match=r"Tried to allocate 4.00 MiB. The quota of this task is .* are in use"):
            torch.empty(1 << 20, device="cuda")
        assert MEMORY.allocated <= before, "a refused request takes nothing"
        half = torch.empty(1 << 18, device="cuda")
        assert half.numel() == kept.numel()
    finally:
        MEMORY.limit(0)


def test_memory_counts() -> None:
    RECORDER.synchronize()
    before = MEMORY.allocated
    MEMORY.reset_peak()
    x = torch.zeros(1000, device="cuda")
    y = x[1:]
    assert MEMORY.allocated - before == 4000
    z = x + 1
    del x, z
    assert MEMORY.allocated - before == 4000, "a view holds its buffer"
    del y
    assert MEMORY.allocated == before and MEMORY.peak - before == 8000


FORK = """
import os, sys, torch
from tests.support.device import switch_on
switch_on()
kept = torch.ones(2, device="cuda")
kept.sum().item()
refused = 0
pid = os.fork()
if pid == 0:
    for use in (lambda: torch.ones(2, device="cuda"), lambda: kept.add_(1), lambda: kept.cpu(), lambda: kept + 1):
        try:
            use()
        except RuntimeError as error:
            refused += "Cannot re-initialize CUDA in forked subprocess" in str(error)
    del kept
    os._exit(refused)
_, status = os.waitpid(pid, 0)
assert os.waitstatus_to_exitcode(status) == 4, status
assert (kept + 1).tolist() == [2, 2]
"""


def test_a_forked_child_is_refused_and_leaves_the_parent_whole() -> None:
    environment = os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", FORK], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
