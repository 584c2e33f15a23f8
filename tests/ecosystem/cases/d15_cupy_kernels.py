"""CuPy's RawKernel and RawModule on tensors, as optical flow and splatting libraries launch them."""

# requires: cupy
# cpu: no
import collections
import sys

import cupy
import torch

SOURCE = """
extern "C" __global__ void splat(const int n, const float* values, const float* flow, float* out) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const float to = i + flow[i];
  const int left = (int)floorf(to);
  const float part = to - left;
  if (left >= 0 && left < n) atomicAdd(&out[left], values[i] * (1.0f - part));
  if (left + 1 >= 0 && left + 1 < n) atomicAdd(&out[left + 1], values[i] * part);
}
"""


@cupy.memoize(for_each_device=True)
def launcher(name):
    return cupy.RawModule(code=SOURCE).get_function(name)


n = 1000
values, flow = torch.arange(float(n), device="cuda"), torch.full((n,), 0.25, device="cuda")
out = torch.zeros(n, device="cuda")
stream = collections.namedtuple("Stream", ["ptr"])(torch.cuda.current_stream().cuda_stream)
with cupy.cuda.Device(values.device.index):
    launcher("splat")(
        grid=((n + 511) // 512, 1, 1),
        block=(512, 1, 1),
        args=[cupy.int32(n), values.data_ptr(), flow.data_ptr(), out.data_ptr()],
        stream=stream,
    )
want = values.cpu() * 0.75
want[1:] += values.cpu()[:-1] * 0.25
torch.testing.assert_close(out.cpu(), want)

twice = cupy.RawKernel('extern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2; }', "twice")
with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
    twice((1,), (10,), (values,))
assert values[:12].tolist() == [0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 10, 11]
torch.save({"out": out.cpu()}, sys.argv[1])
