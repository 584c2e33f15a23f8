"""A device tensor given to CuPy."""

# requires: cupy
# cpu: no
import sys

import cupy
import torch

x = torch.ones(4, device="cuda")
y = cupy.from_dlpack(x)
torch.save({"sum": float(y.sum())}, sys.argv[1])
