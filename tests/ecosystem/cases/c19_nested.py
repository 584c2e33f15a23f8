"""Jagged nested tensors: linear, padding, attention."""

import sys

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
rows = [torch.randn(n, 8).to(device) for n in (3, 5, 2)]
nested = torch.nested.nested_tensor(rows, layout=torch.jagged)
layer = torch.nn.Linear(8, 8).to(device)
results = {"linear": [t.detach().cpu() for t in layer(nested).unbind()], "padded": torch.nested.to_padded_tensor(nested, 0.0).cpu()}
q = layer(nested).unflatten(-1, (2, 4)).transpose(1, 2)
out = torch.nn.functional.scaled_dot_product_attention(q, q, q)
results["attention"] = [t.detach().cpu() for t in out.transpose(1, 2).flatten(-2).unbind()]
torch.save(results, sys.argv[1])
