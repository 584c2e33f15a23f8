"""Nested tensors of the strided layout, and the fast paths of torch.nn, give what the CPU gives."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wooly import stats


def rows(device: str, lengths: tuple[int, ...] = (2, 4, 0), width: int = 3) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(n, width, generator=generator).to(device).requires_grad_() for n in lengths]


def parts(made: Any) -> list[Tensor]:
    """The dense tensors of a result."""
    if isinstance(made, list | tuple):
        return [part for item in made for part in parts(item)]
    return [part.detach() for part in (made.unbind() if made.is_nested else [made])]


def near(ours: Any, theirs: Any) -> None:
    assert len(parts(ours)) == len(parts(theirs))
    for our, their in zip(parts(ours), parts(theirs), strict=True):
        assert our.device.type == "cuda"
        torch.testing.assert_close(our.cpu(), their, rtol=1e-5, atol=1e-5)


USES: dict[str, Callable[[Tensor], Any]] = {
    "padded": lambda x: [x.to_padded_tensor(0.0), torch.nested.to_padded_tensor(x, -1.0, (3, 6, 3))],
    "arithmetic": lambda x: [x + x, x * 2, x * x, x / 3, x - x, -x, x.abs().sqrt(), x > 0, x.eq(0.5), x >= 1, x.masked_fill(x > 0, 1.0)],
    "in place": lambda x: [x.clone().mul_(2), x.clone().add_(x), x.clone().fill_(1.0), torch.zeros_like(x)],
    "activations": lambda x: [F.relu(x), F.gelu(x), F.silu(x), torch.tanh(x), F.softmax(x, -1), F.dropout(x, 0.5, False)],
    "parts": lambda x: [x.unbind(), x[1], x.chunk(3, -1), x.narrow(0, 0, 2), torch.cat([x, x])],
    "shapes": lambda x: [x.transpose(1, 2).contiguous(), x.unsqueeze(1), x.reshape(3, -1, 3, 1)],
    "products": lambda x: [torch.matmul(x, x.transpose(1, 2)), F.linear(x, torch.ones(4, 3, device=x.device))],
    "types": lambda x: [x.half(), x.double(), x.to(x.device)],
    "sums": lambda x: [x.sum(-1, keepdim=True)],  # on the CPU, visibly
}


@pytest.mark.filterwarnings("ignore:aten..sum.dim_IntList runs on the CPU")
@pytest.mark.parametrize("name", USES)
def test_a_nested_tensor(name: str) -> None:
    before = sum(stats()["fallbacks"].values())
    with torch.no_grad():
        near(*(USES[name](torch.nested.nested_tensor(rows(device))) for device in ("cuda", "cpu")))
    assert sum(stats()["fallbacks"].values()) - before == (name == "sums")


def test_moving_and_saving() -> None:
    here = torch.nested.nested_tensor(rows("cpu"))
    there = here.to("cuda")
    near([there, torch.nested.nested_tensor(rows("cpu"), device="cuda")], [here, here])
    assert all(map(torch.equal, there.cpu().unbind(), here.unbind()))
    file = io.BytesIO()
    torch.save(there, file)
    file.seek(0)
    near(torch.load(file), here)


def test_gradients_through_layers() -> None:
    def gradients(device: str) -> list[Tensor | None]:
        torch.manual_seed(0)
        norm, linear, given = nn.LayerNorm(3).to(device), nn.Linear(3, 3).to(device), rows(device)
        out = F.gelu(norm(linear(torch.nested.as_nested_tensor(given))))
        F.softmax(out, -1).to_padded_tensor(0.0)[..., 0].square().sum().backward()
        return [x.grad for x in (*given, *norm.parameters(), *linear.parameters())]

    near(gradients("cuda"), gradients("cpu"))


LAYERS = [{"norm_first": True}, {"activation": "gelu"}, {"batch_first": False}, {"activation": F.silu}]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("options", LAYERS, ids=["norm first", "gelu", "length first", "silu"])
def test_an_encoder_without_gradients(options: dict[str, Any]) -> None:
    """With padding at the end its result has zeros there, as nothing is computed for those places."""

    def results(device: str) -> list[Tensor]:
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(16, 4, 32, **{"batch_first": True, **options})
        encoder = nn.TransformerEncoder(layer, 2).to(device).eval()
        x = torch.randn(4, 5, 16).to(device)
        lengths = torch.tensor([3, 5, 1, 4])[:, None] if options.get("batch_first", True) else torch.tensor([3, 4, 1, 4, 2])[:, None]
        at_end = torch.arange(x.size(1) if lengths.size(0) == 4 else x.size(0)) >= lengths
        masks = [at_end, at_end.flip(1), torch.zeros_like(at_end, dtype=torch.float32).masked_fill(at_end, float("-inf"))]
        causal = nn.Transformer.generate_square_subsequent_mask(at_end.size(1)).to(device)
        with torch.no_grad():
            out = [encoder(x, src_key_padding_mask=mask.to(device)) for mask in masks]
            return [*out, encoder(x), encoder(x, mask=causal), encoder(x, mask=causal, is_causal=True)]

    near(results("cuda"), results("cpu"))


def test_attention_without_gradients() -> None:
    def results(device: str) -> list[Any]:
        torch.manual_seed(0)
        attention = nn.MultiheadAttention(16, 4, batch_first=True).to(device).eval()
        x = torch.randn(3, 5, 16).to(device)
        keys = torch.tensor([[0, 0, 0, 1, 1], [0] * 5, [1, 0, 0, 0, 0]]).bool().to(device)  # with the next, a place that sees nothing
        causal, each = torch.ones(5, 5).triu(1).bool().to(device), (torch.rand(12, 5, 5) > 0.7).to(device)
        nested = torch.nested.nested_tensor(rows(device, (2, 4), 16))
        ways: list[dict[str, Any]] = [
            {}, {"key_padding_mask": keys}, {"attn_mask": causal}, {"attn_mask": causal, "key_padding_mask": keys}, {"attn_mask": each},
            {"attn_mask": torch.linspace(0, 1, 25, device=device).view(5, 5)}, {"average_attn_weights": False},
        ]  # fmt: skip
        with torch.no_grad():
            found = [attention(x, x, x, **how) for how in ways]
            return [*found, attention(x, x, x, need_weights=False)[0], attention(nested, nested, nested, need_weights=False)[0]]

    for ours, theirs in zip(parts(results("cuda")), parts(results("cpu")), strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_of_nested_heads(causal: bool) -> None:
    """Of each part it is the attention of that part."""
    queries, keys = rows("cpu", (2, 4, 1), 8), rows("cpu", (2, 4, 1) if causal else (3, 1, 2), 8)
    ours = [[x.detach().cuda().requires_grad_() for x in parts] for parts in (queries, keys)]

    def heads(parts: list[Tensor]) -> Tensor:
        return torch.nested.as_nested_tensor([x.view(-1, 2, 4) for x in parts]).transpose(1, 2)

    out = F.scaled_dot_product_attention(heads(ours[0]), heads(ours[1]), heads(ours[1]), is_causal=causal).transpose(1, 2)
    split = [[x.view(1, -1, 2, 4).transpose(1, 2) for x in parts] for parts in (queries, keys)]
    want = [F.scaled_dot_product_attention(q, k, k, is_causal=causal).transpose(1, 2)[0] for q, k in zip(*split, strict=True)]
    near(list(out.unbind()), want)
    out.to_padded_tensor(0.0).square().sum().backward()
    torch.stack([w.square().sum() for w in want]).sum().backward()
    near([x.grad for parts in ours for x in parts], [x.grad for parts in (queries, keys) for x in parts])


def test_mistakes_are_named() -> None:
    with pytest.raises(RuntimeError, match="Mask must be left-aligned"):
        torch._nested_tensor_from_mask(torch.ones(1, 2, 3, device="cuda"), torch.tensor([[False, True]], device="cuda"))
    with pytest.raises(RuntimeError, match="ScalarType Bool"):
        torch._nested_tensor_from_mask(torch.ones(1, 2, 3, device="cuda"), torch.ones(1, 2, device="cuda"))
