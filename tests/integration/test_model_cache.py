"""``wooly model-cache`` against a real node: what it keeps need not be sent, damaged or not, before and after a restart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tests.support.command import Wooly, command_in
from tests.support.node import Node
from wooly.link import Flush
from wooly.session import Session

MIB = 1 << 20


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    key = tmp_path / "at-rest.key"
    key.write_text("5a" * 32 + "\n")
    caches = {"WOOLY_MODEL_CACHE_MB": "24", "WOOLY_AT_REST_KEY_FILE": str(key)}
    with Node(tmp_path, WOOLY_DEDUP_TRUST="a,b", WOOLY_DEVICE_VRAM_MB="512", **caches) as node:
        yield node


@pytest.fixture
def wooly(node: Node, tmp_path: Path) -> Wooly:
    call = command_in(tmp_path)
    return lambda *arguments, **environ: call(*arguments, **({"WOOLY_NATS_URL": node.nats.url, "WOOLY_TENANT": "a"} | environ))


def weights(seed: int = 0) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    return {f"layer{at}.weight": torch.randn(1024, 1024) for at in range(2)} | {"head": torch.randn(1300, 1111), "bias": torch.randn(64)}


def nbytes(model: dict[str, torch.Tensor]) -> int:
    return sum(tensor.nbytes for tensor in model.values())


def listed(wooly: Wooly, **environ: str) -> list[dict[str, Any]]:
    done = wooly("model-cache", "list", "--json", **environ)
    assert done.returncode == 0, done.stderr
    models: list[dict[str, Any]] = json.loads(done.stdout)["models"]
    return models


def load(session: Session, model: dict[str, torch.Tensor]) -> int:
    """Upload the model; bytes that travelled. What the device holds is what was given."""
    before = session.wire_bytes
    arrays = [tensor.contiguous().view(torch.uint8).numpy().reshape(-1) for tensor in model.values()]
    session.submit(Flush(uploads=[(1 + at, memoryview(array)) for at, array in enumerate(arrays)]))
    sent = session.wire_bytes - before
    reads = [(1 + at, 0, array.nbytes) for at, array in enumerate(arrays)]
    for array, found in zip(arrays, session.wait(session.submit(Flush(reads=reads))), strict=True):
        assert np.array_equal(array, np.frombuffer(found, np.uint8))
    return sent


def chunk_files(node: Node) -> list[Path]:
    return [path for path in (node.folder / "server" / "model-cache" / "chunks").rglob("*") if path.is_file()]


def test_what_was_added_is_uploaded_without_bytes(node: Node, wooly: Wooly, tmp_path: Path) -> None:
    model = weights()
    save_file(model, tmp_path / "base.safetensors")
    assert wooly("model-cache", "list").stdout.startswith("no models")
    added = wooly("model-cache", "add", "--source", "base.safetensors")
    assert added.returncode == 0, added.stderr
    assert added.stdout.startswith("base: 4 tensors")
    again = json.loads(wooly("model-cache", "add", "--source", "base.safetensors", "--json").stdout)
    assert again["sent_bytes"] < again["nbytes"] // 100
    on_disk = b"".join(path.read_bytes() for path in chunk_files(node))
    assert not [key for key, tensor in model.items() if tensor.numpy().tobytes()[:32] in on_disk], "it is encrypted"
    states = {finding["name"]: finding["text"] for finding in json.loads(wooly("doctor", "--json").stdout)}
    assert states["model cache"].startswith("encrypted on ")
    (entry,) = listed(wooly)
    assert (entry["name"], entry["tensors"], entry["nbytes"], entry["chunks"]) == ("base", 4, nbytes(model), 5)
    assert (entry["chunks_missing"], entry["holders"], entry["resident_bytes"]) == (0, 0, 0)

    first = node.open(tenant="a", weights_dedup=True)
    assert load(first, model) < nbytes(model) // 100
    second = node.open(tenant="b", weights_dedup=True)
    assert load(second, model) < nbytes(model) // 100
    stranger = node.open(tenant="c", weights_dedup=True)
    assert load(stranger, model) > nbytes(model)
    private = node.open(tenant="a")
    assert load(private, model) > nbytes(model)
    (entry,) = listed(wooly)
    assert (entry["holders"], entry["resident_bytes"]) == (2, nbytes(model) - model["bias"].nbytes)
    assert listed(wooly, WOOLY_TENANT="b") == [entry]
    assert listed(wooly, WOOLY_TENANT="c") == []

    node.stop_server()
    node.start_server()
    assert load(node.open(tenant="b", weights_dedup=True), model) < nbytes(model) // 100
    deleted = wooly("model-cache", "delete", "base")
    assert deleted.stdout.startswith("base: deleted"), deleted.stderr
    assert chunk_files(node) == []
    assert wooly("model-cache", "delete", "base").returncode == 2


def test_types_are_converted_and_folders_of_torch_files_kept(node: Node, wooly: Wooly, tmp_path: Path) -> None:
    model = weights()
    folder = tmp_path / "sharded"
    folder.mkdir()
    for at, (key, tensor) in enumerate(model.items()):
        torch.save({key: tensor}, folder / f"part{at}.bin")
    added = wooly("model-cache", "add", "--source", "sharded", "--dtype", "bf16", "--name", "org/base@1")
    assert added.returncode == 0, added.stderr
    half = {key: tensor.bfloat16() for key, tensor in model.items()}
    assert listed(wooly)[0] | {"gpu": 0} == {
        "gpu": 0, "name": "org/base@1", "dtype": "bf16", "tensors": 4, "nbytes": nbytes(half), "chunks": 4, "chunks_missing": 0,
        "holders": 0, "resident_bytes": 0,
    }  # fmt: skip
    assert load(node.open(tenant="a", weights_dedup=True), half) < nbytes(half) // 100


def test_a_damaged_chunk_comes_from_the_client_and_is_whole_again(node: Node, wooly: Wooly, tmp_path: Path) -> None:
    model = weights()
    save_file(model, tmp_path / "base.safetensors")
    wooly("model-cache", "add", "--source", "base.safetensors")
    damaged = max(chunk_files(node), key=lambda path: path.stat().st_size)
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 1
    damaged.write_bytes(data)
    assert 4 * MIB < load(node.open(tenant="a", weights_dedup=True), model) < 5 * MIB, "one chunk of four"
    assert listed(wooly)[0]["chunks_missing"] == 0
    for path in chunk_files(node):
        path.write_bytes(b"")
    again = json.loads(wooly("model-cache", "add", "--source", "base.safetensors", "--json").stdout)
    assert again["sent_bytes"] > again["nbytes"]


BAD_REQUESTS = (
    (("add", "--source", "absent.pt"), "absent.pt does not exist"),
    (("add", "--source", "base.safetensors", "--dtype", "int4"), "--dtype int4 is not known; use f16, bf16, f32"),
    (("add", "--source", "base.safetensors", "--name", "a b"), "cannot be called 'a b'"),
    (("add", "--source", "broken.safetensors"), "the file is cut off"),
    (("add", "--source", "large.safetensors"), "raise WOOLY_MODEL_CACHE_MB"),
    (("delete", "absent"), "there is no model 'absent'"),
    (("list", "--node", "absent"), "no node absent answers"),
    (("list", "--tenant", "a b"), "WOOLY_TENANT='a b'"),
)


def test_bad_requests_are_one_line_and_leave_nothing(node: Node, wooly: Wooly, tmp_path: Path) -> None:
    save_file({"x": torch.randn(8)}, tmp_path / "base.safetensors")
    save_file({"x": torch.randn(1024, 1024), "y": torch.randn(2048, 4096)}, tmp_path / "large.safetensors")
    (tmp_path / "broken.safetensors").write_bytes((tmp_path / "large.safetensors").read_bytes()[: 5 * MIB])
    for arguments, reason in BAD_REQUESTS:
        done = wooly("model-cache", *arguments)
        assert done.returncode == 2, arguments
        assert reason in done.stderr
        assert done.stderr.count("\n") == 1
    assert listed(wooly) == []
    assert chunk_files(node) == []
