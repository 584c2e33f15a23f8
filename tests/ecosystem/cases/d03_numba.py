"""A device tensor given to numba.cuda."""

# requires: numba
# cpu: no
import sys

import torch
from numba import cuda

x = torch.ones(4, device="cuda")
array = cuda.as_cuda_array(x)
torch.save({"array": array.copy_to_host()}, sys.argv[1])
