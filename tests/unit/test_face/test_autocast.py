"""Autocast on the device follows the rules of CUDA's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.support.device import same
from wooly.device.face import autocast

CUDA = "cuda"


def x(*shape: int) -> torch.Tensor:
    return torch.linspace(0.1, 1, torch.Size(shape).numel()).reshape(shape)


def header_list(name: str) -> Iterator[str]:
    """The operators of one list of the installed torch's header, as ``name`` or ``name.overload``."""
    text = (Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h").read_text()
    block = re.search(rf"#define {name}\(_\)((?:.*\\\n)*.*\n)", text)
    assert block is not None, f"{name} is not in the header"
    for match in re.finditer(r"_\((\w+)(?:, (\w+))?\)", block[1]):
        yield match[1] + (f".{match[2]}" if match[2] else "")


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("AT_FORALL_LOWER_PRECISION_FP", autocast.LOWER_PRECISION),
        ("AT_FORALL_FP32", autocast.FP32),
        ("AT_FORALL_FP32_SET_OPT_DTYPE", autocast.FP32_SET_OPT_DTYPE),
        ("AT_FORALL_PROMOTE", autocast.PROMOTE),
    ],
)
def test_the_lists_are_torchs(name: str, ours: tuple[str, ...]) -> None:
    # Other versions may add operators; whatever one of them lists, we must treat.
    missing = set(header_list(name)) - set(ours) - set(autocast.FP32_SET_OPT_DTYPE_NAMED)
    assert not missing
    if torch.__version__.startswith("2.13"):
        assert set(header_list(name)) == set(ours) and len(set(ours)) == len(ours)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("call", "low"),
    [
        (lambda a, b: a @ b, True),
        (lambda a, b: F.linear(a, b), True),
        (lambda a, b: torch.addmm(a, a, b), True),
        (lambda a, b: torch.einsum("ij,jk->ik", a, b), True),
        (lambda a, b: F.scaled_dot_product_attention(a[None, None], b[None, None], a[None, None]), True),
        (lambda a, b: F.conv1d(a[None], b[:, :, None]), True),
        (lambda a, b: a + b, None),
        (lambda a, b: a.relu(), None),
        (lambda a, b: a.softmax(-1), False),
        (lambda a, b: a.sum(), False),
        (lambda a, b: a.exp(), False),
        (lambda a, b: F.layer_norm(a, (4,)), False),
        (lambda a, b: F.mse_loss(a, b), False),
        (lambda a, b: a.norm(), False),
        (lambda a, b: a.norm(2, 1), False),
        (lambda a, b: a.pow(2), False),
    ],
)
def test_result_types(call: Any, low: bool | None, dtype: torch.dtype) -> None:
    a, b = x(4, 4), x(4, 4)
    for inputs in ((a, b), (a.to(dtype), b.to(dtype))):
        expected = {True: dtype, False: torch.float32, None: inputs[0].dtype}[low]
        with torch.autocast(CUDA, dtype=dtype):
            result = call(*(value.cuda() for value in inputs))
        assert result.is_cuda and result.dtype == expected
        if not low:
            exact = call(*(value.float() for value in inputs))
            torch.testing.assert_close(result.float().cpu(), exact, atol=2e-2, rtol=2e-2)
        else:
            exact = call(*(value.to(dtype) for value in inputs))
            torch.testing.assert_close(result.cpu(), exact, atol=2e-2, rtol=2e-2)


def test_the_widest_type_wins_where_types_meet() -> None:
    half, single = x(3).half().cuda(), x(3).cuda()
    with torch.autocast(CUDA):
        assert torch.dot(half, single).dtype == torch.float32 and torch.dot(half, half).dtype == torch.float16
        assert torch.addcmul(half, half, single).dtype == torch.float32


def test_a_chosen_dtype_is_kept_and_doubles_are_left_alone() -> None:
    with torch.autocast(CUDA):
        assert x(3).half().cuda().sum(0, dtype=torch.float64).dtype == torch.float64
        assert (x(2, 2).double().cuda() @ x(2, 2).double().cuda()).dtype == torch.float64
        assert (torch.ones(2, 2, dtype=torch.int64, device=CUDA)).sum().dtype == torch.int64


def test_the_cpu_is_not_cast() -> None:
    with torch.autocast(CUDA):
        assert (x(2, 2) @ x(2, 2)).dtype == torch.float32
    with torch.autocast("cpu"):
        assert (x(2, 2) @ x(2, 2)).dtype == torch.bfloat16
        assert (x(2, 2).cuda() @ x(2, 2).cuda()).dtype == torch.float32


def test_binary_cross_entropy_is_banned() -> None:
    p = torch.tensor([0.25, 0.75], device=CUDA)
    with torch.autocast(CUDA), pytest.raises(RuntimeError, match="unsafe to autocast"):
        F.binary_cross_entropy(p, p)
    same(F.binary_cross_entropy(p, p), F.binary_cross_entropy(p.cpu(), p.cpu()))


def test_switches() -> None:
    assert not torch.is_autocast_enabled(CUDA) and not torch.is_autocast_enabled()
    assert torch.get_autocast_dtype(CUDA) == torch.float16 == torch.get_autocast_gpu_dtype()
    with torch.autocast(CUDA, dtype=torch.bfloat16):
        assert torch.is_autocast_enabled(CUDA) and torch.is_autocast_enabled() and torch.get_autocast_dtype(CUDA) == torch.bfloat16
        with torch.autocast(CUDA, enabled=False):
            assert not torch.is_autocast_enabled(CUDA)
            assert (x(2, 2).cuda() @ x(2, 2).cuda()).dtype == torch.float32
        assert (x(2, 2).cuda() @ x(2, 2).cuda()).dtype == torch.bfloat16
    assert not torch.is_autocast_enabled(CUDA) and torch.amp.is_autocast_available(CUDA)

    @torch.autocast(CUDA)
    def decorated() -> torch.Tensor:
        return x(2, 2).cuda() @ x(2, 2).cuda()

    assert decorated().dtype == torch.float16


def test_parameters_are_cast_once_and_train() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    shared = nn.Linear(4, 4)
    shared.load_state_dict(model.state_dict())
    shared.cuda()
    inputs = x(2, 4)
    with torch.autocast(CUDA, dtype=torch.bfloat16):
        first, second = shared(inputs.cuda()), shared(inputs.cuda() * 2)
        loss = (first + second).float().square().mean()
    loss.backward()
    (model(inputs) + model(inputs * 2)).square().mean().backward()
    assert shared.weight.grad is not None and shared.weight.grad.dtype == torch.float32
    torch.testing.assert_close(shared.weight.grad.cpu(), model.weight.grad, atol=3e-2, rtol=3e-2)
    # A second region sees the new weights, not those cast in the first.
    with torch.no_grad():
        shared.weight.zero_()
        shared.bias.zero_()
    with torch.autocast(CUDA, dtype=torch.bfloat16):
        assert shared(inputs.cuda()).abs().max().item() == 0


def test_casts_made_without_autograd_do_not_hide_gradients() -> None:
    layer = nn.Linear(2, 2).cuda()
    with torch.autocast(CUDA):
        with torch.no_grad():
            layer(x(1, 2).cuda())
        layer(x(1, 2).cuda()).sum().backward()
    assert layer.weight.grad is not None


def test_custom_functions_under_autocast() -> None:
    class Square(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)
        def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(value)
            return value @ value

        @staticmethod
        @torch.amp.custom_bwd(device_type="cuda")
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            (value,) = ctx.saved_tensors
            return gradient @ value.t() + value.t() @ gradient

    with torch.autocast(CUDA):
        value = x(2, 2).half().cuda().requires_grad_()
        result = Square.apply(value)
        assert result.dtype == torch.float32
    result.sum().backward()
    assert value.grad is not None and value.grad.dtype == torch.float16
