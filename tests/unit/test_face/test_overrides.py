"""Subclasses with ``__torch_function__`` and function modes see the functions under which scripts know them, replaced ones too."""

from __future__ import annotations

import pickle
import types
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode, get_overridable_functions

from tests.support.device import same
from wooly.device.face import factories


class Recorder(torch.Tensor):
    """Answers every function with its name, and keeps it."""

    seen: list[Any]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen = [func]
        return "overridden"


class Watch(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


def _replaced() -> list[Any]:
    functions = {f for owned in get_overridable_functions().values() for f in owned if isinstance(f, types.FunctionType)}
    return sorted((f for f in functions if "/wooly/device/" in f.__code__.co_filename), key=lambda f: str(f.__qualname__))


def test_a_subclass_receives_the_function_that_the_script_called() -> None:
    made = torch.ones(2).as_subclass(Recorder)
    replaced = _replaced()
    assert {torch.empty_like, torch.zeros_like, torch.Tensor.to, torch.Tensor.cuda, torch.Tensor.numpy, torch.Tensor.type} <= set(replaced)
    for function in replaced:
        assert function(made) == "overridden", function
        assert Recorder.seen == [function]


@pytest.mark.parametrize("name", ["device", "is_cuda", "data"])
def test_a_subclass_receives_the_getter_of_a_property(name: str) -> None:
    assert getattr(torch.ones(2).as_subclass(Recorder), name) == "overridden"
    assert Recorder.seen == [getattr(torch.Tensor, name).__get__]


def test_a_subclass_receives_the_setter_of_data() -> None:
    torch.ones(2).as_subclass(Recorder).data = torch.zeros(2)
    assert Recorder.seen == [torch.Tensor.data.__set__]


def test_a_table_of_functions_finds_those_that_the_device_replaces() -> None:
    """As tensordict and the numpy-like protocols of many libraries: a dictionary from functions of torch to replacements."""
    table = {torch.empty_like: lambda x, **_: "empty", torch.Tensor.to: lambda x, where: f"to {where}"}

    class Container:
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return table[func](*args, **(kwargs or {}))

    assert torch.empty_like(Container(), device="cuda") == "empty"  # type: ignore[call-overload]  # what the protocol is for
    assert torch.Tensor.to(Container(), "cuda") == "to cuda"  # type: ignore[arg-type]  # as above


@pytest.mark.parametrize("name", [*factories.PINNING_FUNCTIONS, *factories.RANDOM_FUNCTIONS])
def test_a_mode_receives_the_factory(name: str) -> None:
    function = getattr(torch, name)
    like = torch.full((2,), 0.5, device="cuda")
    arguments: dict[str, tuple[Any, ...]] = {
        "empty_permuted": ((2, 3), (0, 1)),
        "empty_strided": ((2,), (1,)),
        "full": ((2,), 1.0),
        "full_like": (like, 1.0),
        "linspace": (0, 1, 3),
        "logspace": (0, 1, 3),
        "multinomial": (like, 1),
        "normal": (like, like),
        "randint": (3, (2,)),
        "randint_like": (like, 3),
        "range": (0, 3),
        "tensor": ([1.0],),
        "tril_indices": (2, 2),
        "triu_indices": (2, 2),
    }
    with Watch() as watch:
        function(*arguments.get(name, (like,) if name.endswith("_like") or name in ("bernoulli", "poisson") else (2,)))
    assert watch.seen[0] is function


def test_a_device_context_reaches_factories_beneath_other_modes() -> None:
    with torch.device("cuda"), Watch() as watch:
        same(torch.zeros(2), torch.zeros(2, device="cpu"))
        assert torch.rand(2).device.type == "cuda"
    assert watch.seen[0] is torch.zeros


def test_a_subclass_that_keeps_the_default_survives_moves() -> None:
    class Plain(torch.Tensor):
        pass

    moved = torch.ones(2).as_subclass(Plain).to("cuda")
    assert type(moved) is Plain and moved.device == torch.device("cuda:0") and moved.is_cuda
    assert type(torch.zeros_like(moved)) is Plain and type(moved.data) is Plain
    assert moved.type() == "torch.cuda.FloatTensor" and not moved.is_pinned()


def test_a_traced_graph_names_the_functions_of_the_script() -> None:
    graph = torch.fx.symbolic_trace(lambda x: torch.zeros_like(x) + x.to("cuda")).graph
    assert [node.target for node in graph.nodes][1] is torch.zeros_like


@pytest.mark.parametrize("function", [torch.zeros_like, torch.rand, torch.Tensor.to, torch.Tensor.normal_])
def test_replaced_functions_are_pickled_by_name(function: Any) -> None:
    assert pickle.loads(pickle.dumps(function)) is function
