"""Model files as torch and safetensors write them, and files that are broken."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from wooly.cli.group import CommandError
from wooly.cli.model_cache import DTYPES, model_files, read_tensors

KINDS = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool)


def state() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    made = {str(kind): (torch.randn(3, 5, dtype=torch.float64) * 50).to(kind) for kind in KINDS}
    return made | {"scalar": torch.tensor(7.0), "empty": torch.zeros(0, 4), "turned": torch.randn(4, 6).t()}


def bytes_of(tensor: torch.Tensor) -> bytes:
    return b"" if tensor.numel() == 0 else tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".bin"])
@pytest.mark.parametrize("dtype", [None, *DTYPES])
def test_tensors_are_what_torch_has(tmp_path: Path, suffix: str, dtype: str | None) -> None:
    path = tmp_path / f"model{suffix}"
    tensors = state()
    if suffix == ".safetensors":
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    else:
        torch.save(tensors, path)
    found = {tensor.name: tensor for tensor in read_tensors(path, dtype)}
    assert found.keys() == tensors.keys()
    target = {None: None, "f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}[dtype]
    for name, tensor in tensors.items():
        expected = tensor.to(target) if target is not None and tensor.is_floating_point() else tensor
        assert found[name].shape == tuple(tensor.shape)
        assert bytes(found[name].data) == bytes_of(expected), name


def test_conversion_rounds_as_torch_does(tmp_path: Path) -> None:
    bits = torch.arange(0, 1 << 32, 65537 * 3, dtype=torch.int64).to(torch.int32)
    values = torch.cat([bits.view(torch.float32), torch.tensor([65504.0, 65520.0, 1e-8, -0.0, float("inf")])])
    values = values[~values.isnan()]
    save_file({"x": values}, tmp_path / "x.safetensors")
    for dtype, kind in (("f16", torch.float16), ("bf16", torch.bfloat16)):
        (tensor,) = read_tensors(tmp_path / "x.safetensors", dtype)
        assert bytes(tensor.data) == bytes_of(values.to(kind))


@pytest.mark.parametrize("key", ["state_dict", "model"])
def test_weights_inside_a_checkpoint_are_found(tmp_path: Path, key: str) -> None:
    torch.save({key: {"w": torch.ones(3)}, "epoch": 3, "optimizer": {"lr": 0.1}}, tmp_path / "c.pt")
    assert [tensor.name for tensor in read_tensors(tmp_path / "c.pt", None)] == ["w"]


def test_a_folder_is_its_safetensors_else_what_torch_saved(tmp_path: Path) -> None:
    for name in ("b.bin", "a.bin", "config.json"):
        (tmp_path / name).write_bytes(b"")
    assert [path.name for path in model_files(tmp_path)] == ["a.bin", "b.bin"]
    (tmp_path / "m.safetensors").write_bytes(b"")
    assert [path.name for path in model_files(tmp_path)] == ["m.safetensors"]


@pytest.mark.parametrize(
    ("name", "reason"), [("absent.pt", "does not exist"), ("notes.txt", "use a .safetensors"), ("empty", "holds no .safetensors")]
)
def test_sources_that_are_no_models(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CommandError, match=reason):
        model_files(tmp_path / name)


def header(**tensors: Any) -> bytes:
    text = json.dumps(tensors).encode()
    return struct.pack("<Q", len(text)) + text


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "it has 0 bytes"),
        (b"\xff" * 20, "its header would have"),
        (struct.pack("<Q", 4) + b"nope", "its header cannot be read"),
        (struct.pack("<Q", 2) + b"[]", "its header cannot be read"),
        (header(x={"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}) + b"1234567", "the file is cut off"),
        (header(x={"dtype": "F32", "shape": [2], "data_offsets": [0, 7]}) + b"1234567", "'x' has 8 bytes"),
        (header(x={"dtype": "F32", "shape": [2], "data_offsets": [-8, 0]}) + b"12345678", "its place is -8..0"),
        (header(x={"dtype": "F3", "shape": [2], "data_offsets": [0, 8]}) + b"12345678", "type F3, which is not known"),
        (header(x={"dtype": "F32"}), "not described"),
        (header(x=7), "not described"),
        (header(x={"dtype": "F32", "shape": [2], "data_offsets": [0]}), "not described"),
    ],
)
def test_broken_safetensors_are_named(tmp_path: Path, data: bytes, reason: str) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(data)
    with pytest.raises(CommandError) as caught:
        list(read_tensors(path, None))
    assert reason in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("saved", "reason"),
    [
        ([1, 2], "holds no state dict"),
        ({"epoch": 3}, "holds no state dict"),
        (torch.ones(2), "holds no state dict"),
        ({"x": torch.eye(3).to_sparse()}, "'x' is sparse"),
        (Path("x"), "not a state dict that torch can load safely"),
    ],
)
def test_other_things_that_torch_saved_are_named(tmp_path: Path, saved: Any, reason: str) -> None:
    path = tmp_path / "m.pt"
    torch.save(saved, path)
    with pytest.raises(CommandError) as caught:
        list(read_tensors(path, None))
    assert reason in str(caught.value)
    path.write_bytes(b"PK garbage")
    with pytest.raises(CommandError, match="not a state dict"):
        list(read_tensors(path, None))
