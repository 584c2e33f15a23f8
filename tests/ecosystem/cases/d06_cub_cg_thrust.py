"""CUDA C++ with cub, cooperative groups, atomics, half2 and inline PTX; then grid synchronisation, which is refused."""

# requires: nvidia.cu13
# cpu: no
import sys

import torch

import wooly

source = r"""
#include <cub/block/block_reduce.cuh>
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cuda_fp16.h>
namespace cg = cooperative_groups;
extern "C" __global__ void sums(const float* x, float* out) {
    using Reduce = cub::BlockReduce<float, 128>;
    __shared__ typename Reduce::TempStorage temp;
    float total = Reduce(temp).Sum(x[threadIdx.x]);
    auto tile = cg::tiled_partition<32>(cg::this_thread_block());
    float part = cg::reduce(tile, x[threadIdx.x], cg::plus<float>());
    if (threadIdx.x == 0) out[0] = total;
    if (tile.thread_rank() == 0) atomicAdd(out + 1, part);
    half2 h = __hmul2(__float2half2_rn(x[threadIdx.x]), __float2half2_rn(2.0f));
    int lane; asm("mov.u32 %0, %laneid;" : "=r"(lane));
    if (threadIdx.x == 5) { out[2] = __low2float(h); out[3] = lane; }
}
"""
x, out = torch.ones(128, device="cuda"), torch.zeros(4, device="cuda")
wooly.RawModule(source).get_function("sums")((1,), (128,), (x, out))
assert out.tolist() == [128.0, 128.0, 2.0, 5.0], out.tolist()
try:
    bad = '#include <cooperative_groups.h>\nextern "C" __global__ void f(int* p) { cooperative_groups::this_grid().sync(); *p = 1; }'
    wooly.RawKernel(bad, "f")((1,), (32,), (torch.zeros(1, dtype=torch.int32, device="cuda"),))
    torch.cuda.synchronize()
    message = "no error"
except Exception as error:
    message = f"{type(error).__name__}: {error}"
assert message != "no error"
assert torch.ones(2, device="cuda").sum().item() == 2
torch.save({"message": message}, sys.argv[1])
