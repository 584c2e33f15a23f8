"""LSTM, GRU and RNN with packed sequences and cells, and CTC loss."""

import sys

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
x = torch.randn(3, 7, 5).to(device)
lengths = torch.tensor([7, 4, 2])
results = {}
for kind in (nn.LSTM, nn.GRU, nn.RNN):
    torch.manual_seed(1)
    model = kind(5, 6, num_layers=2, bidirectional=True, batch_first=True).to(device)
    out, _ = model(pack_padded_sequence(x, lengths, batch_first=True))
    out, _ = pad_packed_sequence(out, batch_first=True)
    out.square().sum().backward()
    results[kind.__name__] = [out.detach().cpu()] + [p.grad.cpu() for p in model.parameters()]
cell = nn.LSTMCell(5, 6).to(device)
cell.load_state_dict({n: torch.cos(torch.arange(p.numel(), dtype=torch.float32)).view(p.shape) for n, p in cell.state_dict().items()})
results["cell"] = [t.detach().cpu() for t in cell(x[:, 0])]
scores = torch.randn(12, 2, 6).to(device).requires_grad_()
loss = nn.CTCLoss()(
    scores.log_softmax(2), torch.tensor([[1, 2, 2, 3], [4, 5, 0, 0]]).to(device), torch.tensor([12, 10]), torch.tensor([4, 2])
)
loss.backward()
results["ctc"] = [loss.item(), scores.grad.cpu()]
torch.save(results, sys.argv[1])
