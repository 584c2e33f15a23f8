"""xformers' attention: causal, of blocks, with a bias, of groups of heads, with gradients."""

# requires: xformers
# cpu: no
import sys

import torch
import xformers.ops as xops

torch.manual_seed(0)
results = {}


def reference(q, k, v, bias=None, scale=None):
    attn = (q * (scale or q.shape[-1] ** -0.5)).transpose(1, 2) @ k.transpose(1, 2).transpose(-2, -1)
    return ((attn if bias is None else attn + bias).softmax(-1) @ v.transpose(1, 2)).transpose(1, 2)


def make(*shape, dtype=torch.float32):
    return torch.randn(*shape, device="cuda", dtype=dtype, requires_grad=True)


q, k, v = make(2, 8, 4, 16), make(2, 8, 4, 16), make(2, 8, 4, 16)
block = xops.fmha.BlockDiagonalMask.from_seqlens([3, 5, 8])
for name, bias in {
    "none": None,
    "causal": xops.LowerTriangularMask(),
    "tensor": torch.randn(2, 4, 8, 8, device="cuda"),
    "blocks": block,
}.items():
    x, y, z = (t.reshape(1, 16, 4, 16) if name == "blocks" else t for t in (q, k, v))
    out = xops.memory_efficient_attention(x, y, z, attn_bias=bias, scale=0.3)
    dense = (
        bias if bias is None or isinstance(bias, torch.Tensor) else bias.materialize((x.shape[0], 4, x.shape[1], x.shape[1]), device="cuda")
    )
    expected = reference(x, y, z, dense, 0.3)
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-4)
    got, want = (torch.autograd.grad(o.square().sum(), (q, k, v)) for o in (out, expected))
    torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)
    results[name] = out.detach().cpu()
half = make(1, 8, 2, 16, dtype=torch.float16)
assert xops.memory_efficient_attention(half, half, half, p=0.5).dtype == torch.float16
three = make(2, 8, 16)
torch.testing.assert_close(xops.memory_efficient_attention(three, three, three), reference(*[three[:, :, None]] * 3)[:, :, 0])
grouped = q.reshape(2, 8, 2, 2, 16)
torch.testing.assert_close(
    xops.memory_efficient_attention(grouped, grouped, grouped), reference(q, q, q).reshape(2, 8, 2, 2, 16), atol=1e-5, rtol=1e-4
)
torch.save(results, sys.argv[1])
