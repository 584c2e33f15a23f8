"""Anomaly mode, hooks and printing of tensors of every kind."""

import sys

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.set_printoptions(precision=3)
x = torch.linspace(-2, 2, 6).view(2, 3).to(device).requires_grad_()
results = {
    "text": [
        str(t).replace(", device='cuda:0'", "")
        for t in (x.detach(), x > 0, x.detach().long(), x.detach().to(torch.complex64), x[:0].detach())
    ]
}
results["format"] = f"{x.sum():.3f} {x[0, 0].item():.2f} {torch.tensor(3, device=device):d}"
with torch.autograd.detect_anomaly(check_nan=True):
    (x.exp() * 2).sum().backward()
results["grad"] = x.grad.cpu()
y = torch.tensor([0.0, 1.0], device=device, requires_grad=True)
try:
    with torch.autograd.detect_anomaly():
        (torch.sqrt(y) * 0).sum().backward()
    results["anomaly"] = "none"
except RuntimeError as error:
    results["anomaly"] = str(error).partition(".")[0]
results["isnan"] = [torch.isnan(torch.tensor([1, 2], device=device)).tolist(), torch.isinf(torch.tensor([True], device=device)).tolist()]
torch.save(results, sys.argv[1])
