"""torch._dynamo without torch.compile: explain, and a frame evaluated eagerly."""

import sys

import torch
import torch._dynamo

device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.arange(6.0).to(device)


def f(a):
    b = a.sin() + 1
    return b * b.mean()


results = {"graphs": torch._dynamo.explain(f)(x).graph_count, "optimized": torch._dynamo.optimize("eager")(f)(x).cpu()}
torch.save(results, sys.argv[1])
