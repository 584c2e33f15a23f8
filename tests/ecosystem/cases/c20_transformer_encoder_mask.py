"""nn.TransformerEncoder with padding: training, and the fast path of inference."""

import sys

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
model = nn.TransformerEncoder(layer, 2).to(device)
x = torch.randn(3, 6, 16).to(device)
padding = (torch.arange(6)[None] >= torch.tensor([6, 4, 2])[:, None]).to(device)
causal = nn.Transformer.generate_square_subsequent_mask(6, device=device)
out = model(x, src_key_padding_mask=padding)
out[~padding].square().sum().backward()
results = {
    "train": out[~padding].detach().cpu(),
    "grad": model.layers[0].linear1.weight.grad.cpu(),
    "causal": model(x, mask=causal, is_causal=True).detach().cpu(),
}
model.eval()
with torch.no_grad():
    results["eval"] = model(x, src_key_padding_mask=padding)[~padding].cpu()
decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(16, 2, 32, dropout=0.0, batch_first=True), 1).to(device)
results["decoder"] = decoder(x, x, tgt_mask=causal, memory_key_padding_mask=padding).detach().cpu()
torch.save(results, sys.argv[1])
