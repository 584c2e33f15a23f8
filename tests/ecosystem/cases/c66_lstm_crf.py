"""A BiLSTM-CRF by hand: packed sequences, the forward algorithm, Viterbi; projections, stacked GRUs, truncated backpropagation"""

import sys

import torch
import torch.nn as nn
from torch.nn.utils.rnn import pack_padded_sequence, pack_sequence, pad_packed_sequence, pad_sequence, unpad_sequence

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
T = 4


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(20, 6, padding_idx=0)
        self.l = nn.LSTM(6, 5, 2, bidirectional=True, batch_first=True)
        self.o = nn.Linear(10, T)
        self.tr = nn.Parameter(torch.randn(T, T))

    def emit(self, x, n):
        p = pack_padded_sequence(self.e(x), n.cpu(), batch_first=True, enforce_sorted=False)
        h, _ = self.l(p)
        h, _ = pad_packed_sequence(h, batch_first=True)
        return self.o(h)

    def nll(self, x, y, m):
        em = self.emit(x, m.sum(1))
        a = em[:, 0]
        s = em[:, 0].gather(1, y[:, :1]).squeeze(1)
        for t in range(1, em.shape[1]):
            n = torch.logsumexp(a[:, :, None] + self.tr + em[:, t, None], 1)
            a = torch.where(m[:, t, None], n, a)
            s = s + m[:, t] * (em[:, t].gather(1, y[:, t, None]).squeeze(1) + self.tr[y[:, t - 1], y[:, t]])
        return (torch.logsumexp(a, 1) - s).mean()

    def viterbi(self, x, m):
        em = self.emit(x, m.sum(1))
        a, back = em[:, 0], []
        for t in range(1, em.shape[1]):
            v, i = (a[:, :, None] + self.tr).max(1)
            back.append(i)
            a = torch.where(m[:, t, None], v + em[:, t], a)
        paths = []
        for b in range(x.shape[0]):
            k = a[b].argmax().item()
            p = [k]
            for i in reversed(back[: int(m[b].sum()) - 1]):
                k = i[b, k].item()
                p.append(k)
            paths.append(p[::-1])
        return paths


m = Tagger().to(device)
n = [6, 3, 5, 1]
xs = [torch.randint(1, 20, (k,)) for k in n]
x = pad_sequence(xs, batch_first=True).to(device)
y = torch.randint(0, T, x.shape).to(device)
mask = x != 0
opt = torch.optim.Adam(m.parameters(), 0.05)
r = {"l": []}
for _ in range(4):
    opt.zero_grad()
    l = m.nll(x, y, mask)
    l.backward()
    r["gn"] = nn.utils.clip_grad_norm_(m.parameters(), 5.0, foreach=True).item()
    opt.step()
    r["l"].append(l.item())
r["v"] = m.viterbi(x, mask)
lp = nn.LSTM(6, 5, 1, proj_size=3).to(device)
o, (h, c) = lp(torch.randn(4, 2, 6).to(device))
o.sum().backward()
r["proj"] = [o.detach().cpu(), h.detach().cpu(), lp.weight_hr_l0.grad.cpu()]
ps = pack_sequence([torch.randn(k, 6).to(device) for k in (5, 3, 2)])
for cls in (nn.GRU, nn.RNN):
    torch.manual_seed(3)
    g = cls(6, 4, 2, bidirectional=True).to(device)
    o, h = g(ps)
    o.data.pow(2).sum().backward()
    r[cls.__name__] = [
        o.data.detach().cpu(),
        h.detach().cpu(),
        g.weight_ih_l1_reverse.grad.cpu(),
        o.batch_sizes,
        [t.shape for t in unpad_sequence(*pad_packed_sequence(o))],
    ]
    r[cls.__name__ + "dev"] = str(o.data.device.type) == device
s = nn.LSTM(3, 4, batch_first=True).to(device)
st = None
z = torch.randn(2, 12, 3).to(device)
ls = []
for ch in z.split(4, 1):
    o, st = s(ch, st)
    st = tuple(t.detach() for t in st)
    l = o.mean()
    l.backward()
    ls.append(l.item())
r["tbptt"] = [ls, s.weight_hh_l0.grad.cpu()]
s.flatten_parameters()
hx = (torch.zeros(1, 4, device=device), torch.ones(1, 4, device=device))
r["unb"] = s(z[0], hx)[0].detach().cpu()
r["ps"] = [ps.to("cpu").data.shape, ps.is_cuda == (device == "cuda"), ps.cpu().sorted_indices]
torch.save(r, sys.argv[1])
