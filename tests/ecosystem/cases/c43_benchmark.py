"""torch.utils.benchmark and timing with synchronize."""

import sys

import torch
from torch.utils import benchmark

device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.ones(16, 16).to(device)
timer = benchmark.Timer("(x @ x).sum().item()", globals={"x": x})
measured = timer.timeit(20)
results = {"positive": measured.median > 0, "runs": measured.number_per_run, "value": (x @ x).sum().item()}
torch.save(results, sys.argv[1])
