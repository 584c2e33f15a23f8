"""Factorisations of small matrices on the device: rebuilt matrices, LAPACK's pivots, signs and errors, layouts, gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from tests.support.device import same
from wooly import stats
from wooly.device.lowering.factorise import STEPS_MAX

TYPES = [torch.float32, torch.float64, torch.complex64, torch.complex128]
SHAPES = [(0, 0), (2, 0, 0), (0, 3, 3), (1, 1), (2, 2), (2, 3, 3), (2, 3, 4, 4), (7, 7), (STEPS_MAX, STEPS_MAX)]
Case = Callable[[torch.Tensor], Any]


@pytest.fixture
def native() -> Iterator[None]:
    """No operation of the test may be computed on the CPU."""
    before = dict(stats()["fallbacks"])
    yield
    assert stats()["fallbacks"] == before


def matrices(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Well-conditioned ones."""
    torch.manual_seed(len(shape) + sum(shape))
    x = torch.randn(shape, dtype=dtype)
    return x + 2 * shape[-1] ** 0.5 * torch.eye(*shape[-2:], dtype=dtype)


def definite(a: torch.Tensor) -> torch.Tensor:
    return a @ a.mH


def agree(case: Case, *given: torch.Tensor) -> None:
    """Values, types, shapes and strides of all results, for operands in rows, in columns, and with steps in between."""
    for lay_out in (lambda x: x, lambda x: x.mT.contiguous().mT, lambda x: torch.stack([x, x], -1)[..., 1]):
        ours, expected = (case(*(lay_out(move(x)) for x in given)) for move in (torch.Tensor.cuda, torch.Tensor.cpu))
        for a, b in zip(*((r,) if isinstance(r, torch.Tensor) else r for r in (ours, expected)), strict=True):
            close(a, b)


def close(ours: torch.Tensor, expected: torch.Tensor) -> None:
    assert ours.device.type == "cuda" and ours.dtype == expected.dtype and ours.shape == expected.shape
    if expected.numel():
        assert [s for s, n in zip(ours.stride(), ours.shape, strict=True) if n > 1] == [
            s for s, n in zip(expected.stride(), expected.shape, strict=True) if n > 1
        ]
    wide = expected.dtype in (torch.float64, torch.complex128)
    exact = not (expected.is_floating_point() or expected.is_complex())
    rtol, atol = (0.0, 0.0) if exact else (1e-11, 1e-11) if wide else (2e-4, 2e-5)
    torch.testing.assert_close(ours.cpu(), expected, rtol=rtol, atol=atol, equal_nan=True)


SQUARE: dict[str, Case] = {
    "cholesky": lambda a: torch.linalg.cholesky(definite(a)),
    "upper cholesky": lambda a: torch.linalg.cholesky(definite(a), upper=True),
    "cholesky with its number": lambda a: torch.linalg.cholesky_ex(definite(a), upper=True),
    "cholesky_solve": lambda a: torch.cholesky_solve(a, a.tril()),
    "upper cholesky_solve": lambda a: torch.cholesky_solve(a, a, upper=True),
    "cholesky_inverse": lambda a: torch.cholesky_inverse(torch.linalg.cholesky(definite(a))),
    "upper cholesky_inverse": lambda a: torch.cholesky_inverse(torch.linalg.cholesky(definite(a), upper=True), upper=True),
    "triangular_solve": lambda a: torch.triangular_solve(a, a),
    "triangular_solve by the transpose": lambda a: torch.triangular_solve(a, a, upper=False, transpose=True),
    "lu_factor": lambda a: torch.linalg.lu_factor_ex(a),
    "lu": lambda a: torch.linalg.lu(a),
    "inv": lambda a: torch.linalg.inv(a),
    "solve": lambda a: torch.linalg.solve(a, a.mH),
    "solve of a vector": lambda a: torch.linalg.solve(a, torch.ones(a.size(-1), dtype=a.dtype, device=a.device)),
    "solve from the right": lambda a: torch.linalg.solve(a, a[..., :1, :], left=False),
    "det": lambda a: torch._linalg_det(a),
    "slogdet": lambda a: torch._linalg_slogdet(a),
    "logdet": lambda a: torch.logdet(definite(a)),
    "qr": lambda a: torch.linalg.qr(a),
}


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("name", SQUARE)
def test_square_matrices(name: str, dtype: torch.dtype) -> None:
    for shape in SHAPES:
        agree(SQUARE[name], matrices(shape, dtype))


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("unit", [False, True])
def test_triangular_solves(dtype: torch.dtype, upper: bool, left: bool, unit: bool) -> None:
    def case(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.linalg.solve_triangular(a, b, upper=upper, left=left, unitriangular=unit)

    for n in (1, 2, 5):
        a, b = matrices((3, n, n), dtype) / n, matrices((2, 1, n, n), dtype)
        agree(case, a, b)
        agree(case, a[0], b[..., :1] if left else b[..., :1, :])


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("adjoint", [False, True])
def test_solves_by_factors(dtype: torch.dtype, left: bool, adjoint: bool) -> None:
    def case(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.linalg.lu_solve(*torch.linalg.lu_factor(a.flip(-1)), b, left=left, adjoint=adjoint)

    a = matrices((2, 1, 5, 5), dtype)
    agree(case, a, matrices((3, 5, 2) if left else (3, 2, 5), dtype))


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("shape", [(2, 3, 5), (5, 3), (4, 4), (0, 3), (3, 0), (1, 3), (3, 1)], ids=str)
def test_rectangular_matrices(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    a = matrices(shape, dtype)
    for mode in ("reduced", "complete", "r"):
        agree(lambda a, mode=mode: torch.linalg.qr(a, mode), a)
    agree(torch.geqrf, a)
    agree(torch.linalg.lu, a)
    agree(lambda a: torch.lu_unpack(*torch.linalg.lu_factor(a), unpack_pivots=False)[1:], a)
    if shape[-2] >= shape[-1]:
        agree(lambda a: torch.linalg.householder_product(*torch.geqrf(a)), a)
    for left in (False, True):
        for transpose in (False, True):
            other = matrices((*shape[:-2], shape[-2], 2), dtype)
            agree(
                lambda a, b, left=left, transpose=transpose: torch.ormqr(
                    *torch.geqrf(a), b if left else b.mT, left=left, transpose=transpose
                ),
                a,
                other,
            )


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_pivots_among_equal_sizes(dtype: torch.dtype) -> None:
    """The first of the largest; of complex numbers by |re| + |im|, in which 3 + 3i is larger than 5."""
    a = torch.tensor([[1, 2, 3], [-4, 1, 0], [4, 7, 1]], dtype=dtype)
    if dtype.is_complex:
        a = torch.stack([a, torch.tensor([[5, 1, 2], [3 + 3j, 1, 0], [-3 - 3j, 7, 1]], dtype=dtype)])
    agree(torch.linalg.lu_factor_ex, a)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_extreme_numbers(dtype: torch.dtype) -> None:
    """Their squares leave the range of the type; QR and LU are rebuilt column by column, to the size of the column."""
    far = 1e30 if dtype in (torch.float32, torch.complex64) else 1e250
    a = matrices((6, 6), dtype) * torch.tensor([far, 1.0, 1 / far, 0.0, 1.0, far], dtype=dtype)
    top = a.abs().amax(0).clamp(min=1e-300 if far > 1e100 else 1e-37)
    q, r = (x.cpu() for x in torch.linalg.qr(a.cuda()))
    eps = 50 * torch.finfo(dtype).eps
    assert ((q @ (r / top) - a / top).abs() <= eps).all()
    assert ((q.mH @ q - torch.eye(6, dtype=dtype)).abs() <= eps).all()
    p, lower, upper = (x.cpu() for x in torch.linalg.lu(a.cuda()))
    assert ((p @ lower @ (upper / top) - a / top).abs() <= eps).all()


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_singular_matrices(dtype: torch.dtype) -> None:
    """Numbers of errors, factors, determinants and messages."""
    zeros, rows = torch.zeros(2, 3, 3, dtype=dtype), torch.tensor([[1, 2, 4], [2, 4, 8], [1, 1, 1]], dtype=dtype)
    for a in (zeros, rows, torch.stack([torch.eye(3, dtype=dtype), rows])):
        agree(lambda a: (torch.linalg.inv_ex(a).info, torch.linalg.solve_ex(a, a).info, *torch.linalg.lu_factor_ex(a)), a)
        agree(lambda a: (torch.linalg.det(a), *torch.linalg.slogdet(a)), a)
        for call in (
            torch.linalg.inv,
            torch.linalg.lu_factor,
            lambda a: torch.linalg.solve(a, a),
            lambda a: torch.linalg.inv_ex(a, check_errors=True),
            lambda a: torch.linalg.solve_ex(a, a, check_errors=True),
            lambda a: torch.linalg.lu_factor_ex(a, check_errors=True),
        ):
            assert error(call, a.cuda()) == error(call, a) != ""


@pytest.mark.parametrize("call", [torch.linalg.inv, torch.cholesky, torch.cholesky_inverse, torch.linalg.qr, torch.geqrf])
def test_types_and_shapes_that_torch_refuses(call: Case) -> None:
    square = torch.eye(3)
    for a in (square.half(), square.bfloat16(), square.long(), square.bool(), square[0]):
        assert error(call, a.cuda()) == error(call, a)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_matrices_that_are_not_positive_definite(dtype: torch.dtype) -> None:
    a = torch.eye(3, dtype=dtype).repeat(3, 1, 1)
    a[1, 1, 1], a[2, 2, 2] = -1, 0
    agree(lambda a: torch.linalg.cholesky_ex(a).info, a)
    for call in (
        torch.linalg.cholesky,
        torch.cholesky,
        lambda a: torch.linalg.cholesky_ex(a, check_errors=True),
        lambda a: torch.cholesky_inverse(a - torch.eye(3, dtype=a.dtype, device=a.device)),
    ):
        assert error(call, a.cuda()) == error(call, a) != ""
        assert error(call, a[1].cuda()) == error(call, a[1]) != ""


def error(call: Case, a: torch.Tensor) -> str:
    with pytest.raises(RuntimeError) as raised:
        call(a)
    return f"{type(raised.value).__name__}: {raised.value}".replace("cuda", "cpu")


def test_a_pivot_that_cancels_in_the_precision_of_the_type() -> None:
    """Which pivot is exactly 0 follows from the order of operations, which is defined here; on the CPU it depends on the processor."""
    a = torch.arange(1.0, 10).reshape(3, 3)
    assert [int(torch.linalg.inv_ex(x.cuda()).info) for x in (a, a.double())] == [3, 0]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_not_finite_are_not_lost(value: float) -> None:
    a = matrices((2, 3, 3), torch.float32)
    a[1, 1, 0] = value
    for call in (torch.linalg.det, lambda a: torch.linalg.inv_ex(a)[0], lambda a: torch.linalg.qr(a)[1]):
        ours = call(a.cuda()).cpu()
        close(ours[0].cuda(), call(a)[0])
        assert ours[1].isfinite().all() == call(a)[1].isfinite().all()


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
@pytest.mark.parametrize("name", ["cholesky", "upper cholesky", "inv", "solve", "solve from the right", "logdet", "qr", "lu"])
def test_gradients(name: str, dtype: torch.dtype) -> None:
    """Torch's formulas use the factors that the forward pass saved, and look at the layout of the matrix."""
    a = matrices((2, 4, 4), dtype)
    for x in (a, a.mT.contiguous().mT):
        grads = []
        for leaf in (x.cuda().requires_grad_(), x.clone().requires_grad_()):
            out = SQUARE[name](leaf)
            sum(part.abs().sum() for part in ((out,) if isinstance(out, torch.Tensor) else out)).backward()
            grads.append(leaf.grad)
        close(*grads)


@pytest.mark.parametrize("call", [torch.linalg.det, lambda a: torch.linalg.slogdet(a)[1]])
def test_gradients_of_matrices_with_a_lazy_sign(call: Case) -> None:
    a = matrices((3, 3), torch.float64)
    grads = []
    for leaf in (a.cuda().requires_grad_(), a.clone().requires_grad_()):
        call(torch._neg_view(leaf)).backward()
        grads.append(leaf.grad)
    close(*grads)


@pytest.mark.usefixtures("native")
def test_outputs_given() -> None:
    a = matrices((3, 3), torch.float32)
    for device in ("cpu", "cuda"):
        x = a.clone().to(device)
        whole = torch.zeros(3, 6, device=device)
        torch.linalg.inv(x, out=whole[:, ::2])
        torch.linalg.solve(x, x[:, :1], out=whole[:, 1:2])
        shape = torch.empty(0, device=device)
        torch.linalg.cholesky(x @ x.mT, out=shape)
        torch.linalg.inv(x, out=x)
        if device == "cpu":
            expected = whole, shape, x
        else:
            for ours, cpu in zip((whole, shape, x), expected, strict=True):
                same(ours, cpu)


def test_larger_matrices_are_left_to_the_cpu() -> None:
    a = matrices((STEPS_MAX + 1, STEPS_MAX + 1), torch.float64)
    before = stats()["fallbacks"].get("aten::linalg_lu_factor_ex", 0)
    agree(torch.linalg.lu_factor_ex, a)
    assert stats()["fallbacks"]["aten::linalg_lu_factor_ex"] == before + 3


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_exponentials_of_matrices(dtype: torch.dtype) -> None:
    """Of many sizes in one batch, beyond the squarings that the type's range needs, and not finite."""
    for shape in ((0, 0), (2, 0, 0), (0, 3, 3), (1, 1), (3, 4, 4)):
        agree(torch.linalg.matrix_exp, matrices(shape, dtype) - 3)
    sizes = torch.tensor([1e-6, 1.0, 5.0], dtype=dtype)[:, None, None]
    agree(torch.linalg.matrix_exp, torch.tensor([[0.1, -1], [1, -0.2]], dtype=dtype) * sizes)
    far = torch.diag_embed(torch.tensor([[-1e30, 1.0], [1.0, 0.0]], dtype=dtype))
    agree(torch.linalg.matrix_exp, far)
    assert torch.linalg.matrix_exp(far.cuda() * float("inf")).isnan().all()
