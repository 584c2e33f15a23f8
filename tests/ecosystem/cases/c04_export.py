"""torch.export (export, save, load) and torch.jit.trace and script of a convolutional network."""

import sys

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 5)).eval().to(device)
x = torch.randn(2, 3, 8, 8).to(device)
results = {"eager": model(x).detach().cpu()}
program = torch.export.export(model, (x,))
results["exported"] = program.module()(x).detach().cpu()
torch.export.save(program, "model.pt2")
results["loaded"] = torch.export.load("model.pt2").module()(x).detach().cpu()
scripted = torch.jit.script(model)
results["scripted"] = scripted(x).detach().cpu()
traced = torch.jit.trace(model, x)
results["traced"] = traced(x * 2).detach().cpu()
traced.save("traced.pt")
results["traced, loaded"] = torch.jit.load("traced.pt", map_location=device)(x).detach().cpu()
results["afterwards"] = (x.sum() * 2).item()
torch.save(results, sys.argv[1])
