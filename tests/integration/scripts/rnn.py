"""LSTM, GRU and a plain RNN: batches, layers, both directions, packed sequences; values and gradients."""

import sys

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
results = {}
for name, kind in {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}.items():
    torch.manual_seed(0)
    net = kind(5, 7, num_layers=2, batch_first=True, bidirectional=True).to(device)
    x = torch.randn(3, 6, 5).to(device).requires_grad_()
    out, state = net(x)
    out.square().sum().backward()
    packed = nn.utils.rnn.pack_padded_sequence(x.detach(), [6, 4, 2], batch_first=True)
    unpacked, _ = nn.utils.rnn.pad_packed_sequence(net(packed)[0], batch_first=True)
    state = state[0] if isinstance(state, tuple) else state
    gradients = {n: p.grad.cpu() for n, p in net.named_parameters()}
    results[name] = {
        "out": out.detach().cpu(),
        "state": state.detach().cpu(),
        "dx": x.grad.cpu(),
        "packed": unpacked.detach().cpu(),
        "grads": gradients,
    }
cell = nn.LSTMCell(4, 4).to(device)
torch.manual_seed(2)
for p in cell.parameters():
    p.data.copy_(torch.randn(p.shape))
h = c = torch.zeros(2, 4, device=device)
for _ in range(3):
    h, c = cell(torch.ones(2, 4, device=device), (h, c))
results["cell"] = h.detach().cpu()
torch.save(results, sys.argv[1])
