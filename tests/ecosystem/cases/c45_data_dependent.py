"""Sizes that depend on data: nonzero, masks, unique, loops and branches on values."""

import sys

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.tensor([3, -1, 4, -1, 5, -9, 2, 6]).to(device)
results = {
    "nonzero": torch.nonzero(x > 0).cpu(),
    "masked": x[x > 2].cpu(),
    "unique": [t.cpu() for t in torch.unique(x, return_inverse=True, return_counts=True)],
    "consecutive": torch.unique_consecutive(torch.sort(x).values).cpu(),
    "where": [t.cpu() for t in torch.where(x.view(2, 4) < 0)],
    "bincount": torch.bincount(x.clamp(min=0)).cpu(),
    "histc": torch.histc(x.float(), 4, -10, 10).cpu(),
    "repeat": torch.repeat_interleave(torch.arange(3, device=device), torch.tensor([2, 0, 3], device=device)).cpu(),
    "masked_select": torch.masked_select(x, x.abs() == 1).cpu(),
    "split": [p.sum().item() for p in torch.split(x, [*x[:2].abs().tolist(), 4])],
}
y, n = torch.tensor(27, device=device), 0
while y != 1:
    y = y // 2 if y % 2 == 0 else 3 * y + 1
    n += 1
results["steps"] = n
x[x < 0] = 0
x[torch.tensor([0, 7], device=device)] += 10
results["assigned"] = x.cpu()
torch.save(results, sys.argv[1])
