"""Embedding(sparse=True) in training with SparseAdam."""

import sys

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
table = torch.nn.Embedding(10, 4, sparse=True).to(device)
optimizer = torch.optim.SparseAdam(table.parameters(), lr=0.1)
table(torch.tensor([1, 3, 1]).to(device)).sum().backward()
optimizer.step()
results = {"table": table.weight.detach().cpu()}
torch.save(results, sys.argv[1])
