"""torch.set_default_device and torch.device as a context."""

import sys

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.set_default_device(device)
x = torch.arange(6.0).view(2, 3)
model = torch.nn.Linear(3, 2)
torch.nn.init.constant_(model.weight, 0.1)
torch.nn.init.zeros_(model.bias)
results = {"device": x.device.type == model.weight.device.type == device, "value": model(x).detach().cpu()}
with torch.device("cpu"):
    results["inner"] = str(torch.zeros(1).device)
with torch.device("meta"):
    results["meta"] = str(torch.nn.Linear(2, 2).weight.device)
results["tensor"] = torch.tensor([1, 2]).sum().item()
torch.save(results, sys.argv[1])
