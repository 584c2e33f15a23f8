"""Small trainings: the same script on both devices gives the same losses and weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import grad, vmap
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from wooly.device.recorder import RECORDER
from wooly.link import Flush

Optimizer = Callable[[Any], torch.optim.Optimizer]

OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=1e-3),
    "sgd fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-2),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "adamw amsgrad": lambda p: torch.optim.AdamW(p, lr=1e-2, amsgrad=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, centered=True),
}


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 8, 3), nn.Flatten(), nn.Linear(8, 4)
    )


def train(model: Callable[[], nn.Module], shape: tuple[int, ...], optimizer: Optimizer, device: str, steps: int = 4) -> list[torch.Tensor]:
    """Losses of every step, then the final state."""
    torch.manual_seed(0)
    net = model()
    x, y = torch.randn(32, *shape), torch.randint(0, 4, (32,))
    net, x, y = net.to(device), x.to(device), y.to(device)
    step = optimizer(net.parameters())
    losses = []
    for _ in range(steps):
        step.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        step.step()
        losses.append(loss.detach())
    return [t.cpu() for t in (*losses, *net.state_dict().values())]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_mlp_trains_as_on_the_cpu(name: str) -> None:
    ours, cpu = (train(mlp, (8,), OPTIMIZERS[name], device) for device in ("cuda", "cpu"))
    torch.testing.assert_close(ours, cpu, rtol=1e-4, atol=1e-5)


def test_cnn_with_batch_norm_trains_as_on_the_cpu() -> None:
    ours, cpu = (train(cnn, (1, 6, 6), OPTIMIZERS["sgd"], device) for device in ("cuda", "cpu"))
    torch.testing.assert_close(ours, cpu, rtol=1e-4, atol=1e-4)


def test_a_training_step_seen_before_is_the_same_program_and_waits_for_nothing(flushes: list[Flush]) -> None:
    """From the second step on only scalars and handles are new: what makes a steady step cheap to send."""
    net = mlp().to("cuda")
    x, y = torch.randn(32, 8, device="cuda"), torch.randint(0, 4, (32,), device="cuda")
    step = torch.optim.AdamW(net.parameters(), lr=1e-2)

    def one() -> None:
        step.zero_grad()
        F.cross_entropy(net(x), y).backward()
        step.step()

    one()
    waits = RECORDER.counters.waits
    start = len(flushes)
    for _ in range(4):
        one()
    steady = flushes[start + 1 :]
    assert len(steady) == 3, "one batch a step"
    assert len({f.program for f in steady}) == len({f.dims_digest for f in steady}) == 1
    assert steady[0].scalars != steady[1].scalars, "AdamW's bias correction counts up"
    assert not any(f.allocs or f.uploads for f in steady)
    assert RECORDER.counters.waits == waits


def test_gradients_accumulate_and_double_backward_works() -> None:
    def run(device: str) -> list[torch.Tensor]:
        torch.manual_seed(1)
        x = torch.randn(3, 4).to(device).requires_grad_()
        w = torch.randn(4, 2).to(device).requires_grad_()
        y = (x @ w).tanh().sum()
        (gx,) = torch.autograd.grad(y, x, create_graph=True)
        (gx.square().sum() + y).backward()
        y2 = (x * 2).sum()
        y2.backward()
        assert x.grad is not None and w.grad is not None
        return [x.grad.cpu(), w.grad.cpu()]

    torch.testing.assert_close(run("cuda"), run("cpu"))


def test_attention_is_one_operation_and_its_gradients_are_torchs(flushes: list[Flush]) -> None:
    def run(device: str) -> list[torch.Tensor]:
        torch.manual_seed(2)
        q, k, v = (torch.randn(2, 2, 5, 8).to(device).requires_grad_() for _ in range(3))
        mask = torch.ones(5, 5, dtype=torch.bool).tril().to(device)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True) + F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        out.sum().backward()
        return [out.detach().cpu(), *(t.grad.cpu() for t in (q, k, v) if t.grad is not None)]

    torch.testing.assert_close(run("cuda"), run("cpu"))
    q = torch.randn(2, 2, 5, 8, device="cuda")
    RECORDER.flush()
    F.scaled_dot_product_attention(q, q, q, is_causal=True).cpu()
    assert flushes[-1].n_ops == 1


def test_foreach_in_place_counts_versions_so_that_autograd_notices_what_changed() -> None:
    """torch's CUDA kernels count them; without, a gradient is computed from the new values."""
    weight = torch.full((3,), 2.0, device="cuda", requires_grad=True)
    kept = weight * 3
    loss = (kept * kept).sum()
    torch._foreach_zero_([kept.detach()])
    torch._foreach_add_([kept.detach()], 1.0)
    assert kept._version == 2
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("name", ["sgd", "adamw fused", "adamw amsgrad"])
def test_a_step_of_more_parameters_than_one_record_covers(name: str) -> None:
    def stepped(device: str) -> list[torch.Tensor]:
        parameters = [nn.Parameter(torch.full((2,), float(i), device=device)) for i in range(1_100)]
        for i, p in enumerate(parameters):
            p.grad = torch.full_like(p, i % 7)
        OPTIMIZERS[name](parameters).step()
        norms = torch._foreach_norm([p.grad for p in parameters])  # type: ignore[arg-type]  # just set
        return [
            torch.stack(list(norms)).cpu(),
            torch.stack(torch._foreach_mul(parameters, [float(i) for i in range(1_100)])).detach().cpu(),
        ]

    torch.testing.assert_close(stepped("cuda"), stepped("cpu"))


def test_lists_of_different_lengths_are_refused_before_anything_changes() -> None:
    xs = [torch.zeros(1, device="cuda") for _ in range(1_100)]
    with pytest.raises(RuntimeError, match="got 1100 and 1099"):
        torch._foreach_add_(xs, xs[1:])
    assert torch.stack(xs).sum().item() == 0


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_drops_the_same_elements_when_it_computes_them_again(reentrant: bool) -> None:
    x = torch.ones(40, 6, device="cuda", requires_grad=True)
    y = checkpoint(lambda t: F.dropout(t, 0.5).exp(), x * 2, use_reentrant=reentrant)
    y.sum().backward()
    assert x.grad is not None
    kept = y != 1
    assert 60 < int(kept.sum()) < 180
    assert torch.equal(x.grad != 0, kept)


@pytest.mark.parametrize("order", ["vmap(grad(loss))", "grad(lambda t: vmap(loss)(t).sum())", "grad(lambda t: loss(t[0]))", "vmap(loss)"])
def test_attention_under_transforms_of_functions(order: str) -> None:
    def loss(t: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(t, t * 0.5, t).square().sum()

    x = torch.arange(120.0).reshape(3, 1, 2, 5, 4) / 60
    ours, expected = (eval(order, {"vmap": vmap, "grad": grad, "loss": loss})(x.to(device)) for device in ("cuda", "cpu"))
    torch.testing.assert_close(ours.cpu(), expected)


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
        lambda p: torch.optim.Adam(p, lr=0.01, fused=True, weight_decay=0.1, amsgrad=True),
        lambda p: torch.optim.Adagrad(p, lr=0.1, fused=True, lr_decay=0.1),
        lambda p: torch.optim.SGD(p, lr=0.1, fused=True, momentum=0.9, nesterov=True),
    ],
)
def test_fused_optimisers_of_doubles_are_exact_to_doubles(make: Callable[[list[torch.Tensor]], torch.optim.Optimizer]) -> None:
    start = torch.linspace(-2, 3, 40, dtype=torch.float64)
    parameters = {device: start.clone().to(device).requires_grad_() for device in ("cpu", "cuda")}
    optimisers = {device: make([parameter]) for device, parameter in parameters.items()}
    for _ in range(4):
        for device, parameter in parameters.items():
            parameter.grad = torch.linspace(-1, 1, 40, dtype=torch.float64).to(device)
            optimisers[device].step()
    torch.testing.assert_close(parameters["cuda"].detach().cpu(), parameters["cpu"].detach(), rtol=1e-13, atol=1e-14)
