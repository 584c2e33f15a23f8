"""A classifier whose softmax is a kernel in CUDA C++, forward and backward, inside of autograd; on the CPU it is torch's own.

The only script here that imports us: for the class that CuPy users would import from CuPy.
"""

import sys

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"

SOURCE = r"""
__device__ float block_fold(float v, float *s, bool sum) {
    int t = threadIdx.x;
    s[t] = v;
    __syncthreads();
    for (int half = blockDim.x / 2; half > 0; half >>= 1) {
        if (t < half) s[t] = sum ? s[t] + s[t + half] : fmaxf(s[t], s[t + half]);
        __syncthreads();
    }
    float r = s[0];
    __syncthreads();
    return r;
}

extern "C" __global__ void softmax(const float *x, float *y, int cols) {
    extern __shared__ float s[];
    const float *row = x + (long long)blockIdx.x * cols;
    float top = -INFINITY, total = 0.0f;
    for (int i = threadIdx.x; i < cols; i += blockDim.x) top = fmaxf(top, row[i]);
    top = block_fold(top, s, false);
    for (int i = threadIdx.x; i < cols; i += blockDim.x) total += expf(row[i] - top);
    total = block_fold(total, s, true);
    for (int i = threadIdx.x; i < cols; i += blockDim.x) y[(long long)blockIdx.x * cols + i] = expf(row[i] - top) / total;
}

extern "C" __global__ void softmax_backward(const float *y, const float *dy, float *dx, int cols) {
    extern __shared__ float s[];
    long long at = (long long)blockIdx.x * cols;
    float dot = 0.0f;
    for (int i = threadIdx.x; i < cols; i += blockDim.x) dot += y[at + i] * dy[at + i];
    dot = block_fold(dot, s, true);
    for (int i = threadIdx.x; i < cols; i += blockDim.x) dx[at + i] = y[at + i] * (dy[at + i] - dot);
}
"""
THREADS = 64

if device == "cuda":
    from wooly import RawModule

    module = RawModule(code=SOURCE)
    forward, backward = module.get_function("softmax"), module.get_function("softmax_backward")


class Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        forward((x.shape[0],), (THREADS,), (x, y, x.shape[1]), shared_mem=4 * THREADS)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, dy):
        (y,) = ctx.saved_tensors
        dx = torch.empty_like(y)
        backward((y.shape[0],), (THREADS,), (y, dy.contiguous(), dx, y.shape[1]), shared_mem=4 * THREADS)
        return dx


def softmax(x):
    return Softmax.apply(x) if device == "cuda" else torch.softmax(x, 1)


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 100), nn.Tanh(), nn.Linear(100, 37)).to(device)
x, y = torch.randn(64, 32).to(device), torch.randint(0, 37, (64,)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
losses = []
for _ in range(12):
    optimizer.zero_grad()
    loss = -(softmax(model(x)).gather(1, y[:, None]) + 1e-9).log().mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
torch.save({"losses": torch.tensor(losses), "weights": {k: v.cpu() for k, v in model.state_dict().items()}}, sys.argv[1])
