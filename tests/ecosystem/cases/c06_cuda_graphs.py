"""Capture and replay of a CUDA graph."""

# cpu: no
import sys

import torch

x = torch.ones(4, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x * 2
x.fill_(3)
graph.replay()
torch.save({"y": y.cpu()}, sys.argv[1])
