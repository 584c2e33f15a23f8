"""Train a 4-layer GPT on the characters of Python's licence and its library's docstrings, then let it write. Plain PyTorch."""

import argparse
import inspect
import pathlib
import sysconfig

import torch
import torch.nn.functional as F
from rich.progress import track
from torch import nn

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=260)
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--context", type=int, default=128)
parser.add_argument("--width", type=int, default=256)
parser.add_argument("--layers", type=int, default=4)
parser.add_argument("--heads", type=int, default=4)
parser.add_argument("--sample", type=int, default=120, help="characters to write at the end")
args = parser.parse_args()

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
print(f"training on {torch.cuda.get_device_name() if device == 'cuda' else 'the CPU'}")


def read_text():
    """The licence that comes with Python where it is installed, and the docstrings of some of its modules."""
    import asyncio
    import collections
    import datetime
    import decimal
    import json
    import logging
    import os
    import random
    import re
    import shutil
    import statistics
    import subprocess
    import typing

    modules = [
        argparse,
        asyncio,
        collections,
        datetime,
        decimal,
        json,
        logging,
        os,
        pathlib,
        random,
        re,
        shutil,
        statistics,
        subprocess,
        typing,
    ]
    parts = []
    for module in modules:
        members = [m for _, m in sorted(vars(module).items()) if inspect.isclass(m) or inspect.isfunction(m)]
        parts += [inspect.getdoc(m) or "" for m in [module, *members]]
    licence = pathlib.Path(sysconfig.get_path("stdlib")) / "LICENSE.txt"
    if licence.exists():
        parts.append(licence.read_text())
    return "\n\n".join(part for part in parts if part)


text = "".join(c for c in read_text() if c == "\n" or 32 <= ord(c) < 127)
alphabet = sorted(set(text))
code_of = {c: i for i, c in enumerate(alphabet)}
data = torch.tensor([code_of[c] for c in text])
print(f"{len(text):,} characters, {len(alphabet)} of them different")


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in self.qkv(self.norm1(x)).split(width, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, vocabulary, context, width, layers, heads):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.register_buffer("index", torch.arange(context))

    def forward(self, x):
        h = self.tokens(x) + self.positions(self.index[: x.shape[1]])
        return self.head(self.norm(self.blocks(h)))


model = GPT(len(alphabet), args.context, args.width, args.layers, args.heads).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
print(f"{sum(p.numel() for p in model.parameters()):,} parameters")

losses = []
for _step in track(range(args.steps), description="char-gpt"):
    at = torch.randint(len(data) - args.context - 1, (args.batch,))
    x = torch.stack([data[i : i + args.context] for i in at]).to(device)
    y = torch.stack([data[i + 1 : i + 1 + args.context] for i in at]).to(device)
    loss = F.cross_entropy(model(x).view(-1, len(alphabet)), y.view(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.detach())
losses = torch.stack(losses).cpu()
print(f"loss {losses[0].item():.3f} -> {losses[-10:].mean().item():.3f}")

model.eval()
written = torch.tensor([[code_of["T"]]], device=device)
with torch.no_grad():
    for _ in range(args.sample):
        logits = model(written[:, -args.context :])[:, -1] / 0.8
        written = torch.cat([written, torch.multinomial(F.softmax(logits, dim=-1), 1)], dim=1)
print("--- sample\n" + "".join(alphabet[i] for i in written[0].tolist()))
