"""Ensembles and per-sample gradients with torch.func, forward-mode derivatives, masked tensors, hooks of every kind, loaders that pin memory"""

import copy
import sys

import torch
import torch.nn as nn


def cpu(o):
    if isinstance(o, torch.Tensor):
        return o.detach().cpu()
    if isinstance(o, dict):
        return {k: cpu(v) for k, v in o.items()}
    return [cpu(v) for v in o] if isinstance(o, (list, tuple)) else o


device = "cuda" if torch.cuda.is_available() else "cpu"
g = torch.Generator()


def R(*s):
    return torch.randn(*s, generator=g).to(device)


def masked():
    import torch.masked as tm
    from torch.masked import masked_tensor

    d = R(3, 4)
    m = torch.arange(12, device=device).view(3, 4) % 3 > 0
    mt = masked_tensor(d, m, requires_grad=True)
    s = (mt * 2).sum(1)
    (mt.exp()).sum().backward() if 0 else 0
    return (
        s.get_data(),
        s.get_mask(),
        tm.softmax(d, 1, mask=m),
        tm.mean(d, 1, mask=m),
        tm.var(d, 1, mask=m),
        tm.argmax(d, 1, mask=m),
        tm.norm(d, 2, 1, mask=m),
        tm.amax(d, 1, mask=m),
        mt.amin(1).get_data(),
        (mt + mt).to_tensor(0),
        repr(mt)[:20],
    )


def fwdad():
    import torch.autograd.forward_ad as fa
    from torch.func import functional_call, grad, hessian, jacfwd, jacrev, linearize, stack_module_state, vjp, vmap

    o = []
    with fa.dual_level():
        d = fa.make_dual(R(3), R(3))
        o.append(fa.unpack_dual(d.sin() * d)[1])
        lin = nn.Linear(3, 2).to(device)
        for p in lin.parameters():
            p.data = torch.linspace(-1, 1, p.numel(), device=device).view_as(p)
        o.append(fa.unpack_dual(torch.softmax(lin(d), -1))[1])
    torch.manual_seed(0)
    ms = [nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(device) for _ in range(3)]
    P, B = stack_module_state(ms)
    base = copy.deepcopy(ms[0]).to("meta")
    x = R(5, 3)
    e = vmap(lambda p, b, x: functional_call(base, (p, b), (x,)), (0, 0, None))(P, B, x)
    o.append(e)
    pp = dict(ms[0].named_parameters())
    L = lambda p, x, y: nn.functional.mse_loss(functional_call(ms[0], p, (x[None],))[0], y)
    o.append(vmap(grad(L), (None, 0, 0))(pp, x, R(5, 2)))
    o.append(hessian(lambda z: (z.sin() * z.roll(1)).sum())(R(3)))
    o.append(jacfwd(jacrev(lambda z: (z**3).sum()))(R(3)))
    _, f = linearize(torch.sin, R(3))
    o.append(f(R(3)))
    o.append(vmap(lambda a: torch.randn_like(a), randomness="different")(x).shape)
    ntk = vmap(lambda a: vjp(lambda q: functional_call(ms[0], q, (a[None],))[0, 0], pp)[1](torch.tensor(1.0, device=device))[0], 0)(x)
    o.append(ntk)
    return o


def hooks():
    l = nn.Linear(3, 2).to(device)
    o = torch.optim.AdamW(l.parameters(), 0.1)
    lg = []
    o.register_step_pre_hook(lambda *a: lg.append("pre"))
    o.register_step_post_hook(lambda *a: lg.append("post"))
    o.register_state_dict_post_hook(lambda op, sd: lg.append("sd"))
    o.register_load_state_dict_pre_hook(lambda op, sd: lg.append("ld"))
    for p in l.parameters():
        p.data.fill_(0.5)
        p.register_post_accumulate_grad_hook(lambda p: lg.append(list(p.shape)))
        p.register_hook(lambda g: g * 2)
    l.register_full_backward_hook(lambda m, i, oo: lg.append("bw"))
    l.register_full_backward_pre_hook(lambda m, oo: lg.append("pbw"))
    l.register_forward_pre_hook(lambda m, a, k: (a, k), with_kwargs=True)
    l.register_state_dict_post_hook(lambda *a: None)
    y = l(R(4, 3).requires_grad_())
    y.grad_fn.register_prehook(lambda g: None)
    y.register_hook(lambda g: lg.append("y"))
    y.sum().backward()
    o.step()
    o.load_state_dict(o.state_dict())
    return lg, list(l.parameters())


def loaders():
    ds = torch.utils.data.TensorDataset(torch.arange(10.0))
    o = []
    for k in (
        dict(pin_memory=True, pin_memory_device="cuda" if device == "cuda" else ""),
        dict(pin_memory=True, num_workers=2, persistent_workers=True, prefetch_factor=2),
        dict(batch_sampler=torch.utils.data.BatchSampler(torch.utils.data.SequentialSampler(ds), 3, False)),
    ):
        dl = torch.utils.data.DataLoader(ds, batch_size=4, **k) if "batch_sampler" not in k else torch.utils.data.DataLoader(ds, **k)
        o.append([b[0].to(device, non_blocking=True).cpu() for b in dl])
    return o


r = {}
for f in (masked, fwdad, hooks, loaders):
    g.manual_seed(0)
    torch.manual_seed(0)
    r[f.__name__] = cpu(f())
torch.save(r, sys.argv[1])
