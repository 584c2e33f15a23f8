"""torch.compile of functions and modules with the default backend, in training."""

import sys

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 1)).to(device)
compiled = torch.compile(model, mode="reduce-overhead") if device == "cuda" else model
x, y = torch.randn(32, 8).to(device), torch.randn(32, 1).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
losses = []
for _ in range(5):
    loss = torch.nn.functional.mse_loss(compiled(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())


def f(a, b):
    return torch.sin(a) * b.sum(0) + (a > 0).float()


g = torch.compile(f, fullgraph=True, dynamic=True) if device == "cuda" else f
results = {"losses": losses, "function": g(x, x).cpu()}
torch.save(results, sys.argv[1])
