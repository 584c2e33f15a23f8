"""Triton's matrix product (tutorial 3): all element types and precisions, masks, autotuning."""

# requires: triton
# cpu: no
import sys

import torch
import triton
import triton.language as tl


@triton.autotune(
    configs=[
        triton.Config({"BM": 64, "BN": 32, "BK": 32, "GROUP": 4}, num_stages=3, num_warps=4),
        triton.Config({"BM": 32, "BN": 32, "BK": 64, "GROUP": 8}, num_stages=2, num_warps=2),
    ],
    key=["M", "N", "K"],
)
@triton.jit
def matmul_kernel(
    a,
    b,
    c,
    M,
    N,
    K,
    sam,
    sak,
    sbk,
    sbn,
    scm,
    scn,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    GROUP: tl.constexpr,
    PRECISION: tl.constexpr,
    ACC: tl.constexpr,
):
    pid = tl.program_id(axis=0)
    num_m, num_n = tl.cdiv(M, BM), tl.cdiv(N, BN)
    in_group = GROUP * num_n
    first = (pid // in_group) * GROUP
    size = min(num_m - first, GROUP)
    pm = first + ((pid % in_group) % size)
    pn = (pid % in_group) // size
    om = (pm * BM + tl.arange(0, BM)) % M
    on = (pn * BN + tl.arange(0, BN)) % N
    ok = tl.arange(0, BK)
    ap = a + (om[:, None] * sam + ok[None, :] * sak)
    bp = b + (ok[:, None] * sbk + on[None, :] * sbn)
    acc = tl.zeros((BM, BN), dtype=ACC)
    for k in range(0, tl.cdiv(K, BK)):
        x = tl.load(ap, mask=ok[None, :] < K - k * BK, other=0)
        y = tl.load(bp, mask=ok[:, None] < K - k * BK, other=0)
        acc = tl.dot(x, y, acc, input_precision=PRECISION, out_dtype=ACC)
        ap += BK * sak
        bp += BK * sbk
    cm = pm * BM + tl.arange(0, BM)
    cn = pn * BN + tl.arange(0, BN)
    tl.store(c + scm * cm[:, None] + scn * cn[None, :], acc.to(c.dtype.element_ty), mask=(cm[:, None] < M) & (cn[None, :] < N))


def matmul(a, b, out_dtype, precision, acc):
    M, K = a.shape
    N = b.shape[1]
    c = torch.empty((M, N), device=a.device, dtype=out_dtype)
    grid = lambda meta: (triton.cdiv(M, meta["BM"]) * triton.cdiv(N, meta["BN"]),)
    matmul_kernel[grid](a, b, c, M, N, K, *a.stride(), *b.stride(), *c.stride(), PRECISION=precision, ACC=acc)
    return c


torch.manual_seed(0)
M, N, K = 150, 90, 130
found = {}
for name, dtype, out, precision, acc, limit in (
    ("f16", torch.float16, torch.float16, None, tl.float32, 1e-3),
    ("f16 sums", torch.float16, torch.float16, None, tl.float16, 1e-2),
    ("bf16", torch.bfloat16, torch.float32, None, tl.float32, 1e-4),
    ("tf32", torch.float32, torch.float32, "tf32", tl.float32, 1e-3),
    ("tf32x3", torch.float32, torch.float32, "tf32x3", tl.float32, 1e-5),
    ("ieee", torch.float32, torch.float32, "ieee", tl.float32, 1e-6),
    ("f64", torch.float64, torch.float64, "ieee", tl.float64, 1e-12),
    ("i8", torch.int8, torch.int32, None, tl.int32, 0),
    ("f16 transposed", torch.float16, torch.float32, None, tl.float32, 1e-3),
):
    if dtype is torch.int8:
        a, b = (torch.randint(-128, 128, shape, dtype=dtype) for shape in ((M, K), (K, N)))
        want = (a.long() @ b.long()).double()
    else:
        a, b = torch.randn(M, K).to(dtype), torch.randn(K, N).to(dtype)
        if "transposed" in name:
            b = torch.randn(N, K).to(dtype).t()
        want = a.double() @ b.double()
    got = matmul(a.cuda(), b.cuda(), out, precision, acc).cpu().double()
    error = ((got - want).abs().max() / want.abs().max()).item()
    assert error <= limit, (name, error)
    found[name] = torch.tensor(error <= limit)
torch.save(found, sys.argv[1])
