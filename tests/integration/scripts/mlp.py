"""A small MLP under four optimisers, two of them in two forms, with gradient clipping."""

import sys

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
results = {}
optimisers = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3),
    "adamw_fused": lambda p: torch.optim.AdamW(p, lr=1e-3, fused=True),
    "adamw_loop": lambda p: torch.optim.AdamW(p, lr=1e-3, foreach=False),
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, weight_decay=1e-4, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-3, weight_decay=1e-3),
    "adam_amsgrad": lambda p: torch.optim.Adam(p, lr=1e-3, amsgrad=True),
}
for name, make in optimisers.items():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 10)).to(device)
    x, y = torch.randn(64, 64).to(device), torch.randint(0, 10, (64,)).to(device)
    optimizer = make(model.parameters())
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    losses = []
    for _ in range(6):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    results[name] = {"losses": torch.tensor(losses), "weights": {k: v.cpu() for k, v in model.state_dict().items()}}
torch.save(results, sys.argv[1])
