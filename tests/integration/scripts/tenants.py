"""Several people's jobs on one base model, one a process: ``tenants.py OUT BASE HOW`` loads the base as HOW says, waits for a line on its
standard input, then trains it, fine-tunes a head on it or answers from it."""

import sys

import torch
from safetensors.torch import load_file
from torch import nn

OUT, BASE, HOW = sys.argv[1:]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def make():
    torch.manual_seed(7)
    layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)


def load():
    if HOW == "train":  # made here, moved there
        model = make()
        model.load_state_dict(load_file(BASE))
        return model.to(DEVICE)
    if HOW == "head":  # made there, filled from here
        model = make().to(DEVICE)
        model.load_state_dict(load_file(BASE))
        return model.requires_grad_(False)
    model = make().to("meta")
    model.load_state_dict(load_file(BASE, device=DEVICE), assign=True)
    return model.requires_grad_(False)


base = load()
torch.cuda.synchronize() if DEVICE == "cuda" else None
allocated = torch.cuda.memory_allocated() if DEVICE == "cuda" else 0
print("loaded", allocated, flush=True)
sys.stdin.readline()

torch.manual_seed(1)
x = torch.randn(2, 8, 256).to(DEVICE)
results = []
if HOW == "train":
    optimizer = torch.optim.SGD(base.parameters(), lr=1e-3)
    for _ in range(2):
        loss = base(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        results.append(loss.detach().cpu())
elif HOW == "head":
    head = nn.Linear(256, 4).to(DEVICE)
    optimizer = torch.optim.SGD(head.parameters(), lr=1e-2)
    for _ in range(3):
        loss = head(base(x)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        results.append(loss.detach().cpu())
else:
    with torch.no_grad():
        results = [base(x).cpu() for _ in range(3)]
print("worked", flush=True)
sys.stdin.readline()
torch.save({"results": results, "weights": [p.detach().cpu() for p in base.parameters()]}, OUT)
