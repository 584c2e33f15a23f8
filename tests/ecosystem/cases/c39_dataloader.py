"""A DataLoader with workers and pinned memory, copies that do not block."""

import sys

import torch
from torch.utils.data import DataLoader, Dataset


class Squares(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, i):
        return torch.full((3,), float(i)), i * i


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loader = DataLoader(Squares(), batch_size=5, num_workers=2, pin_memory=device == "cuda", persistent_workers=True)
    results = {"batches": []}
    for _ in range(2):
        for x, y in loader:
            x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            results["batches"].append([(x.sum() * 2).item(), y.sum().item()])
    torch.save(results, sys.argv[1])
