"""Inductor called directly, past torch.compile."""

# cpu: no
import sys

import torch
from torch._inductor.compile_fx import compile_fx
from torch.fx.experimental.proxy_tensor import make_fx

x = torch.ones(8, device="cuda")
graph = make_fx(lambda a: torch.sin(a) * 2)(x)
compiled = compile_fx(graph, [x])
torch.save({"y": compiled(x)}, sys.argv[1])
