"""A C++ extension that calls ATen on device tensors."""

# timeout: 600
import sys

import torch
from torch.utils.cpp_extension import load_inline

device = "cuda" if torch.cuda.is_available() else "cpu"
source = "torch::Tensor f(torch::Tensor x) { return at::relu(x) * 2 + x.sum(); }"
module = load_inline("f", source, functions=["f"], build_directory=".")
results = {"f": module.f(torch.arange(-2.0, 3.0).to(device)).cpu()}
torch.save(results, sys.argv[1])
