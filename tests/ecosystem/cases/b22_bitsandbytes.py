"""bitsandbytes: an 8-bit optimiser, 4-bit and 8-bit layers."""

# requires: bitsandbytes
# cpu: no
import sys

import bitsandbytes as bnb
import torch

torch.manual_seed(0)
layer = bnb.nn.Linear4bit(64, 64, compute_dtype=torch.float32, quant_type="nf4").to("cuda")
x = torch.randn(3, 64, device="cuda")
assert layer(x).shape == (3, 64)
model = torch.nn.Linear(128, 64).cuda()
optimizer = bnb.optim.Adam8bit(model.parameters(), lr=1e-2)
model(torch.randn(4, 128, device="cuda")).sum().backward()
optimizer.step()
torch.save({"ok": True}, sys.argv[1])
