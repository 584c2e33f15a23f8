"""Transposed convolutions, group normalisation, interpolation and padding, with gradients."""

import sys

import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(3, 8, 3, padding=1, padding_mode="reflect"),
    nn.GroupNorm(4, 8),
    nn.LeakyReLU(0.1),
    nn.ConvTranspose2d(8, 6, 4, stride=2, padding=1, output_padding=1),
    nn.InstanceNorm2d(6, affine=True),
    nn.Hardswish(),
    nn.ConvTranspose2d(6, 3, 3, groups=3),
).to(device)
x = torch.randn(2, 3, 9, 9).to(device).requires_grad_()
out = model(x)
results = {"out": out.detach().cpu()}
sizes = {"nearest": (5, 7), "bilinear": (20, 13), "bicubic": (11, 11), "area": (4, 4)}
total = out.square().mean()
for mode, size in sizes.items():
    y = F.interpolate(out, size=size, mode=mode)
    results[mode] = y.detach().cpu()
    total = total + y.abs().mean()
total = total + F.adaptive_avg_pool2d(out, (3, 5)).sum() * 1e-2 + F.pixel_shuffle(F.pad(out, (1, 1, 0, 2)).repeat(1, 4, 1, 1), 2).mean()
total.backward()
results |= {"loss": total.detach().cpu(), "dx": x.grad.cpu(), "grads": {n: p.grad.cpu() for n, p in model.named_parameters()}}
conv1 = nn.Conv1d(2, 4, 3, dilation=2).to(device)
conv3 = nn.Conv3d(1, 2, 2).to(device)
results["conv1"] = conv1(torch.linspace(-1, 1, 24, device=device).view(1, 2, 12)).detach().cpu().shape
results["conv3"] = conv3(torch.ones(1, 1, 4, 4, 4, device=device)).detach().cpu().shape
torch.save(results, sys.argv[1])
