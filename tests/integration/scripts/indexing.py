"""Indexing, scattering, unique, topk, sorting and the like."""

import sys

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
x = torch.randn(6, 8).to(device)
i = torch.randint(0, 6, (5,)).to(device)
ids = torch.randint(0, 9, (40,)).to(device)
r = {}
r["rows"] = x[i]
r["pairs"] = x[i, i + 1]
r["steps"] = x[1::2, ::3]
r["none"] = x[None, ..., 2]
r["mask"] = x[x > 0]
r["masked_rows"] = x[x.sum(dim=1) > 0]
y = x.clone()
y[y < 0] = 0
y[2:4, 1:3] += 5
y[i] = -1
r["written"] = y
r["put"] = torch.zeros(9, device=device).index_put_((ids,), torch.ones(40, device=device), accumulate=True)
r["scatter_add"] = torch.zeros(9, device=device).scatter_add_(0, ids, torch.arange(40.0, device=device))
r["scatter_reduce"] = torch.zeros(9, device=device).scatter_reduce(0, ids, torch.arange(40.0, device=device), "amax")
r["gather"] = x.gather(1, torch.randint(0, 8, (6, 3)).to(device))
r["index_add"] = torch.zeros(6, 8, device=device).index_add_(0, i, torch.ones(5, 8, device=device))
r["unique"] = torch.unique(ids)
r["unique_all"] = torch.unique(ids, return_inverse=True, return_counts=True)
r["consecutive"] = torch.unique_consecutive(torch.tensor([1, 1, 2, 2, 2, 3, 1], device=device), return_counts=True)
r["topk"] = tuple(x.topk(3, dim=1))
r["smallest"] = tuple(x.topk(2, dim=0, largest=False))
r["sort"] = tuple(x.sort(dim=1, descending=True))
r["argsort"] = x.argsort(dim=0)
r["nonzero"] = (x > 1).nonzero()
r["where"] = torch.where(x > 0, x, -x)
r["where_indices"] = torch.where(x > 1)
r["masked_scatter"] = x.masked_scatter(x > 0, torch.arange(48.0, device=device))
r["bincount"] = torch.bincount(ids, minlength=12)
r["searchsorted"] = torch.searchsorted(torch.arange(8.0, device=device), torch.tensor([0.5, 3.0, 9.0], device=device))
r["repeat_interleave"] = torch.repeat_interleave(torch.arange(3, device=device), torch.tensor([1, 0, 2], device=device))
r["cumsum"] = x.cumsum(dim=1)
r["cummax"] = tuple(x.cummax(dim=0))
r["median"] = tuple(x.median(dim=1))
r["kthvalue"] = tuple(x.kthvalue(2, dim=1))
r["one_hot"] = torch.nn.functional.one_hot(i, 6)
r["roll_flip"] = x.roll(2, 1).flip(0)
r["tril"] = x.tril(-1) + x.triu(2)
r["einsum"] = torch.einsum("ij,kj->ik", x, x)
r["isin"] = torch.isin(ids, torch.tensor([1, 5], device=device))
r["take_along"] = torch.take_along_dim(x, x.argsort(dim=1), dim=1)


def to_cpu(value):
    if isinstance(value, torch.Tensor):
        return value.cpu()
    return tuple(to_cpu(v) for v in value)


torch.save({name: to_cpu(value) for name, value in r.items()}, sys.argv[1])
