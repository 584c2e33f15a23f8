"""Tensors of the device say and do what CUDA tensors say and do; values are compared with the CPU's."""

from __future__ import annotations

import contextlib
import copy
import gc
import inspect
import io
import pickle
import weakref
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.device import same
from wooly.device.backend import handle_of

CUDA = torch.device("cuda", 0)


def numbers(*shape: int) -> torch.Tensor:
    """Different values at every place, the same at every call."""
    return torch.linspace(-1, 1, max(torch.Size(shape).numel(), 1)).reshape(shape)


@pytest.mark.parametrize("device", ["cuda", "cuda:0", 0, torch.device("cuda"), torch.device("cuda:0")])
def test_to_takes_every_spelling(device: Any) -> None:
    x = numbers(2, 3)
    same(x.to(device), x)
    same(x.to(device=device), x)
    same(x.to(device, torch.float16), x.half())
    same(torch.tensor([1.5, 2], device=device), torch.tensor([1.5, 2]))
    same(torch.zeros(2, device=device), torch.zeros(2))


def test_a_device_is_made_from_a_number() -> None:
    """Such as the local rank, in a hundred scripts."""
    device = torch.device(0)
    assert device == CUDA == torch.zeros(1, device=device).device and hash(device) == hash(CUDA)
    assert (device.type, device.index, str(device)) == ("cuda", 0, "cuda:0")
    assert torch.device(device=3) == torch.device("cuda", 3) == copy.deepcopy(torch.device(3))
    assert pickle.loads(pickle.dumps(torch.device(3))) == torch.device("cuda", 3)
    assert torch.device("cpu", 0) == torch.device(type="cpu", index=0) != torch.device(torch.device("cpu"))
    with torch.device(0):
        assert torch.zeros(1).device == CUDA
    assert isinstance(device, torch.device) and type(device) is torch.device
    for wrong, error, text in ((-1, RuntimeError, "negative"), ("bogus", RuntimeError, "bogus"), (None, TypeError, "NoneType")):
        with pytest.raises(error, match=text):
            torch.device(wrong)  # type: ignore[call-overload]  # what torch refuses


@pytest.mark.parametrize("args", [(), (0,), ("cuda:0",), (None,), (torch.device("cuda"),)])
def test_cuda(args: tuple[Any, ...]) -> None:
    same(numbers(3).cuda(*args), numbers(3))
    same(numbers(1, 2, 3, 3).cuda(memory_format=torch.channels_last), numbers(1, 2, 3, 3).contiguous(memory_format=torch.channels_last))


def test_to_the_same_device_is_the_same_tensor() -> None:
    x = numbers(2).cuda()
    assert x.to("cuda") is x and x.cuda() is x and x.to(x) is x
    assert x.to("cuda", copy=True) is not x


def test_identity() -> None:
    x = numbers(2).cuda()
    assert (x.device, x.is_cuda, x.is_cpu, x.get_device()) == (CUDA, True, False, 0)
    y = x.cpu()
    assert (y.device.type, y.is_cuda, y.get_device()) == ("cpu", False, -1)
    assert x.type() == "torch.cuda.FloatTensor" and x.long().type() == "torch.cuda.LongTensor"


@pytest.mark.parametrize("kind", ["torch.cuda.HalfTensor", torch.cuda.HalfTensor])
def test_type_moves_and_converts(kind: Any) -> None:
    same(numbers(3).type(kind), numbers(3).half())
    same(numbers(3).cuda().type(torch.float64), numbers(3).double())


def test_unknown_type_names() -> None:
    with pytest.raises(ValueError, match=r"invalid type: 'torch\.cuda\.NoTensor'"):
        numbers(2).type("torch.cuda.NoTensor")


def test_legacy_classes() -> None:
    same(torch.cuda.LongTensor([1, 2]), torch.tensor([1, 2]))
    assert torch.cuda.FloatTensor(2, 3).shape == (2, 3) and torch.cuda.FloatTensor().numel() == 0
    assert isinstance(torch.zeros(1, device="cuda"), torch.cuda.FloatTensor)
    assert not isinstance(torch.zeros(1), torch.cuda.FloatTensor)
    assert not isinstance(torch.zeros(1, device="cuda"), torch.cuda.LongTensor)


@pytest.mark.parametrize(
    "make",
    [
        lambda x, **k: x.new_zeros(3, **k),
        lambda x, **k: x.new_ones((2, 2), **k),
        lambda x, **k: x.new_full((2,), 7.0, **k),
        lambda x, **k: x.new_tensor([1.0, 2.0], **k),
        lambda x, **k: torch.zeros_like(x, **k),
        lambda x, **k: torch.full_like(x, 3.0, **k),
        lambda x, **k: torch.ones_like(x, dtype=torch.int32, **k),
    ],
)
def test_factories_from_tensors(make: Any) -> None:
    x = numbers(2, 3)
    same(make(x.cuda()), make(x))
    same(make(x, device="cuda"), make(x))
    assert make(x.cuda(), device="cpu").equal(make(x))


@pytest.mark.parametrize(
    "make",
    [
        lambda **k: torch.full((2, 2), 5, **k),
        lambda **k: torch.eye(3, 4, **k),
        lambda **k: torch.arange(2, 11, 3, **k),
        lambda **k: torch.linspace(0, 1, 5, **k),
        lambda **k: torch.logspace(0, 1, 5, **k),
        lambda **k: torch.tril_indices(3, 3, **k),
        lambda **k: torch.hann_window(5, **k),
        lambda **k: torch.fft.fftfreq(4, **k),
        lambda **k: torch.as_tensor([1.0, 2.0], **k),
        lambda **k: torch.asarray([1, 2], **k),
        lambda **k: torch.scalar_tensor(2.5, **k),
        lambda **k: torch.zeros(2, dtype=torch.complex64, **k),
    ],
)
def test_factories(make: Any) -> None:
    same(make(device="cuda"), make())


def test_device_context_and_default_device() -> None:
    with torch.device("cuda"):
        same(torch.ones(2), torch.ones(2, device="cpu"))
        same(torch.tensor([1]), torch.tensor([1], device="cpu"))
        assert nn.Linear(2, 2).weight.device == CUDA
    assert torch.ones(1).device.type == "cpu"
    torch.set_default_device("cuda")
    try:
        assert torch.get_default_device().type == "cuda"
        assert torch.zeros(2).is_cuda and torch.tensor(1.0).is_cuda and torch.randn(2).is_cuda
    finally:
        torch.set_default_device(None)
    assert torch.zeros(1).device.type == "cpu"


def test_default_tensor_type() -> None:
    torch.set_default_tensor_type("torch.cuda.DoubleTensor")
    try:
        assert torch.ones(1).is_cuda and torch.ones(1).dtype == torch.float64
        same(torch.Tensor([1, 2]), torch.tensor([1.0, 2.0], dtype=torch.float64, device="cpu"))
        assert torch.Tensor(2, 3).shape == (2, 3) and torch.Tensor(2, 3).is_cuda and torch.Tensor().numel() == 0
        assert {p.kind.name for p in inspect.signature(torch.Tensor.__new__).parameters.values()} == {"VAR_POSITIONAL", "VAR_KEYWORD"}
        assert not torch.FloatTensor([1]).is_cuda and not nn.Parameter(torch.ones(1, device="cpu")).is_cuda
    finally:
        torch.set_default_tensor_type(torch.FloatTensor)
    assert not torch.ones(1).is_cuda and torch.ones(1).dtype == torch.float32
    assert not torch.Tensor([1]).is_cuda and torch.Tensor(torch.Size((2,))).shape == (2,)


def test_printing() -> None:
    x = torch.tensor([[1.5, -2.0]])
    assert repr(x.cuda()) == "tensor([[ 1.5000, -2.0000]], device='cuda:0')"
    assert repr(x.cuda().requires_grad_()) == "tensor([[ 1.5000, -2.0000]], device='cuda:0', requires_grad=True)"
    assert repr(nn.Parameter(x.cuda())).startswith("Parameter containing:\ntensor([[ 1.5000, -2.0000]], device='cuda:0'")
    assert f"{x.cuda()[0, 0]:.2f}" == "1.50" and str(x.cuda().sum()) == "tensor(-0.5000, device='cuda:0')"
    assert repr(torch.empty(0, device="cuda")) == "tensor([], device='cuda:0')"


def test_views_share_memory() -> None:
    base = torch.zeros(2, 3, device="cuda")
    view = base.t()[1]
    view += 5
    assert base.cpu().tolist() == [[0, 5, 0], [0, 5, 0]]
    assert view.data_ptr() - base.data_ptr() == 4 and handle_of(view) == handle_of(base)


def test_pinning_is_remembered_and_copies() -> None:
    x = numbers(3)
    pinned = x.pin_memory()
    assert pinned.is_pinned() and not x.is_pinned() and pinned.pin_memory() is pinned
    pinned += 1
    assert x.equal(numbers(3))
    assert torch.empty(2, pin_memory=True).is_pinned() and torch.zeros_like(x, pin_memory=True).is_pinned()
    assert not torch.empty(2, pin_memory=False).is_pinned()
    assert x.untyped_storage().pin_memory().is_pinned()
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
        x.cuda().pin_memory()


# --- moving modules keeps what points to their parameters


@pytest.mark.parametrize("mode", [contextlib.nullcontext(), torch.device("cpu")], ids=["plain", "in a mode of __torch_function__"])
def test_module_to_keeps_parameters_and_ties(mode: contextlib.AbstractContextManager[Any]) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    weight, expected = model[0].weight, model[0].weight.detach().clone()
    watch = weakref.ref(weight)
    with mode:
        assert model.to("cuda") is model
    assert model[0].weight is weight and model[1].weight is weight and watch() is weight
    assert isinstance(weight, nn.Parameter) and weight.requires_grad and weight.is_leaf
    same(weight.detach(), expected)
    model.cpu()
    assert model[0].weight is weight and weight.device.type == "cpu"


def test_an_optimizer_made_before_the_move_trains_the_moved_parameters() -> None:
    torch.manual_seed(0)
    here, there = nn.Linear(4, 2), nn.Linear(4, 2)
    there.load_state_dict(here.state_dict())
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (here, there)]
    there.cuda()
    for model, optimizer in zip((here, there), optimizers, strict=True):
        x = numbers(3, 4).to(model.weight.device)
        model(x).square().mean().backward()
        optimizer.step()
    same(there.weight.detach(), here.weight.detach())


def _traced() -> torch.jit.ScriptModule:
    """As a script finds it: traced and saved on another machine, and loaded."""
    file = io.BytesIO()
    torch.jit.save(torch.jit.trace(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).eval(), numbers(1, 3)), file)
    file.seek(0)
    return torch.jit.load(file)


class _Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))


class _Script(torch.jit.ScriptModule):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(numbers(3, 2))

    @torch.jit.script_method
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


def _shared() -> torch.jit.ScriptModule:
    layer = nn.Linear(3, 3)
    return torch.jit.script(nn.Sequential(layer, nn.Tanh(), layer))


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(x[None])[0])


@pytest.mark.parametrize("make", [_traced, _shared, _Script, lambda: torch.jit.script(_Tied()), lambda: torch.jit.script(_Recurrent())])
def test_a_module_of_torchscript_moves_to_the_device_and_back(make: Any) -> None:
    model = make()
    expected = model(numbers(4, 3))
    parameters = list(model.parameters())
    expected.sum().backward()
    gradients = [p.grad.clone() for p in parameters]
    assert model.to("cuda") is model
    assert len(list(model.parameters())) == len(parameters)
    assert all(p.is_cuda for p in model.parameters()) and all(p.is_cuda for p in parameters)
    for p, gradient in zip(model.parameters(), gradients, strict=True):
        same(p.grad, gradient)
    same(model(numbers(4, 3).cuda()).detach(), expected.detach())
    assert not next(model.cpu().parameters()).is_cuda
    torch.testing.assert_close(model(numbers(4, 3)), expected)


def test_gradients_move_with_the_module() -> None:
    model = nn.Linear(2, 2)
    model(numbers(1, 2)).sum().backward()
    expected = model.weight.grad.clone()
    model.cuda()
    same(model.weight.grad, expected)
    model.half()
    same(model.weight.grad, expected.half())


def test_module_conversions_on_the_cpu_are_torchs_own() -> None:
    model = nn.Linear(2, 2)
    weight, data = model.weight, model.weight.data
    model.half()
    assert model.weight is weight and weight.dtype == torch.float16 and data.dtype == torch.float32


@pytest.mark.parametrize("source", ["cpu", "cuda"])
def test_data_setter_across_devices(source: str) -> None:
    target = "cuda" if source == "cpu" else "cpu"
    p = nn.Parameter(numbers(3).to(source))
    p.data = p.data.to(target)
    assert p.device.type == target and p.is_leaf and p.requires_grad and isinstance(p, nn.Parameter)
    (p * 2).sum().backward()
    assert p.grad is not None and p.grad.device.type == target and p.grad.tolist() == [2, 2, 2]


def test_data_setter_leaves_the_value_alone() -> None:
    p, value = nn.Parameter(torch.zeros(2)), torch.ones(2, device="cuda")
    p.data = value
    assert value.is_cuda and value.tolist() == [1, 1] and not value.requires_grad
    p.data.add_(1)
    assert value.tolist() == [2, 2]


def test_meta_to_empty_and_deepcopy() -> None:
    assert nn.Linear(2, 2, device="meta").to_empty(device="cuda").weight.is_cuda
    model = nn.Linear(2, 2).cuda()
    twin = copy.deepcopy(model)
    assert handle_of(twin.weight) != handle_of(model.weight)
    same(twin.weight.detach(), model.weight.detach().cpu())


def test_memory_goes_with_the_last_view() -> None:
    gc.collect()
    before = torch.cuda.memory_allocated()
    x = torch.zeros(1000, device="cuda")
    view = x[10:].detach()
    del x
    assert torch.cuda.memory_allocated() == before + 4000
    del view
    assert torch.cuda.memory_allocated() == before


@pytest.mark.parametrize("layer", [nn.LSTM(3, 4, 2, batch_first=True, bidirectional=True), nn.GRU(3, 4, batch_first=True), nn.RNN(3, 4)])
def test_recurrent_layers(layer: nn.Module) -> None:
    layer = copy.deepcopy(layer)
    x = numbers(2, 5, 3)
    expected = layer(x)[0]
    expected.sum().backward()
    gradients = [p.grad.clone() for p in layer.parameters() if p.grad is not None]
    layer.zero_grad()
    layer.cuda()
    result = layer(x.cuda())[0]
    result.sum().backward()
    same(result.detach(), expected.detach())
    for p, gradient in zip(layer.parameters(), gradients, strict=True):
        assert p.grad is not None
        same(p.grad, gradient)
    with torch.inference_mode():
        same(layer(x.cuda())[0], expected.detach())


@pytest.mark.parametrize("when", ["before", "after"])
def test_lazy_modules(when: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d())
    x = numbers(4, 5)
    if when == "before":
        model.to("cuda")
    assert model(x.to("cuda" if when == "before" else "cpu")).shape == (4, 3)
    model.cuda()
    weight = model[0].weight
    assert weight.shape == (3, 5) and weight.is_cuda and type(weight) is nn.Parameter
    with torch.no_grad():
        same(model[0](x.cuda()), x @ weight.cpu().t() + model[0].bias.cpu())


def test_packed_sequences() -> None:
    from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

    layer = nn.LSTM(3, 4, 2, batch_first=True, bidirectional=True)
    x = numbers(3, 6, 3)

    def run(inputs: torch.Tensor) -> torch.Tensor:
        packed = pack_padded_sequence(inputs, torch.tensor([6, 4, 2]), batch_first=True)
        return pad_packed_sequence(layer(packed)[0], batch_first=True)[0].detach()

    expected = run(x)
    layer.cuda()
    same(run(x.cuda()), expected)


def test_cells() -> None:
    for cell in (nn.LSTMCell(3, 4), nn.GRUCell(3, 4)):
        x = numbers(2, 3)
        expected = cell(x)
        result = cell.cuda()(x.cuda())
        for ours, theirs in zip(
            result if isinstance(result, tuple) else (result,), expected if isinstance(expected, tuple) else (expected,), strict=True
        ):
            same(ours.detach(), theirs.detach())


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_data_of_a_lazy_conjugate_and_of_a_plain_tensor_are_exchanged(device: str) -> None:
    plain = (torch.arange(3.0) + 1j).to(device)
    lazy = plain.conj()
    lazy.data = plain - 1
    assert lazy.tolist() == [-1 + 1j, 1j, 1 + 1j] and not lazy.is_conj()
    plain.data = torch.ones(2, dtype=torch.complex64, device=device).mul(1j).conj()
    assert plain.tolist() == [-1j, -1j] and (plain * 2).tolist() == [-2j, -2j]


def test_hooks_of_a_parameter_move_with_it() -> None:
    heard: list[object] = []
    layer = nn.Linear(3, 2)
    layer.weight.register_hook(lambda gradient: gradient * 2)
    layer.bias.register_post_accumulate_grad_hook(heard.append)
    layer.to("cuda")
    layer(torch.ones(4, 3, device="cuda")).sum().backward()
    assert layer.weight.grad is not None and layer.weight.grad.tolist() == [[8.0] * 3] * 2 and heard == [layer.bias]
    once = nn.Parameter(torch.ones(2))
    once.register_hook(lambda gradient: gradient * 3).remove()
    once.data = once.data.cuda()
    once.register_hook(lambda gradient: gradient * 5)
    once.sum().backward()
    assert once.grad is not None and once.grad.tolist() == [5.0, 5.0]


def test_what_a_graph_made_keeps_its_place_in_it_when_its_data_moves() -> None:
    x = torch.ones(3, requires_grad=True)
    y = x * 2
    y.data = y.data.cuda()
    y.data = y.data.cpu()
    (y * y).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [8.0] * 3


def test_gradients_of_a_graph_come_to_a_parameter_that_has_moved_since() -> None:
    """As with modules that are offloaded to the CPU between their forward and backward passes."""
    heard: list[object] = []
    weight = nn.Parameter(torch.ones(3))
    weight.register_post_accumulate_grad_hook(heard.append)
    weight.data = weight.data.cuda()
    loss = (weight * torch.arange(3.0, device="cuda")).sum()
    weight.data = weight.data.cpu()
    loss.backward()
    (weight * 2).sum().backward()
    assert weight.grad is not None and weight.grad.device.type == "cpu" and weight.grad.tolist() == [2.0, 3.0, 4.0]
    assert heard == [weight, weight]


def test_resizing_to_another_memory_format_moves_the_strides() -> None:
    assert torch.zeros(1, 2, 3, 3, device="cuda").resize_(1, 2, 3, 3, memory_format=torch.channels_last).stride() == (18, 1, 6, 2)
