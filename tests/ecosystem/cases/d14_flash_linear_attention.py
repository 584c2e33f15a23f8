"""flash-linear-attention: recurrent and chunked forms beside plain recurrences."""

# requires: triton, fla
# cpu: no
# timeout: 1800
import sys

import torch
from fla.modules import RMSNorm
from fla.ops.delta_rule import chunk_delta_rule, fused_recurrent_delta_rule
from fla.ops.gla import fused_recurrent_gla
from fla.ops.linear_attn import chunk_linear_attn, fused_recurrent_linear_attn

torch.manual_seed(0)
B, T, H, D = 1, 64, 2, 32
found = {}


def check(name, got, want, limit):
    error = ((got.cpu().float() - want).abs().max() / want.abs().max()).item()
    assert error <= limit, (name, error)
    found[name] = torch.tensor(True)


def recurrent(q, k, v, decay=None, beta=None):
    state = torch.zeros(B, H, D, D)
    out = []
    for t in range(T):
        if decay is not None:
            state = state * decay[:, t].exp()[..., None]
        value = v[:, t]
        if beta is not None:
            value = (value - torch.einsum("bhk,bhkv->bhv", k[:, t], state)) * beta[:, t][..., None]
        state = state + torch.einsum("bhk,bhv->bhkv", k[:, t], value)
        out.append(torch.einsum("bhk,bhkv->bhv", q[:, t] * D**-0.5, state))
    return torch.stack(out, 1)


q, v = torch.randn(B, T, H, D) * 0.5, torch.randn(B, T, H, D) * 0.5
k = torch.nn.functional.normalize(torch.randn(B, T, H, D), dim=-1)
decay, beta = torch.nn.functional.logsigmoid(torch.randn(B, T, H, D)), torch.rand(B, T, H)
on = [x.cuda() for x in (q, k, v)]
check("recurrent linear", fused_recurrent_linear_attn(*on, normalize=False)[0], recurrent(q, k, v), 1e-5)
check("chunked linear", chunk_linear_attn(*on, normalize=False)[0], recurrent(q, k, v), 5e-3)
check("recurrent gla", fused_recurrent_gla(*on, decay.cuda())[0], recurrent(q, k, v, decay), 1e-5)
check("recurrent delta", fused_recurrent_delta_rule(*on, beta.cuda())[0], recurrent(q, k, v, beta=beta), 1e-5)
half = [x.half() for x in (*on, beta.cuda())]
check("chunked delta", chunk_delta_rule(*half)[0], recurrent(q, k, v, beta=beta), 2e-2)
x = torch.randn(4, 96)
check("norm", RMSNorm(96).cuda()(x.cuda()), x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5), 1e-5)
torch.save(found, sys.argv[1])
