"""Coarse ops: the definition says what torch says, and the decomposition says what the definition says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.support.wis_run import Imm, apply, apply_decomposed, dtype_of
from wis.dtypes import ACCUMULATE, DType
from wis.errors import VerifyError

torch.set_num_threads(1)
Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(11)
FLOATS = [DType.F32, DType.F64, DType.BF16, DType.F16]
TOLERANCE = {DType.F32: 2e-5, DType.F64: 1e-11, DType.BF16: 2e-2, DType.F16: 4e-3}


def normal(dtype: DType, *shape: int) -> Array:
    return RNG.standard_normal(shape).astype(dtype.numpy)


def wide(x: Array) -> torch.Tensor:
    """``x`` as f64, so that torch's own rounding does not matter."""
    return torch.from_numpy(x.astype(np.float64))


def check(name: str, outs: list[Any], ins: list[Array | Imm], attrs: tuple[int, ...], wants: list[torch.Tensor], tolerance: float) -> None:
    """Both the reference and the decomposition give ``wants``."""
    for how in (apply, apply_decomposed):
        results, trapped = how(name, outs, ins, attrs)
        assert not trapped
        for got, want in zip(results, wants, strict=True):
            np.testing.assert_allclose(
                got.astype(np.float64), want.detach().numpy(), rtol=tolerance, atol=tolerance, err_msg=how.__name__, equal_nan=True
            )


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.text)
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax_and_gradient(name: str, dtype: DType) -> None:
    x, dy = normal(dtype, 3, 4, 37), normal(dtype, 3, 4, 37)
    tx = wide(x).requires_grad_()
    ty = getattr(torch, name)(tx, -1)
    check(name, [(dtype, x.shape)], [x], (), [ty], TOLERANCE[dtype])
    ty.backward(wide(dy))
    y = ty.detach().numpy().astype(dtype.numpy)
    assert tx.grad is not None
    check(f"{name}_dx", [(dtype, x.shape)], [dy, y], (), [tx.grad], 4 * TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.text)
@pytest.mark.parametrize("affine", [True, False])
def test_layer_norm_and_gradients(dtype: DType, affine: bool) -> None:
    r, c, eps = 6, 45, 1e-5
    acc = ACCUMULATE.get(dtype, dtype)
    x, dy = normal(dtype, r, c), normal(dtype, r, c)
    w, b = (normal(dtype, c), normal(dtype, c)) if affine else (np.ones(c, dtype.numpy), np.zeros(c, dtype.numpy))
    tx, tw, tb = (wide(v).requires_grad_() for v in (x, w, b))
    ty, mean, rstd = torch.native_layer_norm(tx, (c,), tw, tb, eps)
    ty.backward(wide(dy))
    assert tx.grad is not None and tw.grad is not None and tb.grad is not None
    weights: list[Any] = [np.broadcast_to(w, (r, c)), np.broadcast_to(b, (r, c))] if affine else [Imm(1.0, dtype), Imm(0.0, dtype)]
    t = TOLERANCE[dtype]
    check("layer_norm", [(dtype, x.shape), (acc, (r, 1)), (acc, (r, 1))], [x, *weights, Imm(eps, DType.F64)], (), [ty, mean, rstd], t)
    stats = [mean.detach().numpy().astype(acc.numpy), rstd.detach().numpy().astype(acc.numpy)]
    check("layer_norm_dx", [(dtype, x.shape)], [dy, x, *stats, weights[0]], (), [tx.grad], 4 * t)
    check("layer_norm_dwb", [(dtype, (1, c))] * 2, [dy, x, *stats], (), [tw.grad[None], tb.grad[None]], 8 * t)


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.text)
@pytest.mark.parametrize("tanh", [0, 1])
def test_gelu_and_gradient(dtype: DType, tanh: int) -> None:
    x, dy = normal(dtype, 300) * 3, normal(dtype, 300)
    x = x.astype(dtype.numpy)
    tx = wide(x).requires_grad_()
    ty = torch.nn.functional.gelu(tx, approximate="tanh" if tanh else "none")
    check("gelu", [(dtype, x.shape)], [x], (tanh,), [ty], TOLERANCE[dtype])
    ty.backward(wide(dy))
    assert tx.grad is not None
    check("gelu_dx", [(dtype, x.shape)], [dy, x], (tanh,), [tx.grad], TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.text)
def test_silu_and_gradient(dtype: DType) -> None:
    x, dy = normal(dtype, 300), normal(dtype, 300)
    tx = wide(x).requires_grad_()
    ty = torch.nn.functional.silu(tx)
    check("silu", [(dtype, x.shape)], [x], (), [ty], TOLERANCE[dtype])
    ty.backward(wide(dy))
    assert tx.grad is not None
    check("silu_dx", [(dtype, x.shape)], [dy, x], (), [tx.grad], TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.text)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("causal", [0, 1])
def test_attention_and_gradient(dtype: DType, masked: bool, causal: int) -> None:
    b, h, m, n, d, e, scale = 2, 3, 5, 7, 4, 6, 0.37
    acc = ACCUMULATE.get(dtype, dtype)
    q, k, v, do = normal(dtype, b, h, m, d), normal(dtype, b, h, n, d), normal(dtype, b, h, n, e), normal(dtype, b, h, m, e)
    mask = normal(dtype, b, h, m, n)
    tq, tk, tv = (wide(x).requires_grad_() for x in (q, k, v))
    scores = tq @ tk.transpose(-1, -2) * scale
    if masked:
        scores = scores + wide(mask)
    if causal:
        scores = scores.masked_fill(torch.arange(n) > torch.arange(m)[:, None], float("-inf"))
    ty = torch.softmax(scores, -1) @ tv
    lse = torch.logsumexp(scores, -1)
    ty.backward(wide(do))
    assert tq.grad is not None and tk.grad is not None and tv.grad is not None
    extra = [mask] if masked else []
    t = TOLERANCE[dtype]
    check("sdpa", [(dtype, (b, h, m, e)), (acc, (b, h, m))], [q, k, v, Imm(scale, DType.F64), *extra], (causal,), [ty, lse], 2 * t)
    o, stats = ty.detach().numpy().astype(dtype.numpy), lse.detach().numpy().astype(acc.numpy)
    ins = [do, q, k, v, o, stats, Imm(scale, DType.F64), *extra]
    check("sdpa_dx", [(dtype, x.shape) for x in (q, k, v)], ins, (causal,), [tq.grad, tk.grad, tv.grad], 8 * t)


def test_attention_of_a_fully_masked_row_is_zero() -> None:
    q, k, v = normal(DType.F32, 1, 1, 2, 4), normal(DType.F32, 1, 1, 3, 4), normal(DType.F32, 1, 1, 3, 5)
    mask = np.zeros((1, 1, 2, 3), np.float32)
    mask[0, 0, 0] = -np.inf
    for how in (apply, apply_decomposed):
        (o, lse), _ = how("sdpa", [(DType.F32, (1, 1, 2, 5)), (DType.F32, (1, 1, 2))], [q, k, v, Imm(0.5, DType.F64), mask], (0,))
        assert (o[0, 0, 0] == 0).all() and (o[0, 0, 1] != 0).all()
        assert lse[0, 0, 0] == -np.inf and np.isfinite(lse[0, 0, 1])
        grads, _ = how("sdpa_dx", [(DType.F32, x.shape) for x in (q, k, v)], [o, q, k, v, o, lse, Imm(0.5, DType.F64), mask], (0,))
        assert all(np.isfinite(g).all() for g in grads)
        assert (grads[0][0, 0, 0] == 0).all()


def test_attention_without_keys() -> None:
    q, k, v = normal(DType.F32, 1, 1, 2, 4), normal(DType.F32, 1, 1, 0, 4), normal(DType.F32, 1, 1, 0, 5)
    for how in (apply, apply_decomposed):
        (o, lse), _ = how("sdpa", [(DType.F32, (1, 1, 2, 5)), (DType.F32, (1, 1, 2))], [q, k, v, Imm(1.0, DType.F64)], (1,))
        assert (o == 0).all() and (lse == -np.inf).all()


@pytest.mark.parametrize("decoupled", [0, 1])
@pytest.mark.parametrize("maximize", [0, 1])
def test_adamw_steps_like_torch(decoupled: int, maximize: int) -> None:
    lr, beta1, beta2, decay, eps = 1e-2, 0.9, 0.99, 0.1, 1e-8
    p0, grads = normal(DType.F64, 40), [normal(DType.F64, 40) for _ in range(3)]
    tp = torch.nn.Parameter(wide(p0))
    optimizer = (torch.optim.AdamW if decoupled else torch.optim.Adam)(
        [tp], lr=lr, betas=(beta1, beta2), eps=eps, weight_decay=decay, maximize=bool(maximize)
    )
    for how in (apply, apply_decomposed):
        state = [p0, np.zeros(40), np.zeros(40)]
        for t, g in enumerate(grads, start=1):
            numbers = (lr, beta1, beta2, decay, eps, 1 - beta1**t, np.sqrt(1 - beta2**t))
            state, _ = how("adamw", state, [g, *(Imm(float(x), DType.F64) for x in numbers)], (decoupled, maximize))
        if how is apply:
            for g in grads:
                tp.grad = wide(g)
                optimizer.step()
        np.testing.assert_allclose(state[0], tp.detach().numpy(), rtol=1e-12, atol=1e-13)


def test_in_place_coarse_reads_before_it_writes() -> None:
    x = normal(DType.F32, 4, 9)
    (want,), _ = apply("softmax", [(DType.F32, x.shape)], [x])
    for how in (apply, apply_decomposed):
        (got,), _ = how("softmax", [x], [], in_place=(0,))
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_layer_norm_weights_must_be_one_row() -> None:
    x = normal(DType.F32, 3, 5)
    with pytest.raises(VerifyError, match="row stride"):
        apply(
            "layer_norm",
            [(DType.F32, (3, 5)), (DType.F32, (3, 1)), (DType.F32, (3, 1))],
            [x, np.ascontiguousarray(x), Imm(0.0, DType.F32), Imm(1e-5, DType.F64)],
        )


def test_helper_broadcasts() -> None:
    assert dtype_of(np.broadcast_to(np.zeros(3, np.float32), (2, 3))) is DType.F32
