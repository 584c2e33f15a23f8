"""A loop after nanoGPT: gradient accumulation, autocast, clipping, estimates of the loss, sampling, checkpoints."""

# tolerance: 5e-2
import math
import sys

import torch
from torch import nn
from torch.nn import functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"


class Block(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.a, self.b, self.qkv, self.out = nn.LayerNorm(n), nn.LayerNorm(n), nn.Linear(n, 3 * n), nn.Linear(n, n)
        self.mlp = nn.Sequential(nn.Linear(n, 4 * n), nn.GELU(), nn.Linear(4 * n, n))

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in self.qkv(self.a(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mlp(self.b(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.token, self.place = nn.Embedding(32, 32), nn.Embedding(16, 32)
        self.blocks, self.norm, self.head = nn.Sequential(Block(32), Block(32)), nn.LayerNorm(32), nn.Linear(32, 32, bias=False)

    def forward(self, ids):
        return self.head(self.norm(self.blocks(self.token(ids) + self.place(torch.arange(ids.shape[1], device=ids.device)))))


torch.manual_seed(0)
text = torch.arange(400) * 7 % 31
model = GPT().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), fused=device == "cuda")
losses = []
for step in range(6):
    for group in optimizer.param_groups:
        group["lr"] = 1e-3 * 0.5 * (1 + math.cos(step / 6))
    for micro in range(2):
        at = [(step * 31 + micro * 17 + j * 5) % 380 for j in range(4)]
        x, y = (torch.stack([text[i + o : i + o + 16] for i in at]).to(device) for o in (0, 1))
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x).view(-1, 32), y.view(-1)) / 2
        loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    losses.append(loss.item() * 2)
ids = torch.zeros(1, 1, dtype=torch.long, device=device)
with torch.no_grad():
    for _ in range(8):
        probabilities = F.softmax(model(ids[:, -16:])[:, -1] / 0.8, -1)
        ids = torch.cat([ids, torch.multinomial(probabilities, 1)], 1)
results = {"losses": losses, "sampled": ids.shape, "range": bool(((ids >= 0) & (ids < 32)).all())}
torch.save(results, sys.argv[1])
