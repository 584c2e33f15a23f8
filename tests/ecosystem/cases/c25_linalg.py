"""Dense linear algebra: solve, inverse, decompositions, norms, with gradients."""

import sys

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
a = (torch.randn(4, 4) + 4 * torch.eye(4)).to(device).requires_grad_()
b = torch.randn(4, 2).to(device)
spd = a @ a.T
x = torch.linalg.solve(a, b)
x.square().sum().backward()
results = {"solve": x.detach().cpu(), "grad": a.grad.cpu()}
a, spd = a.detach(), spd.detach()
u, s, vh = torch.linalg.svd(a)
q, r = torch.linalg.qr(a)
values, vectors = torch.linalg.eigh(spd)
results |= {
    "inverse": torch.linalg.inv(a).cpu(),
    "singular": s.cpu(),
    "svd": (u * s @ vh).cpu(),
    "qr": (q @ r).cpu(),
    "cholesky": torch.linalg.cholesky(spd).cpu(),
    "eigh": (vectors * values @ vectors.T).cpu(),
    "det": torch.linalg.det(a).cpu(),
    "slogdet": torch.linalg.slogdet(spd).logabsdet.cpu(),
    "lstsq": torch.linalg.lstsq(a, b).solution.cpu(),
    "pinv": torch.linalg.pinv(a[:, :2]).cpu(),
    "norms": [torch.linalg.norm(a, p).item() for p in ("fro", "nuc", 2, 1, float("inf"))],
    "power": torch.linalg.matrix_power(a, 3).cpu(),
    "triangular": torch.linalg.solve_triangular(spd.tril(), b, upper=False).cpu(),
}
torch.save(results, sys.argv[1])
