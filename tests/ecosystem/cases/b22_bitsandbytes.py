"""bitsandbytes: 8-bit optimisers, 4-bit and 8-bit layers."""

# requires: bitsandbytes
# tolerance: 3e-2
import sys

import bitsandbytes as bnb
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
results = {}
layer = torch.nn.Linear(64, 64)
quantised = bnb.nn.Linear4bit(64, 64, compute_dtype=torch.float32, quant_type="nf4")
quantised.load_state_dict(layer.state_dict())
x = torch.randn(3, 64)
results["4 bits"] = quantised.to(device)(x.to(device)).detach().cpu()
for name in ("Adam8bit", "AdamW8bit", "Lion8bit", "RMSprop8bit"):
    torch.manual_seed(1)
    model = torch.nn.Linear(128, 64).to(device)
    optimizer = getattr(bnb.optim, name)(model.parameters(), lr=1e-2)
    inputs = torch.randn(4, 128).to(device)
    for _ in range(4):
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
    results[name] = model.weight.detach().norm(dim=1).cpu()  # states of 8 bits round single elements apart
torch.save(results, sys.argv[1])
