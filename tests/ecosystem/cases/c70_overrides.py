"""Tensor subclasses with __torch_function__ and __torch_dispatch__, modes that count or watch, a weight of int8, FX transforms and make_fx"""

import copy
import pickle
import sys
from typing import ClassVar

import torch
import torch.nn as nn
import torch.utils._pytree as pt
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing


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


class Logged(torch.Tensor):
    log: ClassVar[list] = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        Logged.log.append(getattr(func, "__name__", str(func)))
        return super().__torch_function__(func, types, args, kwargs or {})


class Meta(torch.Tensor):
    def __init__(s, d, meta=None):
        s.m = meta

    def __new__(cls, d, meta=None):
        return d.as_subclass(cls)

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        r_ = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(r_, Meta):
            r_.m = next((a.m for a in args if isinstance(a, Meta) and hasattr(a, "m")), None)
        return r_


class Q8(torch.Tensor):
    @staticmethod
    def __new__(cls, q, s, dtype):
        return torch.Tensor._make_wrapper_subclass(cls, q.shape, dtype=dtype, device=q.device, requires_grad=False)

    def __init__(s, q, sc, dtype):
        s.q, s.s = q, sc

    def __tensor_flatten__(s):
        return ["q", "s"], (s.dtype,)

    @staticmethod
    def __tensor_unflatten__(t, c, os, st):
        return Q8(t["q"], t["s"], c[0])

    def deq(s):
        return s.q.to(s.dtype) * s.s

    @classmethod
    def make(cls, w):
        s = w.abs().amax(1, keepdim=True) / 127
        return cls((w / s).round().to(torch.int8), s, w.dtype)

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is nn.functional.linear:
            return nn.functional.linear(args[0], args[1].deq(), *args[2:])
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in (torch.ops.aten.detach.default, torch.ops.aten.clone.default):
            return return_and_correct_aliasing(func, args, kwargs, Q8(func(args[0].q), func(args[0].s), args[0].dtype))
        if func is torch.ops.aten._to_copy.default:
            d = kwargs.get("device")
            dt = kwargs.get("dtype") or args[0].dtype
            return return_and_correct_aliasing(func, args, kwargs, Q8(args[0].q.to(d), args[0].s.to(d), dt))
        u = pt.tree_map_only(Q8, lambda t: t.deq(), (args, kwargs))
        return func(*u[0], **u[1])


class Count(TorchDispatchMode):
    def __init__(s):
        super().__init__()
        s.n = {}

    def __torch_dispatch__(s, f, t, a=(), k=None):
        s.n[str(f)] = s.n.get(str(f), 0) + 1
        return f(*a, **(k or {}))


def logged():
    Logged.log = []
    x = R(3, 4).as_subclass(Logged)
    y = (x @ x.T + 1).relu().sum(0)
    z = torch.cat([y, y])[:3]
    z.to("cpu")
    assert x.device.type == device and x.is_cuda == (device == "cuda")
    torch.zeros_like(x)
    x.new_zeros(2)
    return y.as_subclass(torch.Tensor), list(Logged.log)


def meta():
    m = Meta(R(3), meta="k")
    n = (m * 2).to(device).sum()
    return n.as_subclass(torch.Tensor), n.m, m[1:].m, torch.stack([m, m]).m, m.detach().m, m.cuda().m if device == "cuda" else "k"


def q8():
    torch.manual_seed(0)
    l = nn.Linear(8, 4)
    l.weight = nn.Parameter(Q8.make(l.weight.detach()), requires_grad=False)
    l = l.to(device)
    x = R(2, 8)
    y = l(x)
    l2 = copy.deepcopy(l)
    return (
        y,
        l2(x),
        l.weight.q,
        type(l.weight).__name__,
        type(l.weight.data).__name__,
        l.weight.device.type == device,
        (l.weight + 1).sum(),
        list(l.half().weight.shape),
        l.weight.dtype,
    )


def dmode():
    with Count() as c:
        x = torch.ones(3, device=device, requires_grad=True)
        y = (x * 2).relu().sum()
        y.backward()
        torch.nn.functional.linear(R(2, 3), R(4, 3))
    return {k: v for k, v in c.n.items() if "to_copy" not in k and "randn" not in k and "copy_" not in k and "empty" not in k}


def fxt():
    import torch.fx as fx

    class M(nn.Module):
        def __init__(s):
            super().__init__()
            s.l = nn.Linear(4, 4)
            s.bn = nn.BatchNorm1d(4)

        def forward(s, x):
            y = torch.zeros_like(x)
            return torch.relu(s.bn(s.l(x))) + y.to(x.device) + torch.ones(4, device=x.device)

    torch.manual_seed(0)
    m = M().to(device).eval()
    gm = fx.symbolic_trace(m)
    for n in gm.graph.nodes:
        if n.op == "call_function" and n.target is torch.relu:
            n.target = torch.nn.functional.gelu
        if n.op == "call_function" and n.target is torch.zeros_like:
            n.target = torch.ones_like
    gm.recompile()
    x = R(3, 4)
    o = gm(x)
    from torch.fx.experimental.optimization import fuse

    f = fuse(m)
    from torch.fx.passes.shape_prop import ShapeProp

    ShapeProp(gm).propagate(x)
    gm2 = pickle.loads(pickle.dumps(gm))
    ii = fx.Interpreter(gm).run(x)
    return (
        o,
        f(x),
        gm2(x),
        ii,
        [str(n.target) if not callable(n.target) else n.target.__name__ for n in gm.graph.nodes],
        gm.code.replace("'cuda'", "D"),
    )


def makefx():
    from torch.fx.experimental.proxy_tensor import make_fx

    def f(x):
        return torch.zeros_like(x) + x.sin().to(torch.float64).sum()

    G = make_fx(f)(R(3))
    return [str(n.target) for n in G.graph.nodes]


r = {}
for f in (logged, meta, q8, dmode, fxt, makefx):
    g.manual_seed(0)
    torch.manual_seed(0)
    r[f.__name__] = cpu(f())
torch.save(r, sys.argv[1])
