"""torchao: weights quantised to 8 bits."""

# requires: torchao
# tolerance: 1e-2
import sys

import torch
from torchao.quantization import Int8WeightOnlyConfig, quantize_

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8)).to(device)
x = torch.randn(4, 32).to(device)
results = {"before": model(x).detach().cpu()}
quantize_(model, Int8WeightOnlyConfig())
results["int8"] = model(x).detach().cpu()
torch.save(results, sys.argv[1])
