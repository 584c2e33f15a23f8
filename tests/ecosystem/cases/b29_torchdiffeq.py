"""torchdiffeq: a fixed and an adaptive solver, the adjoint, an event"""

# requires: torchdiffeq
import sys

import torch
import torch.nn as nn
from torchdiffeq import odeint, odeint_adjoint, odeint_event

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
A = torch.tensor([[-0.1, 2.0], [-2.0, -0.1]], dtype=torch.float64).to(device)


class F(nn.Module):
    def __init__(self):
        super().__init__()
        self.n = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2))

    def forward(self, t, y):
        return self.n(y**3) * 0.1 + y @ A


f = F().double().to(device)
y0 = torch.tensor([[2.0, 0.0]]).double().to(device)
t = torch.linspace(0.0, 1.0, 6).to(device)
r = {}
for m in ("rk4", "dopri5"):
    f.zero_grad()
    y = odeint(f, y0, t, method=m, rtol=1e-4, atol=1e-5)
    y.pow(2).mean().backward()
    r[m] = [y.detach().cpu(), f.n[0].weight.grad.cpu().clone()]
f.zero_grad()
odeint_adjoint(f, y0, t, method="dopri5", rtol=1e-4, atol=1e-5).pow(2).mean().backward()
r["adj"] = f.n[0].weight.grad.cpu().clone()
ev, sol = odeint_event(
    lambda t, s: (s[1], torch.full_like(s[1], -9.8)),
    (torch.tensor([1.0]).to(device), torch.tensor([0.0]).to(device)),
    torch.tensor(0.0).to(device),
    event_fn=lambda t, s: s[0],
    method="dopri5",
)
r["ev"] = ev.cpu()
torch.save(r, sys.argv[1])
