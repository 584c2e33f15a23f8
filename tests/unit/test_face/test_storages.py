"""Storages of the device: what torch.save, pickle, deepcopy and storage methods depend on."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import nn

from tests.support.device import same
from wooly.device.backend import HAS_SWAP, handle_of


def test_a_storage_says_cuda() -> None:
    storage = torch.ones(3, device="cuda").untyped_storage()
    assert storage.device == torch.device("cuda", 0) and storage.is_cuda and storage.nbytes() == 12
    assert storage.cpu().tolist() == torch.ones(3).untyped_storage().tolist() == storage.tolist()
    typed = torch.arange(3, device="cuda").storage()
    assert typed.device.type == "cuda" and typed.cpu().tolist() == [0, 1, 2]


def test_storages_are_made_filled_read_and_written() -> None:
    storage = torch.UntypedStorage(4, device="cuda")
    assert storage.tolist() == [0, 0, 0, 0]
    storage.fill_(7)
    storage[1] = 9
    assert storage[1] == 9 and storage.tolist() == [7, 9, 7, 7]
    assert torch.UntypedStorage([1, 2], device="cuda").tolist() == [1, 2]
    assert torch.TypedStorage(2, dtype=torch.float, device="cuda").tolist() == [0, 0]


def test_copies_between_storages() -> None:
    here = torch.arange(4, dtype=torch.uint8).untyped_storage()
    there = here.cuda()
    assert there.device.type == "cuda" and there.tolist() == [0, 1, 2, 3]
    clone = there.clone()
    clone.fill_(1)
    assert there.tolist() == [0, 1, 2, 3]
    here.copy_(clone)
    assert here.tolist() == [1, 1, 1, 1]
    with pytest.raises(RuntimeError, match="size does not match"):
        here.copy_(torch.UntypedStorage(2, device="cuda"))


def test_a_tensor_over_a_storage() -> None:
    storage = torch.arange(4.0, device="cuda").untyped_storage()
    x = torch.empty(0, device="cuda").set_(storage, 1, (2,))
    x += 10
    assert storage.cpu().tolist() == torch.tensor([0.0, 11, 12, 3]).untyped_storage().tolist()


def test_resizing() -> None:
    y = torch.arange(3.0, device="cuda")
    y.resize_(5)
    assert y.shape == (5,) and y[:3].tolist() == [0, 1, 2]
    x = torch.arange(3.0, device="cuda")
    if not HAS_SWAP:
        with pytest.raises(NotImplementedError, match="needs a newer torch"):
            x.untyped_storage().resize_(24)
        return
    x.untyped_storage().resize_(24)
    assert x.untyped_storage().nbytes() == 24 and x.tolist() == [0, 1, 2]
    x.untyped_storage().resize_(0)
    assert x.untyped_storage().nbytes() == 0


def test_save_and_deepcopy_keep_sharing() -> None:
    base = torch.arange(6.0, device="cuda")
    pair = (base, base[2:])
    buffer = io.BytesIO()
    torch.save(pair, buffer)
    buffer.seek(0)
    for again in (torch.load(buffer, weights_only=True), copy.deepcopy(pair)):
        same(again[1], torch.arange(2.0, 6.0))
        again[0][3] = -1
        assert again[1].tolist() == [2, -1, 4, 5] and handle_of(again[0]) == handle_of(again[1]) != handle_of(base)
    assert base.tolist() == [0, 1, 2, 3, 4, 5]
    same(pickle.loads(pickle.dumps(base[2:])), torch.arange(2.0, 6.0))
    parameter = pickle.loads(pickle.dumps(nn.Parameter(base)))
    assert isinstance(parameter, nn.Parameter) and parameter.is_cuda and parameter.requires_grad


def test_the_legacy_file_format() -> None:
    buffer = io.BytesIO()
    torch.save({"a": torch.ones(2, device="cuda")}, buffer, _use_new_zipfile_serialization=False)
    buffer.seek(0)
    same(torch.load(buffer, weights_only=True)["a"], torch.ones(2))


def test_a_checkpoint_of_a_device_that_is_not_here() -> None:
    buffer = io.BytesIO()
    torch.save(torch.ones(1), buffer)
    buffer.seek(0)
    with pytest.raises(RuntimeError, match=r"device 7 but torch\.cuda\.device_count\(\) is 1"):
        torch.load(buffer, map_location="cuda:7")


def test_shared_memory_is_a_no_op() -> None:
    x = torch.ones(2, device="cuda")
    assert x.share_memory_() is x and x.is_shared() and x.tolist() == [1, 1]
