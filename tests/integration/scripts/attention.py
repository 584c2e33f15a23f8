"""Attention in its usual forms, transformer layers, embeddings and losses, with gradients."""

import sys

import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
results = {}
q, k, v = (torch.randn(2, 4, 10, 8).to(device).requires_grad_() for _ in range(3))
mask = torch.rand(2, 1, 10, 10).to(device) > 0.3
mask[..., 0] = True
bias = torch.randn(2, 4, 10, 10).to(device)
for name, kwargs in {
    "plain": {},
    "causal": {"is_causal": True},
    "mask": {"attn_mask": mask},
    "bias": {"attn_mask": bias},
    "scale": {"scale": 0.5},
}.items():
    out = F.scaled_dot_product_attention(q, k, v, **kwargs)
    grads = torch.autograd.grad(out.square().sum(), (q, k, v))
    results[name] = [out.detach().cpu(), *(g.cpu() for g in grads)]
layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True).to(device)
x = torch.randn(2, 7, 16).to(device)
results["encoder_train"] = layer(x).detach().cpu()
results["encoder_eval"] = layer.eval()(x).detach().cpu()
heads, weights = nn.MultiheadAttention(16, 2, batch_first=True).to(device)(x, x, x)
results["mha"] = [heads.detach().cpu(), weights.detach().cpu()]
table = nn.Embedding(11, 16, padding_idx=0).to(device)
table(torch.tensor([[1, 2, 0], [2, 2, 5]]).to(device)).pow(2).sum().backward()
results["embedding"] = table.weight.grad.cpu()
logits = torch.randn(6, 5).to(device).requires_grad_()
target = torch.tensor([0, 4, -100, 2, 1, 1]).to(device)
losses = {
    "ce": F.cross_entropy(logits, target),
    "smooth": F.cross_entropy(logits, target, label_smoothing=0.2, weight=torch.arange(1.0, 6.0).to(device)),
    "bce": F.binary_cross_entropy_with_logits(logits, (logits.detach() > 0).float()),
    "huber": F.smooth_l1_loss(logits, torch.zeros_like(logits)),
    "kl": F.kl_div(logits.log_softmax(1), torch.full((6, 5), 0.2, device=device), reduction="batchmean"),
    "mse": F.mse_loss(logits, torch.ones_like(logits)),
}
for name, loss in losses.items():
    results["loss_" + name] = [loss.detach().cpu(), torch.autograd.grad(loss, logits)[0].cpu()]
torch.save(results, sys.argv[1])
