"""autograd.Function, gradcheck, double backward, hooks."""

import sys

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * g


x = torch.linspace(-1, 1, 6, dtype=torch.float64).to(device).requires_grad_()
results = {"gradcheck": torch.autograd.gradcheck(Cube.apply, (x,)), "gradgradcheck": torch.autograd.gradgradcheck(Cube.apply, (x,))}
(g,) = torch.autograd.grad(Cube.apply(x).sum(), x, create_graph=True)
(h,) = torch.autograd.grad(g.sum(), x)
results |= {"grad": g.detach().cpu(), "second": h.cpu()}
seen = []
y = (x * 2).clone()
y.register_hook(lambda g: seen.append(g.sum().item()) or g * 10)
x.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.norm().item()))
y.sum().backward()
results |= {"hooks": seen, "hooked": x.grad.cpu()}
torch.save(results, sys.argv[1])
