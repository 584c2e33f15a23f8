"""Saving and loading tensors, models, optimisers and whole modules, with map_location and mmap."""

import sys

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
x = torch.randn(16, 4).to(device)
for _ in range(2):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "views": [x, x[2:5], x.T]}, "state.pt")
state = torch.load("state.pt", map_location=device)
copy = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2)).to(device)
copy.load_state_dict(state["model"])
again = torch.optim.Adam(copy.parameters(), lr=1e-2)
again.load_state_dict(state["optimizer"])
again.zero_grad()
copy(x).square().mean().backward()
again.step()
results = {
    "view": state["views"][1].cpu(),
    "shares": state["views"][0].data_ptr() == state["views"][2].data_ptr(),
    "copy": copy(x).detach().cpu(),
}
torch.save(model, "whole.pt")
results["whole"] = torch.load("whole.pt", weights_only=False)(x).detach().cpu()
results["on cpu"] = [str(t.device) for t in torch.load("state.pt", map_location="cpu", mmap=True)["model"].values()]
results["assigned"] = (
    nn.Linear(4, 8, device="meta")
    .load_state_dict({k[2:]: v for k, v in state["model"].items() if k[0] == "0"}, assign=True)
    .__class__.__name__
)
results["model"] = {k: v.cpu() for k, v in model.state_dict().items()}
torch.save(results, sys.argv[1])
