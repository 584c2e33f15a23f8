"""Three scripts at once."""

import subprocess
import sys

import torch

code = """
import sys, torch
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(int(sys.argv[1]))
x = torch.randn(32, 32).to(device)
for _ in range(20):
    x = (x @ x.T).softmax(-1) + 0.1
print(round(x.std().item(), 5))
"""
children = [subprocess.Popen([sys.executable, "-c", code, str(i)], stdout=subprocess.PIPE, text=True) for i in range(3)]
results = {"values": [float(child.communicate()[0]) for child in children]}
torch.save(results, sys.argv[1])
