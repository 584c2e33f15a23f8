"""Trains, and looks at its loss every step. When the tenant's budget is used up it says so (file in argument 2), waits until the file in
argument 3 is there, and goes on. Saves what it learned (argument 1)."""

import pathlib
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

import wooly

out, refused, again = map(pathlib.Path, sys.argv[1:4])
torch.manual_seed(3)
model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 10)).to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data, labels = torch.randn(64, 128).to("cuda"), torch.randint(0, 10, (64,)).to("cuda")


def look(value):
    """What ``value`` is: nothing was lost if the budget was used up meanwhile, so it is asked for again."""
    while True:
        try:
            return value.detach().cpu()
        except wooly.errors.BudgetExceededError as error:
            refused.write_text(str(error))
            while not again.exists():
                time.sleep(0.02)


losses = []
for _ in range(60):
    loss = F.cross_entropy(model(data), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(look(loss).item())
torch.save({"losses": losses, "state": {name: look(value) for name, value in model.state_dict().items()}}, half := out.with_suffix(".half"))
half.rename(out)
