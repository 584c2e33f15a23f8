"""A package of point cloud operators whose setup.py has CUDA sources: built in place, imported by another process, trained through."""

# cpu: no
# timeout: 900
import subprocess
import sys
import tempfile
from pathlib import Path

SETUP = """
import os
import torch
from setuptools import setup
from torch.utils.cpp_extension import CUDA_HOME, BuildExtension, CUDAExtension

if not torch.cuda.is_available() or CUDA_HOME is None:
    raise NotImplementedError("CUDA is not available")
here = os.path.dirname(os.path.abspath(__file__))
setup(
    name="points",
    version="1.0",
    packages=["points"],
    ext_modules=[
        CUDAExtension(
            "points._ext",
            ["src/bindings.cpp", "src/sampling_gpu.cu", "src/group_points_gpu.cu"],
            include_dirs=[os.path.join(here, "include")],
            define_macros=[("WITH_CUDA", None)],
            extra_compile_args={
                "cxx": ["-O1"],
                "nvcc": ["-O3", "-DCUDA_HAS_FP16=1", "-D__CUDA_NO_HALF_OPERATORS__", "-gencode=arch=compute_80,code=sm_80"],
            },
        )
    ],
    cmdclass={"build_ext": BuildExtension},
)
"""

HEADER = r"""
#pragma once
#include <torch/extension.h>
#include <cmath>
#define CHECK_CUDA(x) TORCH_CHECK(x.is_cuda(), #x " must be a CUDA tensor")
#define CHECK_CONTIGUOUS(x) TORCH_CHECK(x.is_contiguous(), #x " must be a contiguous tensor")
#define CHECK_INPUT(x) CHECK_CUDA(x); CHECK_CONTIGUOUS(x)
#define TOTAL_THREADS 512

inline int opt_n_threads(int work_size) {
  const int pow_2 = std::log(static_cast<double>(work_size)) / std::log(2.0);
  return std::max(std::min(1 << pow_2, TOTAL_THREADS), 1);
}

at::Tensor furthest_point_sampling(at::Tensor points, const int nsamples);
at::Tensor ball_query(at::Tensor new_xyz, at::Tensor xyz, const float radius, const int nsample);
at::Tensor group_points(at::Tensor points, at::Tensor idx);
at::Tensor group_points_grad(at::Tensor grad_out, at::Tensor idx, const int n);
"""

BINDINGS = r"""
#include "points.h"
#ifndef WITH_CUDA
#error "this extension needs CUDA"
#endif
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("furthest_point_sampling", &furthest_point_sampling);
  m.def("ball_query", &ball_query);
  m.def("group_points", &group_points);
  m.def("group_points_grad", &group_points_grad);
}
"""

SAMPLING = r"""
#include <ATen/cuda/CUDAContext.h>
#include "points.h"

__device__ void __update(float *__restrict__ dists, int *__restrict__ dists_i, int idx1, int idx2) {
  const float v1 = dists[idx1], v2 = dists[idx2];
  const int i1 = dists_i[idx1], i2 = dists_i[idx2];
  dists[idx1] = max(v1, v2);
  dists_i[idx1] = v2 > v1 ? i2 : i1;
}

template <unsigned int block_size>
__global__ void furthest_point_sampling_kernel(int b, int n, int m, const float *__restrict__ dataset, float *__restrict__ temp, int *__restrict__ idxs) {
  if (m <= 0) return;
  __shared__ float dists[block_size];
  __shared__ int dists_i[block_size];
  const int batch_index = blockIdx.x, tid = threadIdx.x;
  dataset += batch_index * n * 3;
  temp += batch_index * n;
  idxs += batch_index * m;
  int old = 0;
  if (tid == 0) idxs[0] = old;
  __syncthreads();
  for (int j = 1; j < m; j++) {
    int besti = 0;
    float best = -1;
    const float x1 = dataset[old * 3 + 0], y1 = dataset[old * 3 + 1], z1 = dataset[old * 3 + 2];
    for (int k = tid; k < n; k += block_size) {
      const float x2 = dataset[k * 3 + 0], y2 = dataset[k * 3 + 1], z2 = dataset[k * 3 + 2];
      const float d = (x2 - x1) * (x2 - x1) + (y2 - y1) * (y2 - y1) + (z2 - z1) * (z2 - z1);
      const float d2 = min(d, temp[k]);
      temp[k] = d2;
      besti = d2 > best ? k : besti;
      best = d2 > best ? d2 : best;
    }
    dists[tid] = best;
    dists_i[tid] = besti;
    __syncthreads();
#pragma unroll
    for (unsigned int half = block_size / 2; half > 0; half /= 2) {
      if (tid < half) __update(dists, dists_i, tid, tid + half);
      __syncthreads();
    }
    old = dists_i[0];
    if (tid == 0) idxs[j] = old;
  }
}

at::Tensor furthest_point_sampling(at::Tensor points, const int nsamples) {
  CHECK_INPUT(points);
  const int b = points.size(0), n = points.size(1);
  at::Tensor output = torch::zeros({b, nsamples}, at::device(points.device()).dtype(at::ScalarType::Int));
  at::Tensor tmp = torch::full({b, n}, 1e10, at::device(points.device()).dtype(at::ScalarType::Float));
  cudaStream_t stream = at::cuda::getCurrentCUDAStream();
  switch (opt_n_threads(n)) {
    case 64:
      furthest_point_sampling_kernel<64><<<b, 64, 0, stream>>>(b, n, nsamples, points.data_ptr<float>(), tmp.data_ptr<float>(), output.data_ptr<int>());
      break;
    default:
      furthest_point_sampling_kernel<32><<<b, 32, 0, stream>>>(b, n, nsamples, points.data_ptr<float>(), tmp.data_ptr<float>(), output.data_ptr<int>());
  }
  AT_CUDA_CHECK(cudaGetLastError());
  return output;
}
"""

GROUPING = r"""
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>
#include "points.h"

__global__ void query_ball_point_kernel(int b, int n, int m, float radius, int nsample, const float *__restrict__ new_xyz,
                                        const float *__restrict__ xyz, int *__restrict__ idx) {
  const int batch_index = blockIdx.x;
  xyz += batch_index * n * 3;
  new_xyz += batch_index * m * 3;
  idx += m * nsample * batch_index;
  const float radius2 = radius * radius;
  for (int j = threadIdx.x; j < m; j += blockDim.x) {
    const float3 at = make_float3(new_xyz[j * 3 + 0], new_xyz[j * 3 + 1], new_xyz[j * 3 + 2]);
    for (int k = 0, cnt = 0; k < n && cnt < nsample; ++k) {
      const float x = xyz[k * 3 + 0], y = xyz[k * 3 + 1], z = xyz[k * 3 + 2];
      const float d2 = (at.x - x) * (at.x - x) + (at.y - y) * (at.y - y) + (at.z - z) * (at.z - z);
      if (d2 < radius2) {
        if (cnt == 0) {
          for (int l = 0; l < nsample; ++l) idx[j * nsample + l] = k;
        }
        idx[j * nsample + cnt] = k;
        ++cnt;
      }
    }
  }
}

__global__ void group_points_kernel(int b, int c, int n, int npoints, int nsample, const float *__restrict__ points, const int *__restrict__ idx,
                                    float *__restrict__ out) {
  points += blockIdx.x * n * c;
  idx += blockIdx.x * npoints * nsample;
  out += blockIdx.x * npoints * nsample * c;
  const int index = threadIdx.y * blockDim.x + threadIdx.x, stride = blockDim.y * blockDim.x;
  for (int i = index; i < c * npoints; i += stride) {
    const int l = i / npoints, j = i % npoints;
    for (int k = 0; k < nsample; ++k) out[(l * npoints + j) * nsample + k] = points[l * n + idx[j * nsample + k]];
  }
}

__global__ void group_points_grad_kernel(int b, int c, int n, int npoints, int nsample, const float *__restrict__ grad_out,
                                         const int *__restrict__ idx, float *__restrict__ grad_points) {
  grad_out += blockIdx.x * npoints * nsample * c;
  idx += blockIdx.x * npoints * nsample;
  grad_points += blockIdx.x * n * c;
  const int index = threadIdx.y * blockDim.x + threadIdx.x, stride = blockDim.y * blockDim.x;
  for (int i = index; i < c * npoints; i += stride) {
    const int l = i / npoints, j = i % npoints;
    for (int k = 0; k < nsample; ++k) atomicAdd(grad_points + l * n + idx[j * nsample + k], grad_out[(l * npoints + j) * nsample + k]);
  }
}

at::Tensor ball_query(at::Tensor new_xyz, at::Tensor xyz, const float radius, const int nsample) {
  CHECK_INPUT(new_xyz);
  CHECK_INPUT(xyz);
  const at::cuda::CUDAGuard guard(xyz.device());
  at::Tensor idx = torch::zeros({new_xyz.size(0), new_xyz.size(1), nsample}, at::device(new_xyz.device()).dtype(at::ScalarType::Int));
  query_ball_point_kernel<<<xyz.size(0), opt_n_threads(new_xyz.size(1)), 0, at::cuda::getCurrentCUDAStream()>>>(
      xyz.size(0), xyz.size(1), new_xyz.size(1), radius, nsample, new_xyz.data_ptr<float>(), xyz.data_ptr<float>(), idx.data_ptr<int>());
  return idx;
}

static dim3 opt_block_config(int x, int y) {
  const int x_threads = opt_n_threads(x), y_threads = std::max(std::min(opt_n_threads(y), TOTAL_THREADS / x_threads), 1);
  return dim3(x_threads, y_threads, 1);
}

at::Tensor group_points(at::Tensor points, at::Tensor idx) {
  CHECK_INPUT(points);
  CHECK_INPUT(idx);
  at::Tensor output = torch::zeros({points.size(0), points.size(1), idx.size(1), idx.size(2)}, points.options());
  group_points_kernel<<<points.size(0), opt_block_config(idx.size(1), points.size(1)), 0, at::cuda::getCurrentCUDAStream()>>>(
      points.size(0), points.size(1), points.size(2), idx.size(1), idx.size(2), points.data_ptr<float>(), idx.data_ptr<int>(),
      output.data_ptr<float>());
  return output;
}

at::Tensor group_points_grad(at::Tensor grad_out, at::Tensor idx, const int n) {
  CHECK_INPUT(grad_out);
  at::Tensor output = torch::zeros({grad_out.size(0), grad_out.size(1), n}, grad_out.options());
  group_points_grad_kernel<<<grad_out.size(0), opt_block_config(idx.size(1), grad_out.size(1)), 0, at::cuda::getCurrentCUDAStream()>>>(
      grad_out.size(0), grad_out.size(1), n, idx.size(1), idx.size(2), grad_out.data_ptr<float>(), idx.data_ptr<int>(), output.data_ptr<float>());
  return output;
}
"""

USE = '''
import sys

import torch
from points import _ext


class Group(torch.autograd.Function):
    @staticmethod
    def forward(ctx, features, places):
        ctx.save_for_backward(places)
        ctx.n = features.size(2)
        return _ext.group_points(features, places)

    @staticmethod
    def backward(ctx, gradient):
        return _ext.group_points_grad(gradient.contiguous(), *ctx.saved_tensors, ctx.n), None


def furthest(points, count):
    """By its definition, on the CPU."""
    distance, chosen = torch.full(points.shape[:2], 1e10), [torch.zeros(len(points), dtype=torch.long)]
    for _ in range(count - 1):
        last = points[torch.arange(len(points)), chosen[-1]]
        distance = distance.minimum((points - last[:, None]).square().sum(-1))
        chosen.append(distance.argmax(1))
    return torch.stack(chosen, 1)


torch.manual_seed(0)
xyz = torch.rand(2, 100, 3)
chosen = _ext.furthest_point_sampling(xyz.cuda(), 16)
assert torch.equal(chosen.cpu().long(), furthest(xyz, 16))
centres = xyz.gather(1, chosen.cpu().long()[:, :, None].expand(-1, -1, 3))
places = _ext.ball_query(centres.cuda(), xyz.cuda(), 0.3, 8)
near = (centres[:, :, None] - xyz[:, None]).square().sum(-1) < 0.3 * 0.3
for row, found in zip(near.flatten(0, 1), places.cpu().flatten(0, 1)):
    inside = row.nonzero()[:8, 0].tolist()
    assert found.tolist() == inside + inside[:1] * (8 - len(inside))
features = torch.randn(2, 5, 100, device="cuda", requires_grad=True)
grouped = Group.apply(features, places)
index = places.cpu().long()[:, None].expand(-1, 5, -1, -1).flatten(2)
assert torch.equal(grouped.detach().cpu().flatten(2), features.detach().cpu().gather(2, index))
(grouped * torch.arange(8.0, device="cuda")).sum().backward()
wanted = torch.zeros(2, 5, 100).scatter_add(2, index, torch.arange(8.0).repeat(2, 5, 16))
torch.testing.assert_close(features.grad.cpu(), wanted)
try:
    _ext.ball_query(centres, xyz.cuda(), 0.3, 8)
except RuntimeError as error:
    assert "new_xyz must be a CUDA tensor" in str(error)
else:
    raise AssertionError("a tensor of the CPU was taken")
torch.save({"chosen": chosen.cpu()}, sys.argv[1])
'''

with tempfile.TemporaryDirectory() as folder:
    here = Path(folder)
    files = {
        "setup.py": SETUP,
        "include/points.h": HEADER,
        "src/bindings.cpp": BINDINGS,
        "src/sampling_gpu.cu": SAMPLING,
        "src/group_points_gpu.cu": GROUPING,
        "points/__init__.py": "import torch\n",
        "use.py": USE,
    }
    for name, text in files.items():
        (here / name).parent.mkdir(exist_ok=True)
        (here / name).write_text(text)
    subprocess.run([sys.executable, "setup.py", "-q", "build_ext", "--inplace"], cwd=here, check=True)
    subprocess.run([sys.executable, "use.py", str(Path(sys.argv[1]).absolute())], cwd=here, check=True)
