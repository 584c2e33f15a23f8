"""torch.func: grad, vmap, jacobians, hessian, jvp, vjp, functional_call, ensembles."""

import sys

import torch
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, stack_module_state, vjp, vmap

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
x = torch.randn(5, 3).to(device)
w = torch.randn(3).to(device)


def loss(w, row):
    return torch.tanh(row @ w).square()


results = {
    "per sample": vmap(grad(loss), (None, 0))(w, x).cpu(),
    "jacrev": jacrev(lambda w: torch.sin(x @ w))(w).cpu(),
    "jacfwd": jacfwd(lambda w: torch.sin(x @ w))(w).cpu(),
    "hessian": hessian(lambda w: loss(w, x[0]))(w).cpu(),
    "jvp": jvp(torch.exp, (w,), (torch.ones_like(w),))[1].cpu(),
    "vjp": vjp(lambda w: x @ w, w)[1](torch.ones(5, device=device))[0].cpu(),
}
models = [torch.nn.Linear(3, 2).to(device) for _ in range(3)]
parameters, buffers = stack_module_state(models)
base = torch.nn.Linear(3, 2, device="meta")
results["ensemble"] = vmap(lambda p, b: functional_call(base, (p, b), (x,)))(parameters, buffers).detach().cpu()
results["called"] = functional_call(models[0], dict(models[1].named_parameters()), (x,)).detach().cpu()
results["in_dims"] = vmap(torch.dot, in_dims=(1, 1))(x, x).cpu()
torch.save(results, sys.argv[1])
