"""Unmodified scripts on one base model: loaded in three ways, trained by one of them, held once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from tests.support.node import Node, until
from tests.support.stack import plain_environment

SCRIPT: Final = Path(__file__).parent / "scripts" / "tenants.py"
SHARED_BYTES_MIN: Final = 64 << 10
WAYS: Final = ("train", "head", "assign")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node(tmp_path, WOOLY_DEDUP_TRUST="train,head,assign", WOOLY_BACKEND="host", WOOLY_DEVICE_VRAM_MB="512") as node:
        yield node


class Job:
    """One script in its process, of the tenant called as its way to load."""

    def __init__(self, folder: Path, how: str, name: str, **environment: str) -> None:
        self.out = folder / f"{name}.pt"
        self._process = subprocess.Popen(
            [sys.executable, str(SCRIPT), str(self.out), str(folder / "base.safetensors"), how],
            env=plain_environment(**environment),
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(folder / f"{name}.log").open("w"),
            text=True,
        )

    def hear(self, word: str) -> list[str]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(word):
                return line.split()
        raise AssertionError(f"{self.out.stem} ended early: {self.out.with_suffix('.log').read_text()[-3000:]}")

    def go_on(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def result(self) -> Any:
        self.go_on()
        assert self._process.wait(120) == 0, self.out.with_suffix(".log").read_text()[-3000:]
        return torch.load(self.out)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


def base_model() -> nn.Module:
    torch.manual_seed(3)
    layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    for parameter in model.parameters():  # torch makes its layers equal, and equal layers would be held once
        if parameter.ndim == 2:
            nn.init.xavier_normal_(parameter)
    return model


def charged(node: Node) -> dict[str, int]:
    return {stats.tenant: stats.resident_bytes for stats in node.stats().sessions}


def test_one_base_for_three_scripts(node: Node, tmp_path: Path) -> None:
    weights = base_model().state_dict()
    save_file(weights, tmp_path / "base.safetensors")
    base = sum(tensor.nbytes for tensor in weights.values())
    shared = sum(tensor.nbytes for tensor in weights.values() if tensor.nbytes > SHARED_BYTES_MIN)
    assert shared > 0.98 * base
    alone = {how: Job(tmp_path, how, f"{how}-alone") for how in WAYS}
    jobs = {}
    try:
        for how in WAYS:
            jobs[how] = Job(tmp_path, how, how, WOOLY_NATS_URL=node.nats.url, WOOLY_TENANT=how, WOOLYAI_WEIGHTS_DEDUP="1")
            _, allocated = jobs[how].hear("loaded")
            assert int(allocated) == base, "what a script sees of its own memory is all of it"
        assert sum(charged(node).values()) == shared + 3 * (base - shared), "once the base, and what is too small to be shared"
        assert until(lambda: max(charged(node).values()) < 0.4 * base, "each pays a third")

        jobs["train"].go_on()
        jobs["train"].hear("worked")
        assert charged(node)["train"] >= base, "the trainer has weights of its own now"
        assert sum(n for how, n in charged(node).items() if how != "train") == shared + 2 * (base - shared)
        for how in ("head", "assign"):
            jobs[how].go_on()
            jobs[how].hear("worked")
        for how in WAYS:
            alone[how].hear("loaded")
            alone[how].go_on()
            mine, expected = jobs[how].result(), alone[how].result()
            torch.testing.assert_close(mine["results"], expected["results"], rtol=2e-4, atol=1e-5)
            if how == "train":
                torch.testing.assert_close(mine["weights"], expected["weights"], rtol=2e-4, atol=1e-5)
                assert not torch.equal(mine["weights"][0], weights["layers.0.self_attn.in_proj_weight"])
            else:
                for ours, given in zip(mine["weights"], base_model().parameters(), strict=True):
                    assert torch.equal(ours, given), "bit for bit what was loaded, although another trained it meanwhile"
    finally:
        for job in (*alone.values(), *jobs.values()):
            job.end()
