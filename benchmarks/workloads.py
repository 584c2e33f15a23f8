"""Workloads: functions of the device that return one step as a callable, in plain PyTorch.

A step does not look at its results; the worker waits once at the end of a round, as a training loop does at its log line.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import nn

__all__ = ["LARGE", "WORKLOADS", "Step"]

Step = Callable[[], Any]


def _train(model: nn.Module, optimizer: torch.optim.Optimizer, loss: Callable[[], torch.Tensor]) -> Step:
    def step() -> torch.Tensor:
        value = loss()
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        return value.detach()

    return step


def mlp(device: str) -> Step:
    """Three linear layers, batch 128, fused AdamW."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)).to(device)
    x, y = torch.randn(128, 64).to(device), torch.randint(0, 10, (128,)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    return _train(model, optimizer, lambda: F.cross_entropy(model(x), y))


def digits_cnn(device: str) -> Step:
    """The network of examples/digits.py, batch 128."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 2 * 2, 10),
    ).to(device)
    x, y = torch.randn(128, 1, 8, 8).to(device), torch.randint(0, 10, (128,)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    return _train(model, optimizer, lambda: F.cross_entropy(model(x), y))


class _Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in self.qkv(self.norm1(x)).split(width, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


def _gpt(
    device: str, *, layers: int, heads: int, width: int, vocabulary: int, batch: int, context: int, rate: float,
    fused: bool | None = None, dtype: torch.dtype = torch.float32,
) -> Step:  # fmt: skip
    """Training of a GPT; its forward pass under autocast where ``dtype`` is not f32."""
    torch.manual_seed(0)
    tokens, positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
    head = nn.Sequential(*(_Block(width, heads) for _ in range(layers)), nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False))
    model = nn.ModuleList([tokens, positions, head]).to(device)
    x, y = (torch.randint(0, vocabulary, (batch, context)).to(device) for _ in range(2))
    index = torch.arange(context).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, fused=fused)

    def loss() -> torch.Tensor:
        return F.cross_entropy(head(tokens(x) + positions(index)).view(-1, vocabulary).float(), y.view(-1))

    def autocast() -> torch.Tensor:
        with torch.autocast(device, dtype):
            return loss()

    return _train(model, optimizer, loss if dtype is torch.float32 else autocast)


def gpt_train(device: str) -> Step:
    """4 layers, width 256, batch 8 x 128, AdamW."""
    return _gpt(device, layers=4, heads=4, width=256, vocabulary=100, batch=8, context=128, rate=1e-3)


def llama_decode(device: str) -> Step:
    """One token of a 6-layer, width 256 Llama through transformers, its cache growing; greedy, the token looked at as generate does."""
    from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=4096,
    )
    model = LlamaForCausalLM(config).to(device).eval()
    state: dict[str, Any] = {}

    @torch.inference_mode()
    def step() -> int:
        if not state or state["length"] >= 192:
            cache = DynamicCache(config=config)
            logits = model(torch.ones(1, 64, dtype=torch.long, device=device), past_key_values=cache).logits
            state.update(cache=cache, token=logits[:, -1:].argmax(-1), length=64)
        out = model(state["token"], past_key_values=state["cache"])
        state["token"] = out.logits[:, -1:].argmax(-1)
        state["length"] += 1
        return int(state["token"].item())

    return step


def _gpt2_small(device: str, dtype: torch.dtype) -> Step:
    """12 layers, width 768, batch 16 x 512, fused AdamW."""
    return _gpt(
        device, layers=12, heads=12, width=768, vocabulary=16_384, batch=16, context=512, rate=1e-4, fused=True, dtype=dtype,
    )  # fmt: skip


def resnet(device: str) -> Step:
    """Eight residual blocks of two 3 x 3 convolutions, 64 to 256 channels, batch 64 of 32 x 32, SGD with momentum."""
    torch.manual_seed(0)

    class Residual(nn.Module):
        def __init__(self, before: int, after: int) -> None:
            super().__init__()
            stride = 1 if before == after else 2
            self.first = nn.Sequential(nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU())
            self.second = nn.Sequential(nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after))
            self.past = nn.Identity() if before == after else nn.Conv2d(before, after, 1, stride, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.relu(self.second(self.first(x)) + self.past(x))

    widths = [64, 64, 64, 128, 128, 128, 256, 256, 256]
    blocks = [Residual(a, b) for a, b in pairwise(widths)]
    model = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10)).to(device)
    x, y = torch.randn(64, 3, 32, 32).to(device), torch.randint(0, 10, (64,)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    return _train(model, optimizer, lambda: F.cross_entropy(model(x), y))


LARGE: Final[dict[str, tuple[Callable[[str], Step], int]]] = {
    "gpt2_small": (lambda device: _gpt2_small(device, torch.float32), 4),
    "gpt2_small_bf16": (lambda device: _gpt2_small(device, torch.bfloat16), 4),
    "resnet": (resnet, 10),
}
"""Those that need a GPU to be done in a reasonable time: name -> (maker, steps a round)."""

WORKLOADS: Final[dict[str, tuple[Callable[[str], Step], int]]] = {
    "mlp": (mlp, 100),
    "digits_cnn": (digits_cnn, 40),
    "gpt_train": (gpt_train, 6),
    "llama_decode": (llama_decode, 60),
}
"""Name -> (maker, steps a round)."""
