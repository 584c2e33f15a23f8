"""Scripts that are measured: three kinds of inference and three of training, plain PyTorch.

Inference is a function of the request's number whose answer the script looks at; training is one step whose result is not read. Weights and
data are made on the device, so that a recording holds no tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import nn

__all__ = ["INFERENCE", "KINDS", "TRAINING", "Step"]

Step = Callable[[int], Any]


def decode(device: str) -> Step:
    """Short kernels: one token through a transformer of 4 layers, width 128, its cache of 64 positions full."""
    width, heads, layers, length = 128, 4, 4, 64
    keys = [torch.randn(1, heads, length, width // heads, device=device) for _ in range(2 * layers)]
    tokens = nn.Embedding(512, width, device=device)
    qkv = nn.ModuleList(nn.Linear(width, 3 * width, device=device) for _ in range(layers))
    out = nn.ModuleList(nn.Linear(width, width, device=device) for _ in range(layers))
    mlp = nn.ModuleList(
        nn.Sequential(nn.Linear(width, 4 * width, device=device), nn.GELU(), nn.Linear(4 * width, width, device=device))
        for _ in range(layers)
    )
    norms = nn.ModuleList(nn.LayerNorm(width, device=device) for _ in range(2 * layers))
    head = nn.Linear(width, 512, device=device)

    @torch.inference_mode()
    def step(number: int) -> Any:
        x = tokens(torch.tensor([[number % 512]], device=device))
        for at in range(layers):
            q, _, _ = (t.view(1, 1, heads, -1).transpose(1, 2) for t in qkv[at](norms[2 * at](x)).split(width, dim=2))
            y = F.scaled_dot_product_attention(q, keys[2 * at], keys[2 * at + 1])
            x = x + out[at](y.transpose(1, 2).reshape(1, 1, width))
            x = x + mlp[at](norms[2 * at + 1](x))
        return head(x).argmax(-1).tolist()

    return step


def products(device: str) -> Step:
    """Long kernels: 192 tokens through three products of width 1024."""
    tokens = torch.randn(512, 1024, device=device)
    layers = nn.Sequential(
        nn.Linear(1024, 1024, device=device), nn.ReLU(), nn.Linear(1024, 1024, device=device), nn.ReLU(), nn.Linear(1024, 16, device=device)
    )
    index = torch.arange(192, device=device)

    @torch.inference_mode()
    def step(number: int) -> Any:
        x = tokens[(index + torch.tensor(number, device=device)) % 512]
        return layers(x).mean(0).tolist()

    return step


def long_context(device: str) -> Step:
    """Memory bound: one query of 8 heads against a cache of 12,288 positions (48 MiB), and a sum over a table of 16 MiB."""
    heads, length, width = 8, 12_288, 64
    key, value = (torch.randn(1, heads, length, width, device=device) for _ in range(2))
    table = torch.randn(65_536, 64, device=device)
    query = nn.Linear(64, heads * width, device=device)

    @torch.inference_mode()
    def step(number: int) -> Any:
        row = table[torch.tensor([number % 65_536], device=device)]
        q = query(row).view(1, heads, 1, width)
        y = F.scaled_dot_product_attention(q, key, value)
        return (y.sum(dim=(1, 2, 3)) + (table * row).sum()).tolist()

    return step


def train_mlp(device: str) -> Step:
    """Short kernels: three linear layers of width 256, batch 256, AdamW.

    With a batch of 64 a step is shorter than its way over the one core that bus, server and load generator share here: training then waits
    for that core, not for the device."""
    sizes = ((64, 256), (256, 256), (256, 10))
    first, second, last = (nn.Linear(*size, device=device) for size in sizes)
    model = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), last)
    x, y = torch.randn(256, 64, device=device), torch.randint(0, 10, (256,), device=device)
    return _train(model, torch.optim.AdamW(model.parameters(), lr=1e-3), lambda: F.cross_entropy(model(x), y))


def train_wide(device: str) -> Step:
    """Long kernels: two linear layers of width 1024, batch 256, SGD."""
    model = nn.Sequential(
        nn.Linear(1024, 1024, device=device), nn.ReLU(), nn.Linear(1024, 1024, device=device), nn.ReLU(), nn.Linear(1024, 10, device=device)
    )
    x, y = torch.randn(256, 1024, device=device), torch.randint(0, 10, (256,), device=device)
    return _train(model, torch.optim.SGD(model.parameters(), lr=1e-2), lambda: F.cross_entropy(model(x), y))


def train_table(device: str) -> Step:
    """Memory bound: an embedding table of 32 MiB with dense gradients, Adam over all of it."""
    table = nn.Embedding(131_072, 64, device=device)
    head = nn.Linear(64, 10, device=device)
    x, y = torch.randint(0, 131_072, (256,), device=device), torch.randint(0, 10, (256,), device=device)
    parameters = [*table.parameters(), *head.parameters()]
    return _train(nn.ModuleList([table, head]), torch.optim.Adam(parameters, lr=1e-3), lambda: F.cross_entropy(head(table(x)), y))


def _train(model: nn.Module, optimizer: torch.optim.Optimizer, loss: Callable[[], torch.Tensor]) -> Step:
    def step(number: int) -> None:
        value = loss()
        optimizer.zero_grad()
        value.backward()  # type: ignore[no-untyped-call]  # torch's own
        optimizer.step()

    return step


INFERENCE: Final[dict[str, Callable[[str], Step]]] = {"short": decode, "long": products, "memory": long_context}
TRAINING: Final[dict[str, Callable[[str], Step]]] = {"short": train_mlp, "long": train_wide, "memory": train_table}

KINDS: Final = {f"p0_{name}": one for name, one in INFERENCE.items()} | {f"train_{name}": one for name, one in TRAINING.items()}
