"""Statistics, sorting and counting, indexing of every kind, strided views, einsum, arithmetic of integers"""

import sys

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
x = torch.randn(5, 12).to(device)
i = torch.randint(0, 6, (40,)).to(device)
n = x.clone()
n[1, 3] = float("nan")
r = {}
q = torch.tensor([0.1, 0.5, 0.9], device=device)
for interp in ("linear", "lower", "higher", "midpoint", "nearest"):
    r["q" + interp] = [torch.quantile(x, q, 1, interpolation=interp).cpu(), torch.nanquantile(n, 0.3, 0, True, interpolation=interp).cpu()]
r["qall"] = [t.cpu() for t in (x.quantile(0.25), n.quantile(0.5), n.nanmedian(1).values, n.nanmean(), n.nansum(0), n.median(1).values)]
r["histc"] = [torch.histc(x, 7, -2, 2).cpu(), torch.histc(x).cpu(), torch.histc(i.float(), 6, 0, 5).cpu()]
r["binc"] = [i.bincount().cpu(), i.bincount(x.flatten()[:40].abs(), minlength=9).cpu()]
r["uniq"] = (
    [t.cpu() for t in torch.unique(i, return_inverse=True, return_counts=True)]
    + [t.cpu() for t in torch.unique_consecutive(i, return_counts=True)]
    + [torch.unique(i.reshape(8, 5), dim=0).cpu()]
)
r["mode"] = i.reshape(4, 10).mode(1).values.cpu()
r["kth"] = [x.kthvalue(3, 1).values.cpu(), x.kthvalue(3, 1).indices.cpu(), x.median(0).indices.cpu(), x.median().item()]
r["sm"] = (
    [t.cpu() for t in torch.std_mean(x, (0, 1), correction=0)]
    + [t.cpu() for t in torch.var_mean(x, 1)]
    + [t.cpu() for t in torch.aminmax(x, dim=1)]
)
r["cum"] = [
    x.cummax(1).values.cpu(),
    x.cummax(1).indices.cpu(),
    x.cummin(0).values.cpu(),
    x.logcumsumexp(1).cpu(),
    x.cumprod(1).cpu(),
    i.cumsum(0).cpu(),
]
r["trap"] = [torch.trapezoid(x, dx=0.1).cpu(), torch.cumulative_trapezoid(x, x.cumsum(1), dim=1).cpu()]
b = torch.linspace(-2, 2, 5, device=device)
r["buck"] = [
    torch.bucketize(x, b).cpu(),
    torch.bucketize(x, b, right=True, out_int32=True).cpu(),
    torch.searchsorted(x.sort(1).values, x[:, :3].contiguous(), side="right").cpu(),
    torch.bucketize(0.3, b).item(),
]
r["isin"] = [torch.isin(i, torch.tensor([1, 4], device=device)).cpu(), torch.isin(i, 3, invert=True).cpu()]
r["sort"] = [
    torch.msort(x).cpu(),
    i.argsort(stable=True).cpu(),
    i.sort(descending=True, stable=True).indices.cpu(),
    x.flatten().topk(5, largest=False).values.cpu(),
]
r["ren"] = [
    torch.renorm(x, 2, 0, 1.0).cpu(),
    [g.cpu() for g in torch.gradient(x, spacing=0.5)],
    torch.diff(x, n=2, prepend=x[:, :1]).cpu(),
    torch.clamp(x, min=x.mean(0), max=x.max()).cpu(),
]
r["dist"] = [
    torch.dist(x[0], x[1], 3).item(),
    torch.cdist(x, x, p=1).cpu(),
    torch.cdist(x, x).cpu(),
    torch.nn.functional.pairwise_distance(x[:2], x[2:4], p=1.5).cpu(),
]
r["comb"] = [
    torch.combinations(i[:4], 2).cpu(),
    torch.cartesian_prod(i[:2], i[3:6]).cpu(),
    torch.tril_indices(4, 3, device=device).cpu(),
    torch.vander(x[0, :3], 4).cpu(),
]
r["cnt"] = [
    torch.count_nonzero(i.reshape(4, 10), 1).cpu(),
    (x > 0).sum().item(),
    (x > 0).any(1).cpu(),
    x.argmax().item(),
    x.argmin(1).cpu(),
    torch.nonzero(x > 1, as_tuple=True)[1].cpu(),
    torch.argwhere(i == 2).cpu(),
]
r["roll"] = [
    x.roll((1, -2), (0, 1)).cpu(),
    x.flip(0, 1).cpu(),
    x.rot90(1).cpu(),
    x.fliplr().cpu(),
    x.repeat_interleave(torch.tensor([1, 0, 2, 1, 1], device=device), 0).cpu(),
    x.unfold(1, 4, 3).cpu(),
    x.as_strided((3, 4), (2, 5), 1).cpu(),
]
y = torch.zeros(60).to(device)
y.as_strided((4, 5), (12, 1), 2).copy_(x[:4, :5])
y[::7] += 1
y.view(12, 5)[[0, 3], 1:3] = 9.0
r["st"] = y.cpu()
r["hist2"] = [torch.histogramdd(x[:, :2].cpu(), [3, 3])[0], torch.histogram(x.cpu(), 4)[0]]
r["ix"] = [
    torch.take_along_dim(x, x.argsort(1), 1).cpu(),
    torch.take(x, i[:5]).cpu(),
    torch.index_select(x, 1, i[:4]).cpu(),
    x.index_fill(0, i[:2] % 5, -1).cpu(),
    x.masked_scatter(x > 0, -x.abs()).cpu(),
    x.put(i[:3], x[0, :3]).cpu(),
    x.index_put((i[:3] % 5, i[:3]), torch.tensor(1.0, device=device), accumulate=True).cpu(),
    x.index_copy(0, torch.tensor([0, 2], device=device), x[:2] * 2).cpu(),
    torch.diagonal_scatter(x, torch.ones(5, device=device)).cpu(),
    torch.select_scatter(x, x[0], 0, 2).cpu(),
    torch.slice_scatter(x, x[:2], 0, 1, 5, 2).cpu(),
]
r["es"] = [
    torch.einsum(e, *a).cpu()
    for e, a in (
        ("ij,kj->ik", (x, x)),
        ("ij->j", (x,)),
        ("ii->i", (x[:, :5],)),
        ("...i,...i->...", (x, x)),
        ("i,j->ij", (x[0], x[1])),
        ("bij,bjk->bik", (x.reshape(5, 3, 4), x.reshape(5, 4, 3))),
        ("ab,cb,db->acd", (x, x, x)),
        ("ij,ij->", (x, x)),
        ("bi,oi,bj->bo", (x, x[:2], x)),
    )
]
r["int"] = [
    torch.bitwise_left_shift(i, 2).cpu(),
    (i ^ 3).cpu(),
    (~i).cpu(),
    torch.gcd(i, torch.tensor(4, device=device)).cpu(),
    (i // -4).cpu(),
    (i % -4).cpu(),
    torch.fmod(i - 3, 4).cpu(),
    torch.div(i - 3, 2, rounding_mode="trunc").cpu(),
    (i.to(torch.uint8) - 3).cpu(),
    i.to(torch.int8).mul(100).cpu(),
    torch.pow(i, 2).cpu(),
    torch.pow(2, i).cpu(),
]
torch.save(r, sys.argv[1])
