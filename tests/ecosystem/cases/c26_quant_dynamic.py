"""Fake quantisation as quantisation-aware training uses it, and dynamic quantisation of a copy on the CPU."""

import sys

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
quantized = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
x = torch.randn(3, 8)
results = {"dynamic": quantized(x)}
results["per tensor"] = torch.fake_quantize_per_tensor_affine(x.to(device), 0.1, 0, -128, 127).cpu()
fake = torch.ao.quantization.FakeQuantize.with_args(
    observer=torch.ao.quantization.MovingAverageMinMaxObserver, quant_min=0, quant_max=255
)().to(device)
results["observed"] = fake(x.to(device)).cpu()
torch.save(results, sys.argv[1])
