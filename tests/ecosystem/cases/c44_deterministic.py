"""Deterministic algorithms: repeated runs give equal bits; cuDNN's switches; uninitialised memory is filled."""

import sys

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.use_deterministic_algorithms(True)
torch.backends.cudnn.deterministic = True
torch.backends.cudnn.benchmark = False
torch.manual_seed(0)
x, i = torch.randn(1000).to(device), torch.randint(50, (1000,)).to(device)
sums = [torch.zeros(50, device=device).index_add_(0, i, x).cpu() for _ in range(3)]
results = {
    "same": torch.equal(sums[0], sums[1]) and torch.equal(sums[1], sums[2]),
    "sum": sums[0],
    "on": torch.are_deterministic_algorithms_enabled(),
}
results["filled"] = [bool(torch.empty(3, device=device).isnan().all()), torch.empty(2, dtype=torch.int64, device=device).tolist()]
results["cumsum"] = x.view(10, 100).cumsum(1).cpu()
torch.save(results, sys.argv[1])
