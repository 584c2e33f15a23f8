"""flex_attention, forward and backward, beside the same formula written out."""

# cpu: no
import sys

import torch
from torch.nn.attention.flex_attention import flex_attention

torch.manual_seed(0)
inputs = [torch.randn(1, 2, 128, 16) for _ in range(3)]
q, k, v = (t.cuda().requires_grad_() for t in inputs)
flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + (i - j) * 0.01).square().sum().backward()
a, b, c = (t.requires_grad_() for t in inputs)
place = torch.arange(128)
weights = torch.softmax(a @ b.transpose(-1, -2) / 4 + (place[:, None] - place) * 0.01, -1)
(weights @ c).square().sum().backward()
for ours, theirs in zip((q, k, v), (a, b, c), strict=True):
    torch.testing.assert_close(ours.grad.cpu(), theirs.grad, rtol=1e-3, atol=1e-4)
torch.save({"ok": True}, sys.argv[1])
