"""A model whose operators are CUDA sources given to load_inline: a softmax with shuffles, a tiled product, a gated activation with its
gradient, trained for some steps."""

# cpu: no
# timeout: 600
import sys

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

DECLARED = """
torch::Tensor softmax(torch::Tensor x);
torch::Tensor matmul(torch::Tensor a, torch::Tensor b);
torch::Tensor gate(torch::Tensor x);
torch::Tensor gate_backward(torch::Tensor gradient, torch::Tensor x);
"""

SOURCE = r"""
#include <ATen/cuda/CUDAContext.h>
#define CHECK_INPUT(x) TORCH_CHECK(x.is_cuda() && x.is_contiguous(), #x " must be a contiguous CUDA tensor")
constexpr int TILE = 16;

template <typename Op>
__device__ __forceinline__ float warp_reduce(float value, Op op) {
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) value = op(value, __shfl_xor_sync(0xffffffff, value, offset));
  return value;
}

struct Larger { __device__ float operator()(float a, float b) const { return fmaxf(a, b); } };
struct Sum { __device__ float operator()(float a, float b) const { return a + b; } };

__global__ void softmax_rows(const float* __restrict__ x, float* __restrict__ y, int rows, int columns) {
  const int row = blockIdx.x * blockDim.y + threadIdx.y;
  if (row >= rows) return;
  x += row * columns;
  y += row * columns;
  float most = -INFINITY, sum = 0.f;
  for (int i = threadIdx.x; i < columns; i += 32) most = fmaxf(most, x[i]);
  most = warp_reduce(most, Larger());
  for (int i = threadIdx.x; i < columns; i += 32) sum += expf(x[i] - most);
  sum = warp_reduce(sum, Sum());
  for (int i = threadIdx.x; i < columns; i += 32) y[i] = expf(x[i] - most) / sum;
}

template <int N>
__global__ void matmul_tiled(const float* a, const float* b, float* c, int m, int n, int k) {
  __shared__ float left[N][N], right[N][N + 1];
  const int row = blockIdx.y * N + threadIdx.y, column = blockIdx.x * N + threadIdx.x;
  float sum = 0.f;
  for (int at = 0; at < k; at += N) {
    left[threadIdx.y][threadIdx.x] = row < m && at + threadIdx.x < k ? a[row * k + at + threadIdx.x] : 0.f;
    right[threadIdx.y][threadIdx.x] = column < n && at + threadIdx.y < k ? b[(at + threadIdx.y) * n + column] : 0.f;
    __syncthreads();
    for (int i = 0; i < N; ++i) sum += left[threadIdx.y][i] * right[i][threadIdx.x];
    __syncthreads();
  }
  if (row < m && column < n) c[row * n + column] = sum;
}

template <typename scalar_t, bool GRADIENT>
__global__ void gate_kernel(const scalar_t* gradient, const scalar_t* x, scalar_t* y, size_t n) {
  for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x) {
    const scalar_t s = scalar_t(1) / (scalar_t(1) + exp(-x[i]));
    if constexpr (GRADIENT)
      y[i] = gradient[i] * s * (scalar_t(1) + x[i] * (scalar_t(1) - s));
    else
      y[i] = x[i] * s;
  }
}

torch::Tensor softmax(torch::Tensor x) {
  CHECK_INPUT(x);
  auto y = torch::empty_like(x);
  const dim3 block(32, 4);
  softmax_rows<<<(x.size(0) + 3) / 4, block>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.size(0), x.size(1));
  return y;
}

torch::Tensor matmul(torch::Tensor a, torch::Tensor b) {
  CHECK_INPUT(a);
  CHECK_INPUT(b);
  auto c = torch::empty({a.size(0), b.size(1)}, a.options());
  const dim3 grid((b.size(1) + TILE - 1) / TILE, (a.size(0) + TILE - 1) / TILE), block(TILE, TILE);
  matmul_tiled<TILE><<<grid, block, 0, at::cuda::getCurrentCUDAStream()>>>(
      a.data_ptr<float>(), b.data_ptr<float>(), c.data_ptr<float>(), a.size(0), b.size(1), a.size(1));
  return c;
}

template <bool GRADIENT>
torch::Tensor gated(torch::Tensor gradient, torch::Tensor x) {
  CHECK_INPUT(x);
  auto y = torch::empty_like(x);
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "gate", [&] {
    gate_kernel<scalar_t, GRADIENT><<<8, 128>>>(gradient.data_ptr<scalar_t>(), x.data_ptr<scalar_t>(), y.data_ptr<scalar_t>(), x.numel());
  });
  return y;
}

torch::Tensor gate(torch::Tensor x) { return gated<false>(x, x); }
torch::Tensor gate_backward(torch::Tensor gradient, torch::Tensor x) { return gated<true>(gradient, x); }
"""

ops = load_inline("own_operators", DECLARED, SOURCE, functions=["softmax", "matmul", "gate", "gate_backward"], extra_cuda_cflags=["-O3"])

x, w = torch.randn(33, 70, device="cuda"), torch.randn(70, 45, device="cuda")
torch.testing.assert_close(ops.softmax(x), x.softmax(1))
torch.testing.assert_close(ops.matmul(x, w), x @ w, rtol=1e-4, atol=1e-4)
try:
    ops.softmax(torch.randn(2, 2))
except RuntimeError as error:
    assert "x must be a contiguous CUDA tensor" in str(error)
else:
    raise AssertionError("a tensor of the CPU was taken")


class Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return ops.gate(x)

    @staticmethod
    def backward(ctx, gradient):
        return ops.gate_backward(gradient.contiguous(), *ctx.saved_tensors)


given = torch.randn(4, 5, dtype=torch.float64, device="cuda", requires_grad=True)
assert torch.autograd.gradcheck(Gate.apply, given)

torch.manual_seed(0)
first, second = nn.Linear(10, 32).cuda(), nn.Linear(32, 1).cuda()
optimizer = torch.optim.Adam([*first.parameters(), *second.parameters()], lr=1e-2)
inputs = torch.randn(256, 10, device="cuda")
wanted = inputs[:, :1] * inputs[:, 1:2]
losses = []
for _ in range(60):
    loss = nn.functional.mse_loss(second(Gate.apply(first(inputs))), wanted)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.detach())
assert losses[-1] < 0.5 * losses[0], (losses[0], losses[-1])
torch.save({"losses": torch.stack(losses).cpu()}, sys.argv[1])
