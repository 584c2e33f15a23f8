"""What a mask means to attention: the same on every path, fused or composed, as torch's own kernels have it on the CPU."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, bias, sdpa_kernel
from torch.nn.attention.varlen import AuxRequest, varlen_attn, varlen_attn_out

from wooly.device.recorder import RECORDER
from wooly.link import Flush

Case = tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]

SHAPES: dict[str, Case] = {
    "4-D": ((2, 4, 5, 8), (2, 4, 6, 8), {}),
    "3-D": ((4, 5, 8), (4, 6, 8), {}),
    "2-D": ((5, 8), (6, 8), {}),
    "5-D": ((2, 2, 2, 5, 8), (2, 2, 2, 6, 8), {}),
    "multi-query": ((2, 4, 5, 8), (2, 1, 6, 8), {}),
    "broadcast batch": ((1, 4, 5, 8), (2, 4, 6, 8), {}),
    "grouped queries": ((2, 4, 5, 8), (2, 2, 6, 8), {"enable_gqa": True}),
    "scaled": ((2, 4, 5, 8), (2, 4, 6, 8), {"scale": 0.3}),
    "negative scale": ((4, 5, 8), (4, 6, 8), {"scale": -0.3}),
}
MASKS: dict[str, Callable[[], torch.Tensor]] = {
    "bool": lambda: torch.rand(5, 6) < 0.5,
    "bool row": lambda: torch.rand(1, 6) < 0.5,
    "bool column": lambda: torch.rand(5, 1) < 0.5,
    "nothing": lambda: torch.zeros(5, 6, dtype=torch.bool),
    "everything": lambda: torch.ones(5, 6, dtype=torch.bool),
    "one row of nothing": lambda: torch.arange(5)[:, None].expand(5, 6) != 2,
    "additive": lambda: torch.randn(5, 6),
    "additive -inf": lambda: torch.zeros(5, 6).masked_fill(torch.rand(5, 6) < 0.5, -math.inf),
}


def attend(device: str, case: Case, mask: torch.Tensor | None, dtype: torch.dtype, **extra: Any) -> list[torch.Tensor]:
    """Output and gradients of one call, its operands drawn from one seed."""
    torch.manual_seed(1)
    shape, keys, options = case
    q, k, v = (torch.randn(s).to(device, dtype).requires_grad_() for s in (shape, keys, keys))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=None if mask is None else mask.to(device), **options, **extra)
    out.float().sin().sum().backward()
    return [t.detach().cpu() for t in (out, q.grad, k.grad, v.grad) if t is not None]


@pytest.mark.parametrize(("shapes", "mask"), list(itertools.product(SHAPES, MASKS)))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_mask_means_what_it_means_on_the_cpu(shapes: str, mask: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    given = MASKS[mask]()
    expected = attend("cpu", SHAPES[shapes], given, dtype)
    tolerance: dict[str, float] = {} if dtype == torch.float32 else {"rtol": 0.05, "atol": 0.03}
    torch.testing.assert_close(attend("cuda", SHAPES[shapes], given, dtype), expected, **tolerance)


@pytest.mark.parametrize("shapes", SHAPES)
def test_dropout_only_scales_or_drops_and_never_attends_to_what_is_masked(shapes: str) -> None:
    """The values name their keys (one-hot), so the output is the matrix of weights: masked ones are zero, kept ones doubled."""
    shape, keys, options = SHAPES[shapes]
    torch.manual_seed(0)
    q, k = (torch.randn(s, device="cuda") for s in (shape, keys))
    v = torch.eye(6, device="cuda").expand(*keys[:-1], 6)
    mask = torch.rand(5, 6, device="cuda") < 0.6
    whole = F.scaled_dot_product_attention(q, k, v, mask, **options).cpu()
    dropped = F.scaled_dot_product_attention(q, k, v, mask, dropout_p=0.5, **options).cpu()
    assert (dropped[..., ~mask.cpu()] == 0).all()
    kept = dropped != 0
    assert 0.3 < kept[..., mask.cpu()].float().mean() < 0.7
    torch.testing.assert_close(dropped[kept], 2 * whole[kept])
    nothing = F.scaled_dot_product_attention(q, k, v, mask, dropout_p=1.0, **options)
    assert (nothing == 0).all().item()


def test_a_mask_that_wants_a_gradient_gets_it() -> None:
    def run(device: str) -> list[torch.Tensor]:
        torch.manual_seed(1)
        q, mask = torch.randn(2, 4, 5, 8).to(device), torch.randn(4, 1, 5).to(device).requires_grad_()
        out = F.scaled_dot_product_attention(q, q, q, mask)
        out.square().sum().backward()
        assert mask.grad is not None
        return [out.detach().cpu(), mask.grad.cpu()]

    torch.testing.assert_close(run("cuda"), run("cpu"))


def test_a_float_mask_beside_half_operands() -> None:
    torch.manual_seed(0)
    mask = torch.randn(5, 6)
    expected = attend("cpu", SHAPES["4-D"], mask, torch.float32)
    torch.testing.assert_close([t.float() for t in attend("cuda", SHAPES["4-D"], mask, torch.bfloat16)], expected, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("name", ["4-D", "3-D", "multi-query", "grouped queries"])
def test_causal(name: str) -> None:
    torch.testing.assert_close(
        attend("cuda", SHAPES[name], None, torch.float32, is_causal=True), attend("cpu", SHAPES[name], None, torch.float32, is_causal=True)
    )


def test_causal_beside_a_mask() -> None:
    mask = torch.rand(5, 6) < 0.7
    ours, expected = (attend(device, SHAPES["4-D"], mask, torch.float32, is_causal=True) for device in ("cuda", "cpu"))
    torch.testing.assert_close(ours, expected)


def test_causal_lower_right() -> None:
    def run(device: str) -> torch.Tensor:
        torch.manual_seed(1)
        q, k = torch.randn(2, 4, 3, 8).to(device), torch.randn(2, 4, 6, 8).to(device)
        return F.scaled_dot_product_attention(q, k, k, bias.causal_lower_right(3, 6)).cpu()

    torch.testing.assert_close(run("cuda"), run("cpu"))


@pytest.mark.parametrize("shape", [(0, 4, 5, 8), (2, 4, 0, 8), (2, 4, 5, 0)])
def test_empty_operands(shape: tuple[int, ...]) -> None:
    ours, expected = (torch.zeros(shape, device=device) for device in ("cuda", "cpu"))
    mask = torch.zeros(shape[2], shape[2], dtype=torch.bool)
    for given in (None, mask):
        result = F.scaled_dot_product_attention(ours, ours, ours, None if given is None else given.cuda())
        torch.testing.assert_close(result.cpu(), F.scaled_dot_product_attention(expected, expected, expected, given))


WRONG: dict[str, Callable[[torch.Tensor, str], Any]] = {
    "mask of another float type": lambda q, d: F.scaled_dot_product_attention(q, q, q, torch.ones(3, 3, device=d).double()),
    "mask of integers": lambda q, d: F.scaled_dot_product_attention(q, q, q, torch.ones(3, 3, device=d, dtype=torch.long)),
    "key of another type": lambda q, d: F.scaled_dot_product_attention(q, q.double(), q),
    "one dimension": lambda q, d: F.scaled_dot_product_attention(q[0, 0, 0], q, q),
    "dropout beyond 1": lambda q, d: F.scaled_dot_product_attention(q, q, q, dropout_p=1.5),
    "heads that do not divide": lambda q, d: F.scaled_dot_product_attention(
        q, torch.ones(1, 3, 3, 4, device=d), torch.ones(1, 3, 3, 4, device=d), enable_gqa=True
    ),
    "mask and causal in three dimensions": lambda q, d: F.scaled_dot_product_attention(
        q[0], q[0], q[0], torch.ones(3, 3, device=d, dtype=torch.bool), dropout_p=0.5, is_causal=True
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_torch_refuses_is_refused_in_its_words(name: str) -> None:
    errors = []
    for device in ("cpu", "cuda"):
        with pytest.raises(RuntimeError) as caught:
            WRONG[name](torch.ones(1, 2, 3, 4, device=device), device)
        errors.append(str(caught.value).splitlines()[0])
    assert errors[0] == errors[1]


def test_a_mask_that_does_not_fit_is_refused() -> None:
    q = torch.ones(1, 2, 3, 4, device="cuda")
    for mask in (torch.ones(5, 3), torch.ones(5, 3, dtype=torch.bool)):
        with pytest.raises(RuntimeError, match="size"):
            F.scaled_dot_product_attention(q, q, q, mask.cuda())


def test_a_masked_call_stays_one_attention_instruction(flushes: list[Flush]) -> None:
    q = torch.randn(2, 2, 5, 8, device="cuda")
    mask = torch.ones(5, 5, dtype=torch.bool, device="cuda")
    RECORDER.flush()
    F.scaled_dot_product_attention(q, q, q, mask).cpu()
    assert flushes[-1].n_ops <= 4


# --- who calls attention


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("need_weights", [False, True])
def test_multi_head_attention_with_masks(training: bool, need_weights: bool) -> None:
    def run(device: str) -> list[torch.Tensor]:
        torch.manual_seed(3)
        layer = torch.nn.MultiheadAttention(16, 4, dropout=0.0, batch_first=True).to(device).train(training)
        x = torch.randn(2, 5, 16).to(device).requires_grad_()
        padding = torch.tensor([[False] * 5, [False, False, True, True, True]], device=device)
        future = torch.ones(5, 5, dtype=torch.bool, device=device).triu(1)
        out, weights = layer(x, x, x, key_padding_mask=padding, attn_mask=future, need_weights=need_weights)
        out.sum().backward()
        assert x.grad is not None
        return [t.detach().cpu() for t in (out, x.grad, weights) if t is not None]

    torch.testing.assert_close(run("cuda"), run("cpu"))


def padded_input_gradient(model: torch.nn.Module, x: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
    """How far the outputs at places that are kept depend on inputs at places that are not."""
    x = x.detach().requires_grad_()
    model(x, src_key_padding_mask=padding)[~padding].square().sum().backward()
    assert x.grad is not None
    return x.grad[padding]


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_an_encoder_in_training_does_not_look_at_padding(dropout: float) -> None:
    torch.manual_seed(3)
    model = torch.nn.TransformerEncoderLayer(16, 4, 32, dropout=dropout, batch_first=True).cuda().train()
    x = torch.randn(2, 5, 16, device="cuda")
    padding = torch.tensor([[False, False, False, False, True], [False, False, True, True, True]], device="cuda")
    assert (padded_input_gradient(model, x, padding) == 0).all().item()


def test_an_encoder_without_dropout_is_the_cpus() -> None:
    def run(device: str) -> list[torch.Tensor]:
        torch.manual_seed(3)
        model = torch.nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True).to(device).train()
        padding = torch.tensor([[False, False, False, False, True], [False, False, True, True, True]], device=device)
        out = model(torch.randn(2, 5, 16).to(device), src_key_padding_mask=padding)
        out.sum().backward()
        return [out.detach().cpu(), *(p.grad.cpu() for p in model.parameters() if p.grad is not None)]

    torch.testing.assert_close(run("cuda"), run("cpu"), rtol=1e-4, atol=1e-5)


def test_without_fused_kernels_there_are_derivatives_of_all_kinds() -> None:
    torch.manual_seed(0)
    given = [torch.randn(1, 2, 4, 8) for _ in range(3)]

    def second(device: str) -> torch.Tensor:
        q, k, v = (x.to(device).requires_grad_() for x in given)
        with sdpa_kernel(SDPBackend.MATH):
            y = F.scaled_dot_product_attention(q, k, v)
        (first,) = torch.autograd.grad(y.square().sum(), q, create_graph=True)
        (found,) = torch.autograd.grad(first.square().sum(), k)
        return found.cpu()

    torch.testing.assert_close(second("cuda"), second("cpu"), rtol=1e-4, atol=1e-4)


def packed_by_rows(q: Tensor, k: Tensor, v: Tensor, cut_q: list[int], cut_k: list[int], window: tuple[int, int]) -> Tensor:
    """What ``varlen_attn`` means, one sequence after the other; the last query of each is aligned with its last key."""
    outs = []
    for (a, b), (c, d) in zip(itertools.pairwise(cut_q), itertools.pairwise(cut_k), strict=True):
        gap = torch.arange(d - c) - torch.arange(b - a)[:, None] - (d - c) + (b - a)
        sees = (gap <= (window[1] if window[1] >= 0 else d)) & (gap >= -(window[0] if window[0] >= 0 else d))
        parts = [x.transpose(0, 1)[None] for x in (q[a:b], k[c:d], v[c:d])]
        outs.append(F.scaled_dot_product_attention(*parts, sees, enable_gqa=True)[0].transpose(0, 1))
    return torch.cat(outs)


@pytest.mark.parametrize("window", [(-1, -1), (-1, 0), (2, 0), (1, 1)])
@pytest.mark.parametrize("cuts", [([0, 4, 4, 9], [0, 4, 4, 9]), ([0, 2, 3, 9], [0, 5, 9, 11])], ids=["same", "other keys"])
def test_packed_sequences_attend_to_their_own_keys(window: tuple[int, int], cuts: tuple[list[int], list[int]]) -> None:
    torch.manual_seed(0)
    cut_q, cut_k = cuts
    given = [torch.randn(s, dtype=torch.bfloat16) for s in ((cut_q[-1], 4, 8), (cut_k[-1], 2, 8), (cut_k[-1], 2, 8))]
    here, there = [x.float().requires_grad_() for x in given], [x.cuda().requires_grad_() for x in given]
    starts = [torch.tensor(cut, dtype=torch.int32, device="cuda") for cut in cuts]
    expected = packed_by_rows(*here, *cuts, window)
    out, lse = varlen_attn(*there, *starts, 6, 5, window_size=window, enable_gqa=True, return_aux=AuxRequest(lse=True))
    expected.sin().sum().backward()
    out.float().sin().sum().backward()
    assert lse.shape == (4, cut_q[-1]) and lse.dtype == torch.float32
    for ours, theirs in zip((out, *(x.grad for x in there)), (expected, *(x.grad for x in here)), strict=True):
        torch.testing.assert_close(ours.detach().cpu().float(), theirs.detach(), rtol=0.05, atol=0.05)


def test_packed_queries_attend_to_pages_of_keys() -> None:
    torch.manual_seed(0)
    q, pages = torch.randn(3, 2, 8).half(), torch.randn(5, 4, 2, 8).half()
    table, used = torch.tensor([[3, 1], [0, 4]], dtype=torch.int32), torch.tensor([6, 3], dtype=torch.int32)
    keys = torch.cat([pages[[3, 1]].flatten(0, 1)[:6], pages[[0, 4]].flatten(0, 1)[:3]]).float()
    expected = packed_by_rows(q.float(), keys, keys, [0, 2, 3], [0, 6, 9], (-1, 0))
    starts = torch.tensor([0, 2, 3], dtype=torch.int32).cuda()
    out = torch.empty_like(q, device="cuda")
    lengths = {"seqused_k": used.cuda(), "block_table": table.cuda(), "window_size": (-1, 0)}
    result = varlen_attn(q.cuda(), pages.cuda(), pages.cuda(), starts, None, 2, 8, **lengths)
    varlen_attn_out(out, q.cuda(), pages.cuda(), pages.cuda(), starts, None, 2, 8, **lengths)
    assert torch.equal(result, out)
    torch.testing.assert_close(out.cpu().float(), expected, rtol=2e-3, atol=2e-3)
