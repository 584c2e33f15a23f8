"""A thousand training steps: losses like the CPU's, memory flat."""

import resource
import sys

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
x, y = torch.randn(64, 8).to(device), torch.randn(64, 1).to(device)
losses = []
for step in range(1000):
    loss = (model(x) - y).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 99:
        losses.append(loss.item())
    if step == 200:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
results = {"losses": losses, "flat": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024 < 60}
torch.save(results, sys.argv[1])
