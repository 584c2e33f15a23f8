"""Modules and tensors moved around: to, half, double, cpu, cuda, copies, numpy, buffers."""

import copy
import sys

import numpy as np
import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
model = nn.Sequential(nn.Conv1d(2, 3, 3), nn.BatchNorm1d(3), nn.Flatten(), nn.Linear(18, 2)).to(device)
x = torch.randn(4, 2, 8)
results = {"base": model.eval()(x.to(device)).detach().cpu()}
results["double"] = copy.deepcopy(model).double()(x.double().to(device)).detach().cpu()
results["back"] = model.cpu()(x).detach()
model = model.to(device)
results["again"] = model(x.to(device)).detach().cpu()
results["types"] = sorted({str(p.dtype) for p in copy.deepcopy(model).bfloat16().parameters()})
y = x.to(device)
results["numpy"] = [float(y.sum().cpu().numpy()), (y * np.float64(2)).cpu(), (np.float32(3) * y).cpu(), y[np.int64(1)].cpu()]
results["tensor"] = torch.tensor(np.arange(4), device=device).tolist() + torch.from_numpy(np.ones(2)).to(device).tolist()
results["flags"] = [y.to(device) is y, y.clone().data_ptr() != y.data_ptr(), y.type().split(".")[-1]]
results["list"] = [int(y.argmax()), float(y.max()), len(y), y.shape]
results["swap"] = torch.stack([y, y + 1])[:, ::2].flip(0).transpose(0, 2).contiguous().cpu()
torch.save(results, sys.argv[1])
