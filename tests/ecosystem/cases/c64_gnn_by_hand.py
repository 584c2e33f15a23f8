"""Graph networks by hand: a sparse adjacency matrix, attention over edges by scatter, top-k pooling, segment reductions"""

import sys

import torch
import torch.nn as nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
N, E = 20, 60
ei = torch.randint(0, N, (2, E)).to(device)
x = torch.randn(N, 5).to(device)
y = torch.randint(0, 3, (N,)).to(device)
r = {}
loops = torch.arange(N, device=device)
full = torch.cat([ei, loops.repeat(2, 1)], 1)
A = torch.sparse_coo_tensor(full, torch.ones(full.shape[1], device=device), (N, N)).coalesce()
deg = torch.sparse.sum(A, 1).to_dense()
v = A.values() * deg[A.indices()[0]].rsqrt() * deg[A.indices()[1]].rsqrt()
An = torch.sparse_coo_tensor(A.indices(), v, A.shape)
w1, w2 = nn.Linear(5, 8).to(device), nn.Linear(8, 3).to(device)
opt = torch.optim.Adam([*w1.parameters(), *w2.parameters()], 0.02)
ls = []
for _ in range(5):
    opt.zero_grad()
    h = torch.sparse.mm(An, w1(x)).relu()
    o = torch.spmm(An, w2(h))
    l = nn.functional.cross_entropy(o, y)
    l.backward()
    opt.step()
    ls.append(l.item())
r["gcn"] = ls
src, dst = full
W, a = nn.Linear(5, 4, bias=False).to(device), torch.randn(8).to(device).requires_grad_()
h = W(x)
e = nn.functional.leaky_relu(torch.cat([h[src], h[dst]], 1) @ a, 0.2)
mx = torch.full((N,), -1e9, device=device).scatter_reduce(0, dst, e, "amax")
ex = (e - mx[dst]).exp()
al = ex / torch.zeros(N, device=device).scatter_add(0, dst, ex)[dst]
out = torch.zeros(N, 4, device=device).index_add(0, dst, h[src] * al[:, None])
out.pow(2).sum().backward()
r["gat"] = [out.detach().cpu(), a.grad.cpu(), W.weight.grad.cpu()]
s = torch.rand(N).to(device)
k = s.topk(10).indices.sort().values
mask = torch.zeros(N, dtype=torch.bool, device=device)
mask[k] = True
keep = mask[src] & mask[dst]
mp = torch.full((N,), -1, dtype=torch.long, device=device)
mp[k] = torch.arange(10, device=device)
r["pool"] = [mp[full[:, keep]].cpu(), x[k].mul(s[k, None]).cpu()]
batch = torch.arange(N, device=device) // 7
for red in ("sum", "mean", "amax", "amin", "prod"):
    t = x.clone().requires_grad_()
    o = torch.zeros(3, 5, device=device).scatter_reduce(0, batch[:, None].expand(-1, 5), t, red, include_self=False)
    o.pow(2).sum().backward()
    r["sr" + red] = [o.detach().cpu(), t.grad.cpu()]
    o = torch.ones(3, 5, device=device).index_reduce_(0, batch, x, red if red != "sum" else "mean", include_self=True)
    r["ir" + red] = o.cpu()
u, inv, cnt = torch.unique(full, dim=1, return_inverse=True, return_counts=True)
r["uniq"] = [u.cpu(), inv.cpu(), cnt.cpu()]
key, perm = (dst * N + src).sort(stable=True)
ptr = torch.searchsorted(dst[perm].contiguous(), torch.arange(N + 1, device=device))
r["ptr"] = [ptr.cpu(), torch.bincount(dst, minlength=N).cumsum(0).cpu()]
r["segr"] = torch.segment_reduce(x, "max", lengths=torch.tensor([7, 7, 6], device=device)).cpu()
dense = A.to_dense()
r["lap"] = [(torch.diag(deg) - dense).cpu(), dense.nonzero().t().cpu(), torch.block_diag(dense[:2, :2], dense[:3, :3]).cpu()]
csr = dense.to_sparse_csr()
r["csr"] = [csr.crow_indices().cpu(), csr.col_indices().cpu(), (csr @ x).cpu()]
Av = torch.randn(full.shape[1]).to(device).requires_grad_()
B = torch.sparse_coo_tensor(full, Av, (N, N))
torch.sparse.mm(B, x).sum().backward()
r["spg"] = Av.grad.cpu()
r["addmm"] = [
    torch.sparse.softmax(A, 1).to_dense().cpu(),
    An.t().to_dense().cpu(),
    (An * 2).to_dense().cpu(),
    An.transpose(0, 1).coalesce().values().cpu(),
    torch.sparse.mm(An, An).to_dense().cpu(),
]
torch.save(r, sys.argv[1])
