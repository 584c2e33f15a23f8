"""bf16 autocast with a gradient scaler."""

import sys

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 8)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler(device, init_scale=1024.0)
x, y = torch.randn(32, 32).to(device), torch.randint(0, 8, (32,)).to(device)
losses = []
for _ in range(5):
    optimizer.zero_grad()
    with torch.autocast(device_type=device, dtype=torch.bfloat16):
        out = model(x)
        loss = nn.functional.cross_entropy(out, y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    losses.append(loss.item())
assert out.dtype == torch.bfloat16
torch.save({"losses": torch.tensor(losses), "out": out.detach().cpu(), "scale": torch.tensor(scaler.get_scale())}, sys.argv[1])
