"""A training whose printed losses and digest of all weights tell every lost, repeated or changed operation."""

import hashlib

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Dropout(0.1), nn.LayerNorm(128), nn.Linear(128, 10)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
draw = torch.Generator().manual_seed(1)
for step in range(400):
    inputs, labels = torch.randn(64, 64, generator=draw), torch.randint(0, 10, (64,), generator=draw)
    loss = nn.functional.cross_entropy(model(inputs.cuda()), labels.cuda())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        print(step, f"{loss.item():.9f}", flush=True)
digest = hashlib.sha256()
for tensor in model.state_dict().values():
    digest.update(tensor.cpu().numpy().tobytes())
print(digest.hexdigest(), flush=True)
