"""Questions about selections that may be empty."""

import sys

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.arange(4.0, device=device)
results = {
    "any": (x[x > 5]).any().item(),
    "all": (x[x > 5] > 0).all().item(),
    "some": (x[x > 1]).any().item(),
    "rows": (x.view(2, 2)[torch.tensor([False, False], device=device)]).any(1).tolist(),
    "sum": x[x > 5].sum().item(),
}
if (x > 5).any():
    results["branch"] = "some"
else:
    results["branch"] = "none"
results["later"] = (x + 1).tolist()
torch.save(results, sys.argv[1])
