"""Triton's tutorials 1, 2, 4, 5, 6 and 7: vectors, softmax, dropout, layer norm with gradients, attention, libdevice; descriptors, prints."""

# requires: triton
# cpu: no
import sys

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from triton.language.extra import libdevice
from triton.tools.tensor_descriptor import TensorDescriptor

torch.manual_seed(0)
found = {}


def check(name, got, want, limit):
    got, want = got.detach().cpu().double(), want.detach().double()
    assert got.shape == want.shape, (name, got.shape)
    error = ((got - want).abs().max() / want.abs().max()).item()
    assert error <= limit, (name, error)
    found[name] = torch.tensor(True)


@triton.jit
def softmax_kernel(out, x, rs, ro, rows, cols, BLOCK: tl.constexpr, num_stages: tl.constexpr):
    start, step = tl.program_id(0), tl.num_programs(0)
    for row in tl.range(start, rows, step, num_stages=num_stages):
        at = tl.arange(0, BLOCK)
        v = tl.load(x + row * rs + at, mask=at < cols, other=-float("inf"))
        e = tl.exp(v - tl.max(v, axis=0))
        tl.store(out + row * ro + at, e / tl.sum(e, axis=0), mask=at < cols)


x = torch.randn(37, 781)
d = x.cuda()
out = torch.empty_like(d)
properties = triton.runtime.driver.active.utils.get_device_properties(torch.cuda.current_device())
kernel = softmax_kernel.warmup(out, d, d.stride(0), out.stride(0), 37, 781, BLOCK=1024, num_stages=2, num_warps=8, grid=(1,))
assert properties["max_shared_mem"] >= kernel.metadata.shared and "mma" not in kernel.asm["ptx"]
kernel[(8, 1, 1)](out, d, d.stride(0), out.stride(0), 37, 781, 1024, 2)
check("softmax", out, x.softmax(-1), 1e-6)


@triton.jit
def dropout_kernel(x, o, n, p, seed, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n)
    tl.store(o + i, tl.where(tl.rand(seed, i) > p, v / (1 - p), 0.0), mask=i < n)


x = torch.ones(1000, device="cuda")
first, second, third = (torch.empty_like(x) for _ in range(3))
dropout_kernel[(4,)](x, first, 1000, 0.5, 123, BLOCK=256)
dropout_kernel[(4,)](x, second, 1000, 0.5, 123, BLOCK=256)
dropout_kernel[(4,)](x, third, 1000, 0.5, 512, BLOCK=256)
assert torch.equal(first, second) and not torch.equal(first, third)
assert 400 < (first == 0).sum().item() < 600


@triton.jit
def layer_norm_forward(X, Y, W, B, Mean, Rstd, stride, N, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    x = tl.load(X + row * stride + at, mask=at < N, other=0.0).to(tl.float32)
    mean = tl.sum(x, axis=0) / N
    centred = tl.where(at < N, x - mean, 0.0)
    rstd = 1 / tl.sqrt(tl.sum(centred * centred, axis=0) / N + eps)
    tl.store(Mean + row, mean)
    tl.store(Rstd + row, rstd)
    y = centred * rstd * tl.load(W + at, mask=at < N) + tl.load(B + at, mask=at < N)
    tl.store(Y + row * stride + at, y, mask=at < N)


@triton.jit
def layer_norm_backward(DX, DY, DW, DB, X, W, Mean, Rstd, Lock, stride, N, GROUPS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    mask = at < N
    x = tl.load(X + row * stride + at, mask=mask, other=0).to(tl.float32)
    dy = tl.load(DY + row * stride + at, mask=mask, other=0).to(tl.float32)
    w = tl.load(W + at, mask=mask).to(tl.float32)
    mean, rstd = tl.load(Mean + row), tl.load(Rstd + row)
    xhat = tl.where(mask, (x - mean) * rstd, 0.0)
    wdy = tl.where(mask, w * dy, 0.0)
    c1, c2 = tl.sum(xhat * wdy, axis=0) / N, tl.sum(wdy, axis=0) / N
    tl.store(DX + row * stride + at, (wdy - (xhat * c1 + c2)) * rstd, mask=mask)
    group = row % GROUPS
    lock, count = Lock + group, Lock + GROUPS + group
    dw, db = (dy * xhat).to(w.dtype), dy.to(w.dtype)
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    before = tl.load(count)
    if before == 0:
        tl.atomic_xchg(count, 1)
    else:
        dw += tl.load(DW + group * N + at, mask=mask)
        db += tl.load(DB + group * N + at, mask=mask)
    tl.store(DW + group * N + at, dw, mask=mask)
    tl.store(DB + group * N + at, db, mask=mask)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


class LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, b, eps):
        y, mean, rstd = torch.empty_like(x), x.new_empty(len(x)), x.new_empty(len(x))
        layer_norm_forward[(len(x),)](x, y, w, b, mean, rstd, x.stride(0), x.shape[1], eps, BLOCK=triton.next_power_of_2(x.shape[1]))
        ctx.save_for_backward(x, w, mean, rstd)
        return y

    @staticmethod
    def backward(ctx, dy):
        x, w, mean, rstd = ctx.saved_tensors
        n, groups = x.shape[1], 4
        lock = torch.zeros(2 * groups, dtype=torch.int32, device=x.device)
        dw, db = x.new_zeros(groups, n), x.new_zeros(groups, n)
        dx = torch.empty_like(dy)
        layer_norm_backward[(len(x),)](
            dx, dy.contiguous(), dw, db, x, w, mean, rstd, lock, x.stride(0), n, GROUPS=groups, BLOCK=triton.next_power_of_2(n)
        )
        return dx, dw.sum(0), db.sum(0), None


x, w, b, g = torch.randn(19, 200), torch.rand(200), torch.rand(200), torch.randn(19, 200)
reference = [t.clone().requires_grad_() for t in (x, w, b)]
F.layer_norm(reference[0], (200,), *reference[1:], 1e-5).backward(g)
ours = [t.cuda().requires_grad_() for t in (x, w, b)]
y = LayerNorm.apply(*ours, 1e-5)
y.backward(g.cuda())
check("layer norm", y, F.layer_norm(x, (200,), w, b, 1e-5), 1e-6)
for name, got, want in zip(("dx", "dw", "db"), ours, reference):
    check(f"layer norm {name}", got.grad, want.grad, 1e-5)


@triton.jit
def attention_kernel(Q, K, V, O, scale, row, head, N, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr, CAUSAL: tl.constexpr):
    pm, hz = tl.program_id(0), tl.program_id(1)
    om, on, od = pm * BM + tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, D)
    q = tl.load(Q + hz * head + om[:, None] * row + od[None, :])
    m = tl.zeros([BM], tl.float32) - float("inf")
    total = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, D], tl.float32)
    end = (pm + 1) * BM if CAUSAL else N
    for s in range(0, end, BN):
        k = tl.load(K + hz * head + (s + on)[None, :] * row + od[:, None])
        qk = tl.dot(q, k) * scale * 1.44269504
        if CAUSAL:
            qk = tl.where(om[:, None] >= (s + on)[None, :], qk, -1.0e6)
        highest = tl.maximum(m, tl.max(qk, 1))
        p = tl.math.exp2(qk - highest[:, None])
        alpha = tl.math.exp2(m - highest)
        total = total * alpha + tl.sum(p, 1)
        v = tl.load(V + hz * head + (s + on)[:, None] * row + od[None, :])
        acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None])
        m = highest
    tl.store(O + hz * head + om[:, None] * row + od[None, :], (acc / total[:, None]).to(O.dtype.element_ty))


for dtype, causal in ((torch.float16, True), (torch.float32, False), (torch.bfloat16, True)):
    q, k, v = (torch.randn(2, 3, 128, 32).to(dtype) for _ in range(3))
    o = torch.empty_like(q, device="cuda")
    attention_kernel[(2, 6)](
        q.cuda(), k.cuda(), v.cuda(), o, 0.18, 32, 128 * 32, 128, BM=64, BN=32, D=32, CAUSAL=causal, num_warps=4, num_stages=2
    )
    want = F.scaled_dot_product_attention(q.float(), k.float(), v.float(), is_causal=causal, scale=0.18)
    check(f"attention {dtype}", o, want, 2e-2 if dtype is torch.bfloat16 else 3e-3)


@triton.jit
def asin_kernel(x, o, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(o + i, libdevice.asin(tl.load(x + i, i < n)), i < n)


x = torch.rand(100)
o = torch.empty(100, device="cuda")
asin_kernel[(1,)](x.cuda(), o, 100, BLOCK=128)
check("libdevice", o, x.asin(), 1e-6)


@triton.jit
def mixed_kernel(x, sums, ordered, counts, bits, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    v = tl.load(x + i)
    tl.store(sums + i, tl.cumsum(v, 0))
    tl.store(ordered + i, tl.sort(v))
    tl.store(counts + tl.arange(0, 16), tl.histogram(v, 16))
    doubled = tl.inline_asm_elementwise("add.s32 $0, $1, $1;", "=r,r", [v], dtype=tl.int32, is_pure=True, pack=1)
    tl.store(bits + i, doubled)
    tl.atomic_add(n, tl.sum(v, 0))


v = torch.randint(0, 16, (128,), dtype=torch.int32)
sums, ordered, bits = (torch.empty(128, dtype=torch.int32, device="cuda") for _ in range(3))
counts, n = torch.empty(16, dtype=torch.int32, device="cuda"), torch.zeros(1, dtype=torch.int32, device="cuda")
mixed_kernel[(3,)](v.cuda(), sums, ordered, counts, bits, n, BLOCK=128)
check("scan", sums, v.cumsum(0), 0)
check("sort", ordered, v.sort()[0], 0)
check("histogram", counts, torch.bincount(v, minlength=16), 0)
check("inline assembly", bits, 2 * v, 0)
check("atomic", n, 3 * v.sum().reshape(1), 0)


@triton.jit
def twice_kernel(source, target, M: tl.constexpr, N: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, HOST: tl.constexpr):
    if not HOST:
        source = tl.make_tensor_descriptor(source, shape=[M, N], strides=[N, 1], block_shape=[BM, BN])
        target = tl.make_tensor_descriptor(target, shape=[M, N], strides=[N, 1], block_shape=[BM, BN])
    i, j = tl.program_id(0) * BM, tl.program_id(1) * BN
    target.store([i, j], source.load([i, j]) * 2)


x = torch.randn(100, 64)
for host in (False, True):
    d, o = x.cuda(), torch.empty(100, 64, device="cuda")
    given = (TensorDescriptor.from_tensor(t, [32, 32]) for t in (d, o)) if host else (d, o)
    twice_kernel[(4, 2)](*given, M=100, N=64, BM=32, BN=32, HOST=host)
    check(f"descriptor {host}", o, x * 2, 0)


@triton.jit
def print_kernel(x, BLOCK: tl.constexpr):
    v = tl.load(x + tl.arange(0, BLOCK))
    tl.device_print("value", v)
    tl.device_assert(v >= 0, "negative")
    tl.store(x + tl.arange(0, BLOCK), v + 1)


x = torch.arange(32.0, device="cuda")
print_kernel[(1,)](x, BLOCK=32)
check("device_print", x, torch.arange(1.0, 33), 0)

try:
    asin_kernel[(1,)](torch.rand(100), o, 100, BLOCK=128)
except (TypeError, ValueError) as error:
    found["a tensor of the CPU is refused"] = torch.tensor("cuda" in str(error))
    assert "cuda" in str(error), error
else:
    raise AssertionError("a tensor of the CPU was accepted")
torch.save(found, sys.argv[1])
