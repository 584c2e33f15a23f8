"""Whole training steps and decoding, call by call: every aten call has a lowering, and each computes what torch does."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.support.lowering_run import Mirror, run_lowering

torch.set_num_threads(1)


def check(step: Callable[[], Any]) -> Mirror:
    """Run ``step`` under a mirror; nothing may differ, nothing may lack a lowering."""
    torch.manual_seed(0)
    mode = Mirror()
    with mode:
        step()
    assert mode.wrong == []
    assert not mode.missing
    return mode


def train(model: nn.Module, optimizer: torch.optim.Optimizer, loss: Callable[[], torch.Tensor], steps: int = 2) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        value = loss()
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


Parameters = Iterable[nn.Parameter]
_O = torch.optim
OPTIMISERS: dict[str, Callable[[Parameters], _O.Optimizer]] = {
    "adamw_foreach": lambda p: _O.AdamW(p, foreach=True),
    "adamw_fused": lambda p: _O.AdamW(p, fused=True),
    "adamw_loop": lambda p: _O.AdamW(p, foreach=False),
    "adamw_amsgrad_maximize": lambda p: _O.AdamW(p, fused=True, amsgrad=True, maximize=True),
    "adam_fused_decay": lambda p: _O.Adam(p, fused=True, weight_decay=0.1),
    "adam_foreach_amsgrad": lambda p: _O.Adam(p, foreach=True, amsgrad=True),
    "sgd_fused_nesterov": lambda p: _O.SGD(p, lr=0.1, fused=True, momentum=0.9, nesterov=True, weight_decay=0.1),
    "sgd_fused_dampening": lambda p: _O.SGD(p, lr=0.1, fused=True, momentum=0.9, dampening=0.5, maximize=True),
    "sgd_foreach": lambda p: _O.SGD(p, lr=0.1, foreach=True, momentum=0.9),
    "adagrad_fused": lambda p: _O.Adagrad(p, fused=True, lr_decay=0.1, weight_decay=0.1),
    "rmsprop": lambda p: _O.RMSprop(p, foreach=True, centered=True, momentum=0.1),
    "adadelta": lambda p: _O.Adadelta(p, foreach=True),
    "nadam": lambda p: _O.NAdam(p, foreach=True),
    "radam": lambda p: _O.RAdam(p, foreach=True),
    "adamax": lambda p: _O.Adamax(p, foreach=True),
    "rprop": lambda p: _O.Rprop(p, foreach=True),
    "asgd": lambda p: _O.ASGD(p, foreach=True),
}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_optimisers(name: str) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
    optimizer = OPTIMISERS[name](model.parameters())
    x, y = torch.randn(5, 8), torch.tensor([0, 1, 2, 3, 0])
    check(lambda: train(model, optimizer, lambda: F.cross_entropy(model(x), y), 3))


@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.1}, {"ignore_index": 2}, {"weight": torch.rand(4)}, {"reduction": "sum"}])
def test_cross_entropy(options: dict[str, Any]) -> None:
    logits, y = torch.randn(6, 4, requires_grad=True), torch.tensor([0, 1, 2, 3, 0, 2])
    check(lambda: F.cross_entropy(logits, y, **options).backward())


def test_cnn_in_training_and_evaluation() -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 8, 3, stride=2, groups=2),
        nn.GroupNorm(2, 8), nn.SiLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Dropout(0.0), nn.Linear(32, 3),
    )  # fmt: skip
    x, y = torch.randn(4, 1, 12, 12), torch.tensor([0, 1, 2, 0])

    def run() -> None:
        train(model, _O.SGD(model.parameters(), lr=0.1), lambda: F.cross_entropy(model(x), y))
        model.eval()
        model(x).sum().backward()

    check(run)


def test_autoencoder_with_transposed_convolutions() -> None:
    model = nn.Sequential(
        nn.Conv1d(2, 4, 3, stride=2, padding=1), nn.LeakyReLU(0.1), nn.ConvTranspose1d(4, 2, 3, stride=2, padding=1, output_padding=1)
    )
    x = torch.randn(3, 2, 8)
    check(lambda: train(model, _O.AdamW(model.parameters(), fused=True), lambda: F.mse_loss(model(x), x)))


class Block(nn.Module):
    """A transformer block with rotary positions and RMS norm, as language models write them."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up, self.down = (nn.Linear(*sizes) for sizes in ((width, 32), (width, 32), (32, width)))
        self.weight = nn.Parameter(torch.ones(width))

    def normal(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))

    @staticmethod
    def rotate(x: torch.Tensor) -> torch.Tensor:
        angle = torch.arange(x.size(2))[:, None] * (10000.0 ** -(torch.arange(0, x.size(3), 2) / x.size(3)))
        angle = torch.cat((angle, angle), -1)
        a, b = x.chunk(2, -1)
        return x * angle.cos() + torch.cat((-b, a), -1) * angle.sin()

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        b, n, width = x.shape
        q, k, v = self.qkv(self.normal(x)).view(b, n, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        q, k = self.rotate(q), self.rotate(k)
        scores = (q @ k.transpose(-1, -2)) * (width // self.heads) ** -0.5
        if mask is not None:
            scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        o = (torch.softmax(scores, -1) @ v).transpose(1, 2).reshape(b, n, width)
        x = x + self.out(o)
        return x + self.down(F.silu(self.gate(self.normal(x))) * self.up(self.normal(x)))


class Language(nn.Module):
    """Embedding, blocks, tied head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 16, padding_idx=0)
        self.blocks = nn.ModuleList(Block(16, 2) for _ in range(2))
        self.norm = nn.LayerNorm(16)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        mask = torch.ones(ids.size(1), ids.size(1), dtype=torch.bool).tril()
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x, mask)
        return self.norm(x) @ self.embedding.weight.t()


def test_language_model_training() -> None:
    model, ids = Language(), torch.randint(1, 11, (2, 6))
    optimizer = _O.AdamW(model.parameters(), foreach=True)
    check(lambda: train(model, optimizer, lambda: F.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_language_model_under_autocast(dtype: torch.dtype) -> None:
    model, ids = Language(), torch.randint(1, 11, (2, 6))
    optimizer = _O.AdamW(model.parameters(), fused=True)

    def loss() -> torch.Tensor:
        with torch.autocast("cpu", dtype=dtype):
            return F.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())

    check(lambda: train(model, optimizer, loss))


def test_sampling_and_beam_search() -> None:
    """What generation does between two steps of the model."""

    def run() -> None:
        logits = torch.randn(4, 11)
        top = logits.topk(3)
        logits = logits.masked_fill(logits < top.values[:, -1:], -torch.inf)
        values, order = logits.sort(descending=True)
        drop = values.softmax(-1).cumsum(-1) > 0.9
        logits = logits.masked_fill(drop.scatter(1, order, drop), -torch.inf)
        ids = torch.multinomial(logits.softmax(-1), 1)
        scores = (logits.log_softmax(-1) + torch.randn(4, 1)).view(2, -1)
        best, flat = torch.topk(scores, 2)
        beams, tokens = torch.div(flat, 11, rounding_mode="floor"), flat % 11
        cache = torch.randn(4, 2, 3).index_select(0, beams.flatten() % 4)
        done = torch.isin(tokens, torch.tensor([2, 3])) | best.isneginf()
        tokens = torch.where(done, torch.full_like(tokens, -1), tokens)
        history = torch.cat([torch.zeros(2, 2, dtype=torch.int64), tokens], -1)
        (history.ne(0).all(), cache.gather(0, torch.zeros(1, 2, 3, dtype=torch.int64)), ids.squeeze(1), logits.argmax(-1))

    check(run)


def test_gradient_scaling() -> None:
    """An overflow is found and skipped, then the scale grows again."""

    def run() -> None:
        scale, tracker, found = torch.full((1,), 1024.0), torch.zeros(1, dtype=torch.int32), torch.zeros(1)
        for grads in ([torch.tensor([1.0, torch.inf])], [torch.randn(3), torch.randn(2, 2)], [torch.randn(2)]):
            found.zero_()
            torch._amp_foreach_non_finite_check_and_unscale_(grads, found, scale.reciprocal())
            torch._amp_update_scale_(scale, tracker, found, 2.0, 0.5, 2)
        assert scale.item() == 1024.0

    check(run)


@pytest.mark.parametrize("cell", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_networks(cell: type[nn.RNNBase]) -> None:
    with torch.backends.mkldnn.flags(enabled=False):
        network = cell(4, 6, num_layers=2, batch_first=True, bidirectional=True)
        x = torch.randn(2, 5, 4, requires_grad=True)
        check(lambda: network(x)[0].sum().backward())


def test_fused_attention_agrees_with_its_parts() -> None:
    """The one instruction for attention, against torch's formula, forward and backward, with and without a bias."""
    q, k, v, dy = (torch.randn(2, 3, n, 4) for n in (5, 7, 7, 5))
    for bias, causal in ((None, False), (torch.randn(1, 3, 5, 7), False), (None, True)):
        leaves = [t.clone().requires_grad_() for t in (q, k, v)]
        expected = F.scaled_dot_product_attention(*leaves, attn_mask=bias, is_causal=causal)
        gradients = torch.autograd.grad(expected, leaves, dy)
        name = "aten::_scaled_dot_product_fused_attention_overrideable"
        lse = torch.empty(2, 3, 5)
        o, lse = run_lowering(name, (q, k, v, bias, 0.0, causal), {"scale": None}, [q, lse])
        torch.testing.assert_close(o, expected.detach(), rtol=1e-5, atol=1e-5)
        args = (dy, q, k, v, bias, [True, True, True, False], o, lse, None, None, 5, 7, 0.0, causal, None, None)
        found = run_lowering(f"{name}_backward", args, {"scale": None}, [q, k, v, None])
        for ours, theirs in zip(found, gradients, strict=False):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_a_bias_of_attention_gets_its_gradient() -> None:
    q, k, v, dy = (torch.randn(2, 3, n, 4) for n in (5, 7, 7, 5))
    bias = torch.randn(1, 3, 1, 7, requires_grad=True)
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    (gradient,) = torch.autograd.grad(expected, bias, dy)
    name = "aten::_scaled_dot_product_fused_attention_overrideable"
    o, lse = run_lowering(name, (q, k, v, bias.detach(), 0.0, False), {"scale": None}, [q, torch.empty(2, 3, 5)])
    args = (dy, q, k, v, bias.detach(), [True] * 4, o, lse, None, None, 5, 7, 0.0, False, None, None)
    found = run_lowering(f"{name}_backward", args, {"scale": None}, [q, k, v, bias.detach()])
    torch.testing.assert_close(found[3], gradient, rtol=1e-4, atol=1e-5)
