"""Spectral, weight and orthogonal parametrisations; pruning."""

import sys

import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
models = {
    "spectral": parametrizations.spectral_norm(nn.Linear(6, 4)),
    "weight": parametrizations.weight_norm(nn.Linear(6, 4)),
    "orthogonal": parametrizations.orthogonal(nn.Linear(4, 4)),
    "orthogonal exp": parametrizations.orthogonal(nn.Linear(4, 4), orthogonal_map="matrix_exp"),
}
results = {}
for name, model in models.items():
    model = model.to(device)
    x = torch.linspace(-1, 1, 2 * model.in_features).view(2, -1).to(device)
    out = model(x)
    out.square().sum().backward()
    results[name] = [out.detach().cpu()] + [p.grad.cpu() for p in model.parameters()]
pruned = nn.Linear(6, 4).to(device)
with torch.no_grad():
    pruned.weight.copy_(torch.linspace(-1, 1, 24).view(4, 6))
prune.l1_unstructured(pruned, "weight", amount=0.5)
results["pruned"] = pruned.weight.detach().cpu()
results["zeros"] = int((pruned.weight == 0).sum())
torch.save(results, sys.argv[1])
