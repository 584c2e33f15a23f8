"""COO tensors: made, coalesced, multiplied."""

import sys

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
i = torch.tensor([[0, 1, 1], [2, 0, 0]]).to(device)
s = torch.sparse_coo_tensor(i, torch.tensor([3.0, 4.0, 5.0]).to(device), (2, 3))
results = {"dense": s.to_dense().cpu(), "product": torch.sparse.mm(s, torch.ones(3, 2, device=device)).cpu()}
torch.save(results, sys.argv[1])
