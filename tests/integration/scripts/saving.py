"""state_dict, torch.save and safetensors to and from the device; activation checkpointing; resuming gives the same numbers."""

import copy
import io
import pathlib
import sys
import tempfile

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.utils.checkpoint import checkpoint

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


def make():
    return nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 6)).to(device)


def step(model, optimizer, x):
    optimizer.zero_grad()
    h = checkpoint(model[:2], x, use_reentrant=False)
    loss = model[2](h).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach().cpu()


model = make()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
x = torch.randn(5, 6).to(device)
results = {"first": step(model, optimizer, x)}
stored = io.BytesIO()
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, stored)
results["second"] = step(model, optimizer, x)

stored.seek(0)
state = torch.load(stored, map_location=device, weights_only=True)
again = make()
again.load_state_dict(state["model"])
optimizer = torch.optim.AdamW(again.parameters(), lr=1e-2)
optimizer.load_state_dict(state["optimizer"])
results["resumed"] = step(again, optimizer, x)
assert torch.equal(results["second"], results["resumed"])

stored.seek(0)
on_cpu = torch.load(stored, map_location="cpu", weights_only=True)["model"]
assert all(t.device.type == "cpu" for t in on_cpu.values())
with tempfile.TemporaryDirectory() as folder:
    path = str(pathlib.Path(folder) / "model.safetensors")
    save_file(again.state_dict(), path)
    loaded = load_file(path, device=device)
assert all(t.device.type == device for t in loaded.values())
results["loaded"] = {k: v.cpu() for k, v in loaded.items()}
results["copied"] = copy.deepcopy(again)(x).detach().cpu()
results["half"] = again.half()(x.half()).detach().cpu()
torch.save(results, sys.argv[1])
