"""An optimiser that preconditions with eigenvectors, after SOAP."""

import sys

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
w = torch.randn(6, 4).to(device).requires_grad_()
x, y = torch.randn(32, 6).to(device), torch.randn(32, 4).to(device)
left, right = torch.zeros(6, 6, device=device), torch.zeros(4, 4, device=device)
losses = []
for step in range(4):
    loss = (x @ w - y).square().mean()
    (g,) = torch.autograd.grad(loss, w)
    left.lerp_(g @ g.T, 0.1)
    right.lerp_(g.T @ g, 0.1)
    _, ql = torch.linalg.eigh(left + 1e-4 * torch.eye(6, device=device))
    _, qr = torch.linalg.eigh(right + 1e-4 * torch.eye(4, device=device))
    if step % 2:
        ql, _ = torch.linalg.qr(left @ ql + ql)
    rotated = ql.T @ g @ qr
    with torch.no_grad():
        w -= 0.05 * (ql @ (rotated / (rotated.abs() + 1e-3)) @ qr.T)
    losses.append(loss.item())
results = {"losses": losses}
torch.save(results, sys.argv[1])
