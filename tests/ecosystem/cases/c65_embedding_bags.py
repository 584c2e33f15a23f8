"""Embedding bags in all modes, padding, weights, sparse gradients, max_norm embeddings, a factorisation machine"""

import sys

import torch
import torch.nn as nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
r = {}
idx = torch.tensor([1, 2, 4, 5, 4, 3, 2, 9]).to(device)
off = torch.tensor([0, 3, 3, 6]).to(device)
for mode in ("sum", "mean", "max"):
    for kw in ({}, {"padding_idx": 2}, {"include_last_offset": True}):
        torch.manual_seed(0)
        e = nn.EmbeddingBag(10, 3, mode=mode, **kw).to(device)
        o = off if not kw.get("include_last_offset") else torch.cat([off, torch.tensor([8], device=device)])
        out = e(idx, o)
        out.pow(2).sum().backward()
        r[mode + str(kw)] = [out.detach().cpu(), e.weight.grad.cpu()]
torch.manual_seed(0)
e = nn.EmbeddingBag(10, 3, mode="sum").to(device)
w = torch.rand(2, 4).to(device).requires_grad_()
out = e(idx.reshape(2, 4), per_sample_weights=w)
out.pow(2).sum().backward()
r["psw"] = [out.detach().cpu(), e.weight.grad.cpu(), w.grad.cpu()]
e = nn.EmbeddingBag(10, 3, mode="sum", sparse=True).to(device)
e(idx, off).sum().backward()
r["sp"] = [e.weight.grad.is_sparse, e.weight.grad.to_dense().cpu()]
o = torch.optim.SparseAdam(list(e.parameters()), 0.1)
o.step()
r["spa"] = e.weight.detach().cpu()
m = nn.Embedding(10, 3, max_norm=0.5, norm_type=1.0).to(device)
r["mn"] = [m(idx).detach().cpu(), m.weight.detach().cpu()]
f = nn.Embedding(10, 3, scale_grad_by_freq=True, padding_idx=4).to(device)
f(idx).sum().backward()
r["freq"] = f.weight.grad.cpu()
fp = nn.Embedding.from_pretrained(torch.arange(12.0).reshape(4, 3), freeze=False).to(device)
r["fp"] = fp(torch.tensor([[0, 3]], dtype=torch.int32, device=device)).detach().cpu()


class FM(nn.Module):
    def __init__(self):
        super().__init__()
        self.b, self.v = nn.EmbeddingBag(10, 1, mode="sum"), nn.Embedding(10, 4)

    def forward(self, i):
        v = self.v(i)
        return self.b(i).squeeze(1) + 0.5 * (v.sum(1).pow(2) - v.pow(2).sum(1)).sum(1)


fm = FM().to(device)
opt = torch.optim.Adagrad(fm.parameters(), 0.1)
t = torch.tensor([1.0, 0.0]).to(device)
ls = []
for _ in range(4):
    opt.zero_grad()
    l = nn.functional.binary_cross_entropy_with_logits(fm(idx.reshape(2, 4)), t, pos_weight=torch.tensor(2.0, device=device))
    l.backward()
    opt.step()
    ls.append(l.item())
r["fm"] = ls
sg = nn.Embedding(10, 4, sparse=True).to(device)
so = torch.optim.SGD(sg.parameters(), 0.1, momentum=0.0)
for _ in range(2):
    so.zero_grad()
    sg(idx).pow(2).sum().backward()
    so.step()
r["sgd"] = sg.weight.detach().cpu()
torch.save(r, sys.argv[1])
