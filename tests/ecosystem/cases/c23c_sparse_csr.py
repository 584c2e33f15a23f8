"""A CSR matrix times a vector."""

import sys

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
m = torch.eye(3).to(device).to_sparse_csr()
results = {"product": (m @ torch.arange(3.0, device=device)).cpu()}
torch.save(results, sys.argv[1])
