"""flex_attention, forward and backward."""

import sys

import torch
from torch.nn.attention.flex_attention import flex_attention

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
q, k, v = (torch.randn(1, 2, 128, 16).to(device).requires_grad_() for _ in range(3))
attend = torch.compile(flex_attention, backend="eager") if device == "cpu" else flex_attention
attend(q, k, v, score_mod=lambda s, b, h, i, j: s + (i - j) * 0.01).square().sum().backward()
results = {"q": q.grad.cpu(), "k": k.grad.cpu(), "v": v.grad.cpu()}
torch.save(results, sys.argv[1])
