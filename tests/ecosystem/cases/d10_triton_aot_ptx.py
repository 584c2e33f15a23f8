"""A Triton kernel compiled to PTX ahead of time and launched through wooly.RawModule."""

# requires: triton
# cpu: no
import sys

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget

import wooly


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, i < n) + tl.load(y + i, i < n), i < n)


types = {"x": "*fp32", "y": "*fp32", "out": "*fp32", "n": "i32", "BLOCK": "constexpr"}
compiled = triton.compile(triton.compiler.ASTSource(add, types, {"BLOCK": 128}), target=GPUTarget("cuda", 80, 32))
with open("add.ptx", "w") as file:
    file.write(compiled.asm["ptx"])
x, out = torch.arange(100.0, device="cuda"), torch.zeros(100, device="cuda")
scratch = torch.zeros(1, device="cuda")
wooly.RawModule(path="add.ptx").get_function("add")((1,), (128,), (x, x, out, 100, scratch, scratch))
assert out.tolist() == [2.0 * i for i in range(100)]
torch.save({"ok": True}, sys.argv[1])
