"""Few bits by hand: int8 products with scales, 4-bit packing, ternary weights, float8 casts, bit views, quantisation-aware training"""

import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
r = {}
w, x = torch.randn(32, 64).to(device), torch.randn(24, 64).to(device)
s = w.abs().amax(1, keepdim=True) / 127
q = (w / s).round().clamp(-128, 127).to(torch.int8)
sx = x.abs().amax(1, keepdim=True) / 127
qx = (x / sx).round().to(torch.int8)
acc = torch._int_mm(qx, q.t().contiguous())
r["int8"] = [acc.cpu(), (acc.float() * sx * s.t()).cpu()]
z = (w - w.amin(1, keepdim=True)) / (w.amax(1, keepdim=True) - w.amin(1, keepdim=True)) * 15
u = z.round().to(torch.uint8)
pk = (u[:, ::2] << 4) | u[:, 1::2]
un = torch.stack([pk >> 4, pk & 0xF], -1).view(32, 64)
r["u4"] = [pk.cpu(), torch.equal(un, u)]
i32 = torch.zeros(32, 8, dtype=torch.int32, device=device)
for k in range(8):
    i32 |= u[:, k::8].int() << (4 * k)
r["i32"] = [i32.cpu(), ((i32[:, :, None] >> torch.arange(0, 32, 4, device=device)) & 15).flatten(1).to(torch.uint8).cpu()]
nf4 = torch.tensor([-1.0, -0.69, -0.52, -0.39, -0.28, -0.18, -0.09, 0.0, 0.08, 0.16, 0.25, 0.34, 0.44, 0.56, 0.72, 1.0], device=device)
b = w.reshape(-1, 64) / w.reshape(-1, 64).abs().amax(1, keepdim=True)
c = (b[..., None] - nf4).abs().argmin(-1)
r["nf4"] = [c.cpu(), nf4[c].sum().item()]
t = (w / w.abs().mean().clamp(min=1e-5)).round().clamp(-1, 1)
r["tern"] = t.cpu()
for dt in (torch.float8_e4m3fn, torch.float8_e5m2):
    f = x.to(dt)
    r[str(dt)] = [f.float().cpu(), f.view(torch.uint8).cpu(), (x * 1e3).to(dt).float().cpu(), torch.finfo(dt).max]
bits = x.view(torch.int32)
r["bits"] = [
    (bits >> 23 & 0xFF).cpu(),
    (bits & -65536).view(torch.float32).cpu(),
    x.half().view(torch.int16).cpu(),
    x.bfloat16().view(torch.uint8).shape,
]


class FQ(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, s):
        ctx.save_for_backward((x / s).abs() <= 127)
        return (x / s).round().clamp(-127, 127) * s

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0], None


class QLin(nn.Linear):
    def forward(self, x):
        return F.linear(FQ.apply(x, x.detach().abs().max() / 127), FQ.apply(self.weight, self.weight.detach().abs().max() / 127), self.bias)


m = nn.Sequential(QLin(64, 16), nn.ReLU(), QLin(16, 4)).to(device)
o = torch.optim.SGD(m.parameters(), 0.05)
r["qat"] = []
for _ in range(4):
    o.zero_grad()
    l = F.cross_entropy(m(x), torch.arange(24, device=device) % 4)
    l.backward()
    o.step()
    r["qat"].append(l.item())
fq = torch.fake_quantize_per_channel_affine(w, s.squeeze(1), torch.zeros(32, dtype=torch.int32, device=device), 0, -128, 127)
r["fqc"] = fq.cpu()
from torch.ao.quantization import FakeQuantize, MinMaxObserver, MovingAverageMinMaxObserver

ob = MinMaxObserver().to(device)
ob(x)
r["obs"] = [v.cpu() for v in ob.calculate_qparams()]
fk = FakeQuantize(MovingAverageMinMaxObserver, quant_min=0, quant_max=255).to(device)
xx = x.clone().requires_grad_()
fk(xx).sum().backward()
r["fk"] = [fk(x).detach().cpu(), fk.scale.cpu(), xx.grad.cpu()]
r["u16"] = [
    torch.arange(5, device=device).to(torch.uint16).to(torch.int64).cpu(),
    (torch.arange(5, device=device).to(torch.uint32)).view(torch.int32).cpu(),
]
r["pow2"] = [
    torch.ldexp(x, torch.tensor(3, device=device)).cpu(),
    torch.frexp(x)[1].cpu(),
    torch.exp2(x.abs().log2().floor()).cpu(),
    torch.nextafter(x, x + 1).cpu(),
    torch.copysign(x, -x).cpu(),
    torch.signbit(x).cpu(),
]
bf = x.bfloat16()
r["mix"] = [
    (bf * 1.5).cpu(),
    (bf @ w.bfloat16().t()).float().cpu(),
    torch.mm(bf, w.bfloat16().t(), out=torch.empty(24, 32, dtype=torch.bfloat16, device=device)).cpu().float(),
    bf.sum(dtype=torch.float32).item(),
    bf.cumsum(0).cpu(),
    x.half().exp().cpu(),
    F.softmax(bf, 1, dtype=torch.float32).cpu(),
]
torch.save(r, sys.argv[1])
