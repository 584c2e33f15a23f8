"""Choosing attention kernels with sdpa_kernel."""

import sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
q, k, v = (torch.randn(2, 4, 16, 8).to(device) for _ in range(3))
results = {}
for backend in (SDPBackend.MATH, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.FLASH_ATTENTION):
    with sdpa_kernel([backend, SDPBackend.MATH]):
        results[backend.name] = F.scaled_dot_product_attention(q, k, v, is_causal=True).cpu()
torch.save(results, sys.argv[1])
