"""torch.multiprocessing.spawn: each process has a device of its own."""

import sys

import torch
import torch.multiprocessing as mp


def work(rank, device, folder):
    x = torch.full((4,), float(rank + 1)).to(device)
    torch.save((x * 2).sum().item(), f"{folder}/{rank}.pt")


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    mp.spawn(work, (device, "."), nprocs=2)
    results = {"sums": [torch.load(f"{rank}.pt") for rank in range(2)]}
    torch.save(results, sys.argv[1])
