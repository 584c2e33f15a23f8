"""Jagged nested tensors: padding, layers and attention give what each row gives by itself on the CPU, forward and backward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from wooly import stats

LENGTHS = (3, 5, 2, 1)
OTHER_LENGTHS = (4, 1, 6, 2)


def rows(lengths: tuple[int, ...], device: str, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(n, 8, generator=generator).to(device).requires_grad_() for n in lengths]


def nested(parts: list[Tensor]) -> Any:
    return torch.nested.as_nested_tensor(parts, layout=torch.jagged)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64])
def test_padding_and_back(dtype: torch.dtype) -> None:
    parts = [(10 * torch.randn(n, 8)).to(dtype) for n in (3, 0, 5)]
    before = stats()["fallbacks"]
    made = torch.nested.nested_tensor([p.cuda() for p in parts], layout=torch.jagged)
    padded = torch.nested.to_padded_tensor(made, -1.0)
    want = torch.full((3, 5, 8), -1.0).to(dtype)
    for i, part in enumerate(parts):
        want[i, : len(part)] = part
    torch.testing.assert_close(padded.cpu(), want, rtol=0, atol=0)
    back = torch.ops.aten._padded_dense_to_jagged_forward(padded, [made.offsets()])
    torch.testing.assert_close(back.cpu(), torch.cat(parts), rtol=0, atol=0)
    cut = torch.ops.aten._jagged_to_padded_dense_forward(made.values(), [made.offsets()], [2], 0.0)
    assert torch.equal(cut.cpu()[2], parts[2][:2]) and cut.shape == (3, 2, 8)
    again = torch.ops.aten._padded_dense_to_jagged_forward(cut, [made.offsets()], 8)
    assert torch.equal(again.cpu()[3:5], parts[2][:2]) and not again.cpu()[5:].any()
    assert stats()["fallbacks"] == before


@pytest.mark.parametrize(("causal", "scale"), [(False, None), (True, None), (False, 0.3)])
def test_attention(causal: bool, scale: float | None) -> None:
    def split(x: Any) -> Any:
        return x.unflatten(-1, (2, 4)).transpose(-3, -2)

    others = LENGTHS if causal else OTHER_LENGTHS
    want_q, want_k = rows(LENGTHS, "cpu"), rows(others, "cpu", seed=1)
    want = [F.scaled_dot_product_attention(split(q)[None], split(k)[None], split(k)[None], is_causal=causal, scale=scale)[0]
            for q, k in zip(want_q, want_k, strict=True)]  # fmt: skip
    torch.cat([w.transpose(0, 1).flatten() for w in want]).square().sum().backward()
    got_q, got_k = rows(LENGTHS, "cuda"), rows(others, "cuda", seed=1)
    keys = split(nested(got_k))
    got = F.scaled_dot_product_attention(split(nested(got_q)), keys, keys, is_causal=causal, scale=scale)
    assert got.is_nested and got.shape[1] == 2
    got.values().square().sum().backward()
    for mine, its in zip(got.transpose(1, 2).unbind(), want, strict=True):
        torch.testing.assert_close(mine.cpu(), its.transpose(0, 1))
    for found, part in zip([*got_q, *got_k], [*want_q, *want_k], strict=True):
        torch.testing.assert_close(found.grad.cpu(), part.grad)  # type: ignore[union-attr]  # backward has run


def test_a_number_where_a_condition_does_not_hold() -> None:
    parts = rows((2, 3), "cuda")
    made = nested(parts)
    torch.where(made > 0, made * 3, 0.0).values().sum().backward()
    for part in parts:
        assert part.grad is not None and torch.equal(part.grad, (part.detach() > 0) * 3.0)
