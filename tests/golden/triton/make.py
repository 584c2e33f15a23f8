"""``python -m tests.golden.triton.make`` compiles these kernels with the installed Triton, for NVIDIA's capability 8.0, and writes what its
driver gets: PTX, and of the metadata what a launch needs. The tests run the results without Triton."""

from __future__ import annotations

import json
from pathlib import Path

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

FOLDER = Path(__file__).parent


@triton.jit
def product(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, ACC: tl.constexpr):
    rows, columns, depth = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN), tl.arange(0, BK)
    total = tl.zeros((BM, BN), dtype=ACC)
    for k in range(0, K, BK):
        x = tl.load(a + rows[:, None] * K + (k + depth)[None, :], mask=(rows[:, None] < M) & ((k + depth)[None, :] < K), other=0)
        y = tl.load(b + (k + depth)[:, None] * N + columns[None, :], mask=((k + depth)[:, None] < K) & (columns[None, :] < N), other=0)
        total = tl.dot(x, y, total, out_dtype=ACC)
    place = c + rows[:, None] * N + columns[None, :]
    tl.store(place, total.to(c.dtype.element_ty), mask=(rows[:, None] < M) & (columns[None, :] < N))


FORMS = {"f16": ("*fp16", "*fp32", tl.float32), "i8": ("*i8", "*i32", tl.int32), "tf32": ("*fp32", "*fp32", tl.float32)}
KEPT = ("name", "num_warps", "shared", "global_scratch_size", "profile_scratch_size")


def main() -> None:
    for name, (pointer, out, acc) in FORMS.items():
        types = {"a": pointer, "b": pointer, "c": out, "M": "i32", "N": "i32", "K": "i32"}
        types |= dict.fromkeys(("BM", "BN", "BK", "ACC"), "constexpr")
        constants = {"BM": 32, "BN": 32, "BK": 32, "ACC": acc}
        aligned = {(i,): [["tt.divisibility", 16]] for i in (0, 1, 2, 4, 5)}
        made = triton.compile(ASTSource(product, types, constants, aligned), GPUTarget("cuda", 80, 32), {"num_warps": 2, "num_stages": 2})
        (FOLDER / f"product_{name}.ptx").write_text(made.asm["ptx"])
        found = {"triton": triton.__version__, "signature": types} | {key: getattr(made.metadata, key) for key in KEPT}
        (FOLDER / f"product_{name}.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
