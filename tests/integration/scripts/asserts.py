"""What CUDA's kernels assert, each in a process of its own, and what the error says. Runs only where there is a device."""

import subprocess
import sys

import torch

CALLS = {
    "embedding": "F.embedding(torch.tensor([1, -100], device='cuda'), x)",
    "index_select": "(x * 2).index_select(1, torch.tensor([3], device='cuda')) + 1",
    "bce": "F.binary_cross_entropy(x, torch.ones_like(x))",
    "assert_async": "torch._assert_async((x > 0).all(), 'all of x')",
}
PROGRAM = """
import torch
import torch.nn.functional as F
x = torch.arange(12.0, device="cuda").reshape(4, 3)
try:
    {call}
    torch.cuda.synchronize()
except torch.AcceleratorError as error:
    print(str(error).splitlines()[0])
"""

running = {
    name: subprocess.Popen([sys.executable, "-c", PROGRAM.format(call=call)], stdout=subprocess.PIPE, text=True)
    for name, call in CALLS.items()
}
said = {name: process.communicate()[0].strip() for name, process in running.items()}
begin = "CUDA error: device-side assert triggered: "
assert said == {
    "embedding": begin + "index -100 is out of bounds for dimension 0 with size 4 (aten::embedding)",
    "index_select": begin + "index 3 is out of bounds for dimension 1 with size 3 (aten::index_select)",
    "bce": begin + "all elements of input should be between 0 and 1 (aten::binary_cross_entropy)",
    "assert_async": begin + "all of x (aten::_assert_async.msg)",
}, said
torch.save(said, sys.argv[1])
