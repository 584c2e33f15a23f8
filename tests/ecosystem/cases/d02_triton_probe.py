"""torch asked whether Triton is there."""

# cpu: no
import sys

import torch
from torch.utils._triton import has_triton

assert torch.cuda.is_available()
assert not has_triton()
torch.save({"has": False}, sys.argv[1])
