"""A C++ extension with CUDA sources, compiled by torch.utils.cpp_extension."""

# cpu: no
# timeout: 600
import sys

import torch
from torch.utils.cpp_extension import load_inline

cuda = """
__global__ void k(float* x, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] *= 2; }
torch::Tensor twice(torch::Tensor x) { auto y = x.clone(); k<<<1, 64>>>(y.data_ptr<float>(), y.numel()); return y; }
"""
module = load_inline("twice", "torch::Tensor twice(torch::Tensor x);", cuda, functions=["twice"])
y = module.twice(torch.ones(4, device="cuda")).cpu()
assert y.tolist() == [2.0] * 4
torch.save({"y": y}, sys.argv[1])
