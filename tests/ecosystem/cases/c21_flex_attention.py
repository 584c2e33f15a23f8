"""flex_attention with a score function and a block mask, forward."""

import sys

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
q, k, v = (torch.randn(1, 2, 128, 16).to(device) for _ in range(3))
with torch.no_grad():
    mask = create_block_mask(lambda b, h, i, j: i >= j, 1, 1, 128, 128, device=device)
    results = {
        "plain": flex_attention(q, k, v).cpu(),
        "bias": flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + (i - j) * 0.01).cpu(),
        "causal": flex_attention(q, k, v, block_mask=mask).cpu(),
    }
torch.save(results, sys.argv[1])
