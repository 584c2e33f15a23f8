"""Liger's Triton kernels beside torch, forward and backward, and a Llama whose layers are Liger's."""

# requires: triton, liger_kernel, transformers
# cpu: no
import sys

import torch
import torch.nn.functional as F
from liger_kernel.transformers import functional as LF

torch.manual_seed(0)
found = {}


def check(name, pairs, limit):
    for got, want in pairs:
        got, want = got.detach().cpu().double(), want.detach().double()
        assert got.shape == want.shape, (name, got.shape, want.shape)
        error = ((got - want).abs().max() / want.abs().max().clamp(min=1e-9)).item()
        assert error <= limit, (name, error)
    found[name] = torch.tensor(True)


def both(name, device, cpu, inputs, limit=1e-5):
    """``device`` and ``cpu`` are functions of the inputs; results and gradients are compared."""
    ours = [x.cuda().requires_grad_() for x in inputs]
    theirs = [x.clone().requires_grad_() for x in inputs]
    got, want = device(*ours), cpu(*theirs)
    got, want = (x if isinstance(x, tuple) else (x,) for x in (got, want))
    gradients = [torch.randn_like(w) if w.dim() else torch.ones_like(w) for w in want]
    torch.autograd.backward(want, gradients)
    torch.autograd.backward(got, [g.cuda() for g in gradients])
    check(name, [*zip(got, want), *((o.grad, t.grad) for o, t in zip(ours, theirs))], limit)


def rms_norm(x, w):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w


def rotated(x):
    return torch.cat([-x[..., 16:], x[..., :16]], -1)


def jsd(x, y):
    m = torch.log((x.exp() + y.exp()) / 2)
    return 0.5 * (F.kl_div(m, y, reduction="sum", log_target=True) + F.kl_div(m, x, reduction="sum", log_target=True)) / len(x)


def sparsemax(x):
    z = x.sort(-1, descending=True)[0]
    c, k = z.cumsum(-1), torch.arange(1, x.shape[-1] + 1)
    n = (1 + k * z > c).sum(-1, keepdim=True)
    return (x - (c.gather(-1, n - 1) - 1) / n).clamp(min=0)


x, w, b = torch.randn(4, 7, 96), torch.rand(96), torch.rand(96)
both("rms_norm", lambda x, w: LF.liger_rms_norm(x, w, 1e-6), rms_norm, [x, w])
both("layer_norm", lambda x, w, b: LF.liger_layer_norm(x, w, b, 1e-5), lambda x, w, b: F.layer_norm(x, (96,), w, b, 1e-5), [x, w, b])
x, w, b = torch.randn(2, 12, 20), torch.rand(12), torch.rand(12)
both("group_norm", lambda x, w, b: LF.liger_group_norm(x, w, b, 12, 3, 1e-5), lambda x, w, b: F.group_norm(x, 3, w, b, 1e-5), [x, w, b])
pair = [torch.randn(3, 5, 40), torch.randn(3, 5, 40)]
both("swiglu", LF.liger_swiglu, lambda a, b: F.silu(a) * b, pair)
both("geglu", LF.liger_geglu, lambda a, b: F.gelu(a, approximate="tanh") * b, pair)
x, target = torch.randn(12, 50), torch.randint(0, 50, (12,))
target[3] = -100
both(
    "cross_entropy",
    lambda x: LF.liger_cross_entropy(x, target.cuda(), label_smoothing=0.1),
    lambda x: F.cross_entropy(x, target, label_smoothing=0.1),
    [x],
)
both(
    "fused_linear_cross_entropy",
    lambda x, w: LF.liger_fused_linear_cross_entropy(x, w, target.cuda()),
    lambda x, w: F.cross_entropy(x @ w.T, target),
    [torch.randn(12, 32), torch.randn(50, 32)],
)
angle = torch.arange(16)[None, :, None].float() / 10000 ** (torch.arange(0, 32, 2) / 32)
cos, sin = torch.cat([angle, angle], -1).cos(), torch.cat([angle, angle], -1).sin()
both(
    "rope",
    lambda q, k: LF.liger_rope(q, k, cos.cuda(), sin.cuda()),
    lambda q, k: (q * cos[:, None] + rotated(q) * sin[:, None], k * cos[:, None] + rotated(k) * sin[:, None]),
    [torch.randn(2, 4, 16, 32), torch.randn(2, 2, 16, 32)],
)
x, y = torch.randn(6, 30), torch.randn(6, 30).softmax(-1)
both(
    "kl_div",
    lambda x: LF.liger_kl_div(x.log_softmax(-1), y.cuda(), reduction="batchmean"),
    lambda x: F.kl_div(x.log_softmax(-1), y, reduction="batchmean"),
    [x],
)
both("jsd", lambda x: LF.liger_jsd(x.log_softmax(-1), y.log().cuda()), lambda x: jsd(x.log_softmax(-1), y.log()), [x])
both(
    "tvd", lambda x: LF.liger_tvd(x.softmax(-1), y.cuda(), reduction="batchmean"), lambda x: 0.5 * (x.softmax(-1) - y).abs().sum() / 6, [x]
)
both("softmax", LF.liger_softmax, lambda x: x.softmax(-1), [x])
both("sparsemax", LF.liger_sparsemax, sparsemax, [x])

from liger_kernel.transformers import apply_liger_kernel_to_llama
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
ids = torch.randint(0, 64, (2, 12))
torch.manual_seed(1)
plain = LlamaForCausalLM(config)
want = plain(ids, labels=ids).loss
want.backward()
apply_liger_kernel_to_llama()
torch.manual_seed(1)
model = LlamaForCausalLM(config).cuda()
got = model(ids.cuda(), labels=ids.cuda()).loss
got.backward()
check("llama", [(got, want), *((a.grad, b.grad) for a, b in zip(model.parameters(), plain.parameters()))], 1e-4)
torch.save(found, sys.argv[1])
