"""Attention with boolean masks: whole, 3 dimensions, broadcast heads, with dropout, and an encoder in training with padding."""

import sys

import torch
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
q, k, v = (torch.randn(2, 4, 6, 8).to(device) for _ in range(3))
mask = (torch.rand(2, 1, 6, 6) > 0.4).to(device) | torch.eye(6, dtype=torch.bool, device=device)
results = {
    "whole": F.scaled_dot_product_attention(q, k, v, mask.expand(2, 4, 6, 6)).cpu(),
    "broadcast": F.scaled_dot_product_attention(q, k, v, mask).cpu(),
    "three": F.scaled_dot_product_attention(q[0], k[0], v[0], mask[0]).cpu(),
    "two": F.scaled_dot_product_attention(q[0, 0], k[0, 0], v[0, 0], mask[0, 0]).cpu(),
    "multi_query": F.scaled_dot_product_attention(q, k[:, :1].expand_as(k), v[:, :1], mask).cpu(),
    "grouped": F.scaled_dot_product_attention(q, k[:, :2], v[:, :2], mask, enable_gqa=True).cpu(),
    "row": F.scaled_dot_product_attention(q, k, v, mask[:1, :, :1]).cpu(),
}
# With dropout, columns that the mask forbids still have no weight: values there may be anything.
padded = mask.clone()
padded[..., 3:] = False
padded[..., 0] = True
spoiled = v.clone()
spoiled[:, :, 3:] = 1e6
out = F.scaled_dot_product_attention(q, k, spoiled, padded, dropout_p=0.1)
results["padding has no weight"] = bool((out.abs() < 100).all())
layer = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True).to(device).train()
torch.manual_seed(1)
x = torch.randn(2, 5, 16).to(device).requires_grad_()
padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2], device=device)
layer(x, src_key_padding_mask=padding)[1, :3].sum().backward()
results["no gradient from padding"] = bool((x.grad[1, 3:] == 0).all())
heads = torch.nn.MultiheadAttention(16, 4, batch_first=True).eval().to(device)
heads.load_state_dict({n: torch.sin(torch.arange(p.numel(), dtype=torch.float32)).view(p.shape) for n, p in heads.state_dict().items()})
attended, weights = heads(x, x, x, key_padding_mask=padding)
results |= {"attended": attended.detach().cpu(), "weights": weights.detach().cpu()}
torch.save(results, sys.argv[1])
