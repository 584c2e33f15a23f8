"""Kernels of numba.cuda on tensors and on its own arrays: shared memory, atomics, random numbers, declared signatures."""

# requires: numba
# cpu: no
import math
import sys

import numpy as np
import torch
from numba import cuda, float32
from numba.cuda.random import create_xoroshiro128p_states, xoroshiro128p_uniform_float32


@cuda.jit(device=True)
def squared(x):
    return x * x


@cuda.jit
def wave(x, y, a):
    i = cuda.grid(1)
    if i < x.size:
        y[i] = math.sin(x[i]) * a + squared(x[i])
        cuda.atomic.add(y, 0, 1.0)


@cuda.jit("void(float32[:,:], float32[:,:], float32[:,:])")
def matmul(a, b, c):
    tile_a = cuda.shared.array(shape=(16, 16), dtype=float32)
    tile_b = cuda.shared.array(shape=(16, 16), dtype=float32)
    column, row = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    total = float32(0.0)
    for i in range((a.shape[1] + 15) // 16):
        tile_a[ty, tx] = a[row, tx + i * 16] if row < a.shape[0] and tx + i * 16 < a.shape[1] else 0
        tile_b[ty, tx] = b[ty + i * 16, column] if column < b.shape[1] and ty + i * 16 < b.shape[0] else 0
        cuda.syncthreads()
        for j in range(16):
            total += tile_a[ty, j] * tile_b[j, tx]
        cuda.syncthreads()
    if row < c.shape[0] and column < c.shape[1]:
        c[row, column] = total


@cuda.jit
def estimate_pi(states, n, out):
    i = cuda.grid(1)
    inside = 0
    for _ in range(n):
        x = xoroshiro128p_uniform_float32(states, i)
        y = xoroshiro128p_uniform_float32(states, i)
        if x * x + y * y <= 1:
            inside += 1
    out[i] = 4.0 * inside / n


x = torch.arange(1000.0, device="cuda") / 100
y = torch.zeros(1000, device="cuda")
wave[4, 256](x, y, 2.5)
want = x.cpu().sin() * 2.5 + x.cpu() ** 2
want[0] += 1000
torch.testing.assert_close(y.cpu(), want)

a, b = torch.randn(50, 40, device="cuda"), torch.randn(30, 40, device="cuda").t()
c = torch.zeros(50, 30, device="cuda")
matmul[(2, 4), (16, 16)](a, b, c)
torch.testing.assert_close(c, a @ b)

array = cuda.to_device(np.arange(12.0).reshape(3, 4))
array[1] = 5
assert array.copy_to_host().sum() == 66 - 22 + 20 and array[2, 1] == 9
assert cuda.as_cuda_array(x)[::100].copy_to_host().tolist() == [float(i) for i in range(10)]

out = np.zeros(256, np.float32)
estimate_pi[4, 64](create_xoroshiro128p_states(256, seed=1), 1000, out)
assert abs(out.mean() - math.pi) < 0.02
torch.save({"y": y.cpu(), "pi": float(out.mean())}, sys.argv[1])
