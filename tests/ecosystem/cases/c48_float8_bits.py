"""Float8 and small types: conversions, bits, views, shifts, scaled products."""

import sys

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.linspace(-4, 4, 16).view(4, 4).to(device)
results = {}
for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
    y = x.to(dtype)
    results[str(dtype)] = [y.float().cpu(), y.view(torch.uint8).cpu()]
results["view"] = x.view(torch.int32).cpu()
results["half bits"] = x.half().view(torch.int16).cpu()
i = torch.arange(8, dtype=torch.int32).to(device)
results["bits"] = [(i << 2).cpu(), (i >> 1).cpu(), (i ^ 5).cpu(), (~i).cpu(), (i & 6).cpu()]
u = torch.arange(250, 256, dtype=torch.uint8).to(device)
results["wrap"] = (u + 10).cpu()
results["bf16"] = (x.bfloat16() @ x.bfloat16()).float().cpu().round(decimals=0)
a = torch.eye(16, device=device).to(torch.float8_e4m3fn)
one = torch.tensor(1.0, device=device)
results["scaled"] = torch._scaled_mm(a, a.t().contiguous().t(), scale_a=one, scale_b=one * 2, out_dtype=torch.bfloat16).float().cpu()
torch.save(results, sys.argv[1])
