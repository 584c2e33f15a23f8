"""Special functions and uncommon mathematics."""

# tolerance: 1e-3
import sys

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.linspace(0.1, 3, 12).to(device)
names = "erf erfc erfinv lgamma digamma exp2 expm1 log1p sinc i0 rsqrt trunc frac logit tan atanh acosh asinh cosh deg2rad sigmoid"
results = {n: getattr(torch, n)(x / 4 if n in ("erfinv", "logit", "atanh") else x + 1 if n == "acosh" else x).cpu() for n in names.split()}
special = "bessel_j0 bessel_j1 bessel_y0 i0e i1 i1e ndtr ndtri log_ndtr entr erfcx airy_ai"
results |= {n: getattr(torch.special, n)(x / 4 if n == "ndtri" else x).cpu() for n in special.split()}
results["zeta"] = torch.special.zeta(x + 1.1, torch.tensor(2.0, device=device)).cpu()
results["igamma"] = torch.special.gammainc(x, x.flip(0)).cpu()
results["polygamma"] = torch.polygamma(1, x).cpu()
results["xlogy"] = torch.xlogy(x, x.flip(0)).cpu()
results["hypot"] = torch.hypot(x, x).cpu()
results["nextafter"] = torch.nextafter(x, x + 1).cpu()
results["ldexp"] = torch.ldexp(x, torch.arange(12, device=device)).cpu()
results["frexp"] = [t.cpu() for t in torch.frexp(x)]
results["gcd"] = torch.gcd(torch.tensor([12, 18, 7], device=device), torch.tensor([8, 27, 14], device=device)).cpu()
results["logcumsumexp"] = torch.logcumsumexp(x, 0).cpu()
results["quantile"] = torch.quantile(x, torch.tensor([0.25, 0.5], device=device)).cpu()
results["cov"] = torch.cov(torch.stack([x, x.square()])).cpu()
results["trapz"] = torch.trapezoid(x.square(), x).item()
results["renorm"] = torch.renorm(x.view(3, 4), 2, 0, 1.0).cpu()
results["bucketize"] = torch.bucketize(x, torch.tensor([1.0, 2.0], device=device)).cpu()
results["einsum"] = torch.einsum("ij,kj->ik", x.view(3, 4), x.view(3, 4)).cpu()
results["kthvalue"] = torch.kthvalue(x, 3).values.item()
results["median"] = x.median().item()
results["mode"] = torch.mode((x * 2).int()).values.item()
torch.save(results, sys.argv[1])
