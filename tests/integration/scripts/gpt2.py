"""GPT-2 with tied weights: three training steps; the tie must survive the move to the device."""

import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
config = GPT2Config(vocab_size=101, n_positions=32, n_embd=48, n_layer=2, n_head=3, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
model = GPT2LMHeadModel(config).to(device)
assert model.lm_head.weight is model.transformer.wte.weight
model.train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
ids = torch.randint(0, 101, (4, 24)).to(device)
losses = []
for _ in range(3):
    loss = model(ids, labels=ids).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
torch.save({"losses": torch.tensor(losses), "weights": {k: v.cpu() for k, v in model.state_dict().items()}}, sys.argv[1])
