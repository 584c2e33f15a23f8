"""Autocast with a GradScaler, an overflow among the steps."""

import sys

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
scaler = torch.amp.GradScaler(device, init_scale=1024.0, growth_interval=2)
x, y = torch.randn(32, 8).to(device), torch.randn(32, 1).to(device)
scales, losses = [], []
for step in range(6):
    optimizer.zero_grad()
    with torch.autocast(device, dtype=torch.bfloat16):
        loss = (model(x) - y).square().mean()
    if step == 3:
        loss = loss * float("inf")
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    scales.append(scaler.get_scale())
    losses.append(round(loss.item(), 2))
results = {"scales": scales, "finite": [loss == loss and loss != float("inf") for loss in losses], "final": losses[-1]}
torch.save(results, sys.argv[1])
