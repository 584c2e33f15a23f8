"""WOOLY_CHECK=cpu raises no false alarm: correct programs run to their end, and every operation of theirs has been compared."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.checking import run

_TRAINING = """
import torch
from torch import nn
torch.manual_seed(0)
device = "cuda"


class Block(nn.Module):
    def __init__(self, width=16, heads=2):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads = heads

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(self.norm(x)).reshape(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        return x + self.out(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, n, c))


def train(model, optimizer, x, y, steps=2, amp=False):
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=amp):
            loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return loss.item()
"""

PROGRAMS = {
    "mlp": """
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 4)).to(device)
x, y = torch.randn(6, 8, device=device), torch.randint(0, 4, (6,), device=device)
for kind in (torch.optim.Adam, torch.optim.SGD, lambda p: torch.optim.AdamW(p, fused=True), lambda p: torch.optim.AdamW(p, foreach=False)):
    train(model, kind(model.parameters()) if kind is not torch.optim.SGD else kind(model.parameters(), 0.1, momentum=0.9), x, y)
train(model, torch.optim.Adam(model.parameters()), x, y, amp=True)
""",
    "gpt": """
model = nn.Sequential(nn.Embedding(11, 16), Block(), Block(), nn.Linear(16, 11), nn.Flatten(0, 1)).to(device)
tokens = torch.randint(0, 11, (2, 7), device=device)
train(model, torch.optim.Adam(model.parameters()), tokens, tokens.flatten())
with torch.no_grad():
    logits = model.eval()(tokens)
    print(logits.topk(3).indices, logits.argmax(-1), torch.multinomial(logits.softmax(-1), 2))
""",
    "padding": """
model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2).to(device).eval()
x, padding = torch.randn(2, 5, 16, device=device), torch.arange(5, device=device) >= torch.tensor([[2], [4]], device=device)
with torch.no_grad():
    print(model(x, src_key_padding_mask=padding).sum())
nested = torch.nested.nested_tensor([torch.randn(2, 16), torch.randn(3, 16)], device=device)
print((nn.LayerNorm(16).to(device)(nested) * 2).to_padded_tensor(0.0).sum())
""",
    "cnn": """
model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout2d(0.2), nn.Flatten(),
                      nn.Linear(64, 3)).to(device, memory_format=torch.channels_last)
x = torch.randn(2, 3, 8, 8, device=device).to(memory_format=torch.channels_last)
train(model, torch.optim.Adam(model.parameters()), x, torch.tensor([0, 2], device=device))
model.eval()(x)
""",
    "tensors": """
x = torch.arange(24.0, device=device).reshape(4, 6)
x[1::2].mul_(2)                                  # a view in place
x.t()[2:].add_(x.t()[:4])                        # views of one buffer
y = torch.empty(0, device=device)
torch.add(x, 1, out=y)                           # out= of another size
torch.sort(torch.tensor([1.0, 1.0, 0.0], device=device))
s = torch.tensor([3.0, float("nan"), float("inf")], device=device)
print(s.max(), s.isnan().any(), (s / 0).sum(), x.cpu().sum(), bool((x > 3).any()), torch.equal(x, x.clone()))
z = torch.complex(x, x).conj()
print((z * z).abs().sum(), z.imag.sum(), torch.view_as_real(z.resolve_conj()).shape)
x[x > 5] = 0
x.index_put_((torch.tensor([0, 1]),), torch.tensor(1.0))
g = torch.Generator("cuda").manual_seed(1)
torch.rand(5, device=device, generator=g), torch.randn(5, device=device), torch.randperm(9, device=device)
torch.randint(3, 8, (9,), device=device), torch.empty(4, device=device).exponential_(), torch.bernoulli(torch.rand(9, device=device))
torch.zeros(3, device=device).uniform_(2, 4), torch.empty(1000, device=device).normal_()
print(torch.unique(torch.tensor([3, 1, 3], device=device)), torch.linalg.inv(torch.eye(3, device=device) * 2))
for bad in (lambda: x @ x, lambda: x + torch.ones(5, device=device), lambda: x.reshape(7), lambda: x + torch.ones(4, 6)):
    try:
        bad()
    except RuntimeError as error:
        assert type(error) is RuntimeError, error
    else:
        raise AssertionError("no error")
try:
    torch.ones(1, device="cuda:7")
except torch.AcceleratorError as error:
    assert "invalid device ordinal" in str(error)
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["reference", pytest.param("host", marks=pytest.mark.variant)])
def test_correct_programs_run_to_their_end(backend: str, tmp_path: Path) -> None:
    for name, text in PROGRAMS.items():
        (tmp_path / f"{name}.py").write_text(_TRAINING + text)
    ends = run([{"script": str(tmp_path / f"{name}.py")} for name in PROGRAMS], "--check", str(tmp_path / "out"), "--backend", backend)
    compared = 0
    for name, end in zip(PROGRAMS, ends, strict=True):
        assert end["code"] == 0, f"{name}: {end['error']}"
        now = int(re.match(r"\d+", end["summary"])[0])  # type: ignore[index]  # it begins with a number
        assert now > compared + 20, f"{name}: nothing was compared"
        compared = now
        assert "cannot compute" not in end["summary"], end["summary"]
    assert not (tmp_path / "out").exists()


def test_without_the_mode_nothing_of_it_is_loaded(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys, torch\nprint(torch.ones(2, device='cuda').sum().item(), 'wooly.device.checking' in sys.modules)\n")
    (end,) = run([{"script": str(script)}])
    assert end["printed"] == "2.0 False\n"
