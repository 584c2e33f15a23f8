"""``torch.compile`` gives the bits of the same code that is not compiled, and records a form of arguments once."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from wooly.device import compiled as compiled_module
from wooly.device.backend import handle_of
from wooly.device.graphs import Part
from wooly.device.recorder import RECORDER


@pytest.fixture(autouse=True)
def _anew() -> None:
    torch._dynamo.reset()  # type: ignore[no-untyped-call]  # torch's


def compiled(function: Any) -> Any:
    return torch.compile(function)


def standing_for(code: Callable[[Tensor], Any]) -> compiled_module._Compiled:
    """A compiled graph that does what ``code`` does."""
    graph = compiled_module._Compiled(torch.fx.GraphModule({}, torch.fx.Graph()))
    graph._graph = code  # type: ignore[assignment]  # stands for a graph
    return graph


def rows(n: int) -> Tensor:
    return torch.arange(4.0 * n, device="cuda").view(n, 4) - 5


def both_views(x: Tensor) -> tuple[Tensor, Tensor]:
    doubled = x * 2
    return doubled.t(), doubled[0]


def changes(x: Tensor) -> Tensor:
    x.add_(1)
    return x.view(-1)[::2]


def branches(x: Tensor) -> Tensor:
    return x * 3 if x.sum() > 0 else x - 1


def filled(x: Tensor) -> tuple[Tensor, int]:
    empty = torch.empty_like(x)
    empty.copy_(x + 1)
    return empty, 7


@pytest.mark.parametrize("function", [lambda x: (x @ x.t()).relu(), both_views, changes, branches, filled, lambda x: x[:0], lambda x: x])
def test_results_are_those_of_the_code_as_it_is(function: Callable[[Tensor], Any]) -> None:
    code = compiled(function)
    for n in (3, 3, 4, 3, 1):
        given = [rows(n), rows(n)]
        found, want = code(given[0]), function(given[1])
        assert type(found) is type(want)
        for mine, its in zip(*(v if isinstance(v, tuple) else (v,) for v in (found, want)), strict=True):
            if isinstance(its, Tensor):
                assert torch.equal(mine, its) and mine.stride() == its.stride() and mine.dtype == its.dtype
            else:
                assert mine == its
        assert torch.equal(*given)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of operations of each message that stands for a graph."""
    found: list[int] = []
    send = Part.send
    monkeypatch.setattr(Part, "send", lambda self, *args: (found.append(len(self._records)), send(self, *args))[1])
    return found


def test_a_call_is_one_message_once_its_form_is_known(monkeypatch: pytest.MonkeyPatch, sent: list[int]) -> None:
    code = compiled(lambda x: (x * 2 + 1).relu().sum(0))
    for n in (3, 3, 5, 3):
        code(rows(n))
    assert sent == [4] * 4
    recorded = []
    record = compiled_module._recorded
    monkeypatch.setattr(compiled_module, "_recorded", lambda graph, args: (recorded.append(1), record(graph, args))[1])
    code(rows(3))
    code(rows(5))
    assert not recorded


class Doubled(nn.Module):
    """torch compiles layers of its own in place only as part of another module."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return 2 * self.inner(x)  # type: ignore[no-any-return]  # modules are untyped calls


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"backend": "wooly"},
        {"backend": "inductor"},
        {"mode": "reduce-overhead", "fullgraph": True},
        {"options": {"triton.cudagraphs": True}},
    ],
    ids=str,
)
def test_however_it_is_asked_for(how: dict[str, Any], sent: list[int]) -> None:
    """A function, a decorator, a module with torch's names, a module in place."""
    function = torch.compile(lambda x: x * 2, **how)
    decorated = torch.compile(**how)(lambda x: x * 2)
    model = Doubled().cuda()
    wrapped: Any = torch.compile(model, **how)
    assert wrapped._orig_mod is model and list(wrapped.state_dict()) == ["_orig_mod.inner.weight", "_orig_mod.inner.bias"]
    x = rows(2)
    assert torch.equal(function(x), x * 2) and torch.equal(decorated(x), x * 2)
    want = model(x)
    assert torch.equal(wrapped(x), want)
    model.compile(**how)
    assert torch.equal(model(x), want)
    assert len(sent) == 4


def test_what_torch_refuses_is_refused_and_what_it_leaves_is_left(sent: list[int]) -> None:
    with pytest.raises(RuntimeError, match="mode or options"):
        torch.compile(lambda x: x, mode="default", options={"max_autotune": True})
    assert torch.equal(torch.compile(lambda x: x * 2, disable=True)(rows(2)), rows(2) * 2)
    assert not sent


def test_a_graph_that_cannot_be_taken_apart_is_executed_as_it_is(monkeypatch: pytest.MonkeyPatch, sent: list[int]) -> None:
    def broken(**how: Any) -> Any:
        raise NotImplementedError("no such decomposition")

    monkeypatch.setattr("torch._dynamo.backends.common.aot_autograd", broken)
    with pytest.warns(UserWarning, match="executes a graph as it is: no such decomposition"):
        assert torch.equal(compiled(lambda x: x * 2)(rows(2)), rows(2) * 2)
    assert not sent


def test_inductor_called_past_torch_compile(sent: list[int]) -> None:
    from torch._inductor.compile_fx import compile_fx
    from torch.fx.experimental.proxy_tensor import make_fx

    graph = make_fx(lambda x: torch.sin(x) * 2)(rows(2))
    assert torch.equal(compile_fx(graph, [rows(2)])(rows(2)), torch.sin(rows(2)) * 2)
    assert torch.equal(torch._dynamo.optimize("inductor")(lambda x: x * 2)(rows(2)), rows(2) * 2)  # type: ignore[no-untyped-call]  # torch's
    assert len(sent) == 2


def test_a_compiled_optimiser_step(sent: list[int]) -> None:
    weights: list[Tensor] = []
    for wrap in (compiled, lambda step: step):
        weight = nn.Parameter(rows(2))
        optimiser = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
        step = wrap(optimiser.step)
        for _ in range(3):
            optimiser.zero_grad()
            weight.square().sum().backward()
            step()
        weights.append(weight.detach())
    assert torch.equal(*weights) and sent


def test_a_training_has_the_bits_of_the_one_that_is_not_compiled() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.GELU(), nn.Dropout(0.2), nn.LayerNorm(16), nn.Linear(16, 4)).cuda()
    losses: list[list[float]] = []
    for wrap in (compiled, lambda m: m):
        torch.manual_seed(1)
        mine = copy.deepcopy(model)
        called = wrap(mine)
        optimiser = torch.optim.AdamW(mine.parameters(), 1e-2)
        losses.append([])
        for n in (3, 4, 3, 4, 3):
            loss = F.mse_loss(called(rows(n)), rows(n) * 0.1)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses[-1].append(loss.item())
        losses[-1] += [p.sum().item() for p in mine.parameters()]
    assert losses[0] == losses[1]


class Recurrent(nn.Module):
    """torch leaves recurrent layers out of graphs, so they run between two of them."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent, self.out = nn.LSTM(4, 8, batch_first=True), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.recurrent(x * 2)[0])  # type: ignore[no-any-return]  # modules are untyped calls


@pytest.mark.parametrize("calls", [1, 3])
def test_a_checkpoint_draws_what_it_draws_uncompiled(calls: int) -> None:
    def code(x: Tensor) -> Tensor:
        return checkpoint(lambda x: F.dropout(x.sin(), 0.5).sin(), x, use_reentrant=False)  # type: ignore[no-any-return]  # torch's

    def drawn(function: Callable[[Tensor], Tensor]) -> list[Tensor]:
        torch.manual_seed(1)
        x = rows(8).requires_grad_()
        results = [function(x) for _ in range(calls)]
        for result in results:
            result.sum().backward()
        assert x.grad is not None
        return [*results, x.grad, torch.rand(3, device="cuda"), torch.rand(3)]

    for ours, expected in zip(drawn(compiled(code)), drawn(code), strict=True):
        assert torch.equal(ours, expected)


def test_a_generator_of_its_own_is_drawn_from_between_graphs() -> None:
    def code(x: Tensor, generator: torch.Generator) -> Tensor:
        return (x * 2 + torch.rand(x.shape, device="cuda", generator=generator)).sin()

    mine, its = (torch.Generator("cuda").manual_seed(4) for _ in range(2))
    function = compiled(code)
    for _ in range(3):
        assert torch.equal(function(rows(2), mine), code(rows(2), its))
    assert mine.get_offset() == its.get_offset() > 0


def test_layers_outside_of_graphs_and_statistics_kept_in_buffers() -> None:
    torch.manual_seed(0)
    convolutional = nn.Sequential(nn.Unflatten(0, (1, 2, -1)), nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3), nn.ReLU())
    for model, x in ((Recurrent(), rows(3)[None]), (convolutional, rows(4))):
        plain = copy.deepcopy(model.cuda())
        for _ in range(3):
            for called in (compiled(model), plain):
                called(x).square().sum().backward()
        for mine, its in zip((*model.parameters(), *model.buffers()), (*plain.parameters(), *plain.buffers()), strict=True):
            assert torch.equal(mine, its) and (mine.grad is None) == (its.grad is None)
            assert mine.grad is None or torch.equal(mine.grad, its.grad)


def test_arguments_that_share_a_buffer_are_another_form() -> None:
    code = compiled(lambda x, y: x * 2 + y)
    x, y = rows(2), rows(2) + 1
    assert torch.equal(code(x, y), x * 2 + y)
    assert torch.equal(code(x, x), x * 3)
    assert torch.equal(code(y, x), y * 2 + x)


def test_numbers_belong_to_the_form_and_forms_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_module, "FORMS_MAX", 2)
    graph = compiled_module._Compiled(torch.fx.symbolic_trace(lambda x, k: x * k))
    for k in (0.0, -0.0, 0.0, 4.0, 5.0):
        assert torch.equal(graph(rows(2), k), rows(2) * k)
        assert torch.equal(graph(rows(2), k).signbit(), (rows(2) * k).signbit())
    assert len(graph._forms) == 2


def test_what_is_not_recorded_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A result that something keeps, numbers of another generator, an error in the middle: the code is executed, buffers are freed once."""
    kept: list[Tensor] = []
    keeping = standing_for(lambda x: (kept.append(x * 2), kept[-1] + 1)[1])
    for _ in range(2):
        assert torch.equal(keeping(rows(2)), rows(2) * 2 + 1)
    other = torch.Generator("cuda").manual_seed(5)
    drawing = standing_for(lambda x: x + torch.rand(2, 4, device="cuda", generator=other))
    assert not torch.equal(drawing(rows(2)), drawing(rows(2)))
    failing = compiled_module._Compiled(torch.fx.symbolic_trace(lambda x: (x * 2) @ x))
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        failing(rows(2))
    kept.clear()
    gone = rows(2)
    holder = [gone]
    handle = handle_of(gone)
    del gone
    dropping = standing_for(lambda x: (holder.clear(), x + 1)[1])
    freed: list[int] = []
    build = RECORDER._build
    monkeypatch.setattr(RECORDER, "_build", lambda *args: (freed.extend(args[3]), build(*args))[1])
    dropping(rows(2))
    torch.cuda.synchronize()
    assert freed.count(handle) == 1 and not RECORDER.capturing


def test_a_tensor_of_the_cpu_is_read_at_each_call() -> None:
    code = compiled(lambda x, k: x * k)
    for k in (2.0, 3.0):
        assert torch.equal(code(rows(2), torch.tensor(k)), rows(2) * k)


def test_what_a_graph_makes_on_the_cpu_and_sends_is_part_of_it(sent: list[int]) -> None:
    """Each call has a buffer of its own, which it may change."""
    graph = standing_for(lambda x: torch.arange(4.0).add(1).cuda().add_(x.sum(0)))
    found = [graph(rows(n)) for n in (2, 2, 3, 2)]
    for n, result in zip((2, 2, 3, 2), found, strict=True):
        assert torch.equal(result, torch.arange(1.0, 5).cuda() + rows(n).sum(0))
    assert len(sent) == 4


def test_what_a_graph_reads_on_the_cpu_is_read_again_when_it_has_changed(sent: list[int]) -> None:
    held = torch.nn.Module()
    held.register_buffer("weight", torch.arange(4.0))
    nodes = torch.fx.Graph()
    given = nodes.placeholder("x")
    nodes.output(nodes.call_function(torch.add, (given, nodes.call_method("cuda", (nodes.get_attr("weight"),)))))
    graph = compiled_module._Compiled(torch.fx.GraphModule(held, nodes))
    for _ in range(2):
        for _ in range(2):
            assert torch.equal(graph(rows(1)), rows(1) + held.weight.cuda())
        held.weight.mul_(2)
    assert len(sent) == 4


def test_much_that_a_graph_sends_in_small_pieces_is_not_kept() -> None:
    graph = standing_for(lambda x: x + sum(torch.full((4096,), float(i)).cuda()[:4] for i in range(8)))
    with pytest.warns(UserWarning, match="executes a graph as it is"):
        assert torch.equal(graph(rows(1)), rows(1) + 28)


def test_what_a_graph_draws_on_the_cpu_is_drawn_anew_at_each_call(sent: list[int]) -> None:
    graph = standing_for(lambda x: x + torch.rand(4).cuda())
    torch.manual_seed(3)
    found = [graph(rows(1)) for _ in range(3)]
    torch.manual_seed(3)
    for result in found:
        assert torch.equal(result, rows(1) + torch.rand(4).cuda())
    assert not sent


def test_a_graph_that_sends_much_is_executed_as_it_is(sent: list[int]) -> None:
    graph = standing_for(lambda x: x + torch.arange(4.0 * 5000).view(5000, 4).cuda())
    with pytest.warns(UserWarning, match="executes a graph as it is"):
        assert torch.equal(graph(rows(1))[-1], rows(1)[0] + torch.arange(19_996.0, 20_000).cuda())
    assert not sent


def test_a_graph_that_reads_a_value_is_executed_as_it_is() -> None:
    graph = compiled_module._Compiled(torch.fx.symbolic_trace(lambda x: x * x.sum().item()))
    with pytest.warns(UserWarning, match="executes a graph as it is: CUDA error: operation not permitted when stream is capturing"):
        assert torch.equal(graph(rows(2)), rows(2) * rows(2).sum())
    assert torch.equal(graph(rows(2)), rows(2) * rows(2).sum())


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_questions_about_autocast_break_no_graph(device: str) -> None:
    def asks(x: Tensor) -> Tensor:
        known = torch.is_autocast_enabled() or torch.is_autocast_enabled(device)
        return (x + 1).to(torch.get_autocast_dtype(device)) if known else x - 1

    code = torch.compile(asks, fullgraph=True, backend=compiled_module.backend if device == "cuda" else "eager")
    x = torch.ones(2, device=device)
    assert code(x).tolist() == [0.0, 0.0]
    with torch.autocast(device, dtype=torch.bfloat16):
        assert code(x).dtype == torch.bfloat16 and code(x).tolist() == [2.0, 2.0]


def test_an_encoder_without_gradients_is_one_graph() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).cuda().eval()
    x = torch.randn(2, 3, 8, device="cuda")
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(layer, fullgraph=True)(x), layer(x))


def test_results_that_are_read_as_conjugate_or_negative() -> None:
    torch.manual_seed(0)
    z = torch.randn(4, dtype=torch.cfloat)
    for code in (lambda z: (z * 2).conj(), lambda z: (z * 2).conj().imag, lambda z: (z * 2).conj() + 1):
        torch.testing.assert_close(compiled(code)(z.cuda()).cpu(), code(z))

    def loss(x: Tensor, w: Tensor) -> Tensor:
        f = torch.fft.rfft(x)
        y = f * w.conj()
        return torch.fft.irfft(y, n=6).square().sum() + (y * f.conj()).abs().sum()

    x, weights = torch.randn(6), torch.randn(4, dtype=torch.cfloat)
    here, there = weights.clone().requires_grad_(), weights.cuda().requires_grad_()
    loss(x, here).backward()
    compiled(loss)(x.cuda(), there).backward()
    assert here.grad is not None and there.grad is not None
    torch.testing.assert_close(there.grad.cpu(), here.grad, atol=1e-4, rtol=1e-4)


def test_python_of_a_custom_operator_runs_in_each_call() -> None:
    state = {"scale": 1.0}

    @torch.library.custom_op("wooly_test::scale", mutates_args=())
    def scale(x: Tensor) -> Tensor:
        return x * state["scale"]

    @scale.register_fake
    def _(x: Tensor) -> Tensor:
        return torch.empty_like(x)

    function, x = compiled(lambda x: scale(x) + 1), torch.ones(2, device="cuda")
    assert function(x).tolist() == [2.0, 2.0]
    state["scale"] = 5.0
    assert function(x).tolist() == [6.0, 6.0]


@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.jacrev])
def test_derivatives_within_a_graph_of_a_view(transform: Any) -> None:
    def derived(x: Tensor) -> Tensor:
        found: Tensor = transform(lambda y: (y**3).sum())(x)
        return found

    view = rows(3)[1:]
    assert torch.equal(compiled(derived)(view), derived(view))


@pytest.mark.parametrize("backend", ["inductor", "cudagraphs", "wooly"])
def test_a_backend_that_the_script_names_gives_outputs_and_gradients(backend: str) -> None:
    x, weight = rows(3).requires_grad_(), torch.linspace(-1, 1, 8, device="cuda").view(4, 2)

    def code(x: Tensor) -> Tensor:
        return (x @ weight).relu().softmax(-1)

    out = torch.compile(code, backend=backend)(x)
    plain = code(x)
    assert torch.equal(out, plain)
    for mine, its in zip(torch.autograd.grad(out.sin().sum(), x), torch.autograd.grad(plain.sin().sum(), x), strict=True):
        assert torch.equal(mine, its)
