"""Paths that torch or its libraries would take on a local GPU and that do not exist here, switched off, refused, or composed of ordinary
operators: recurrent cells, for which torch picks a fused CUDA-only operator on any device but the CPU.

Registered above autograd, so gradients are those of the parts.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, NoReturn

import torch
from torch import Tensor

from wooly.device import collectives, compiled
from wooly.device.backend import BACKEND, is_our_device, library
from wooly.device.face.api import Face, put, put_all, wrapping
from wooly.device.face.devices import count, current
from wooly.device.face.generators import DeviceGenerator
from wooly.device.graphs import Graph
from wooly.device.imports import when_imported

__all__ = ["patch"]


def patch(face: Face) -> None:
    """Set the switches."""
    _libraries()
    _compile()
    _graphs(face)
    _module()
    _plan_cache()
    _overrides()


def _module() -> None:
    original = torch.get_device_module

    @wrapping(original)
    def get_device_module(device: Any = None) -> Any:
        if device is None or is_our_device(torch.device(device)):
            return torch.cuda
        return original(device)

    put(torch, "get_device_module", get_device_module)


def _libraries() -> None:
    put(torch.backends.cuda, "is_built", lambda: True)
    cudnn: Any = torch.backends.cudnn
    put(cudnn, "is_available", lambda: False)
    # A CUDA build would flatten the weights of recurrent layers by a cuDNN function.
    put(cudnn, "is_acceptable", lambda tensor: False)

    import torch.utils._triton as triton

    # What torch itself would generate with Triton (Inductor) is for a local GPU; a script's own Triton kernels run (wooly.kernels.triton).
    put(triton, "has_triton_package", lambda: False)
    for name in ("has_triton", "has_triton_tma"):
        clear = getattr(getattr(triton, name, None), "cache_clear", None)
        if clear is not None:
            clear()

    collectives.patch(put)


def _compile() -> None:
    """Let torch.compile use our compiler in place of torch's own, which generate code for a local GPU or record its launches."""
    original = torch.compile

    @wrapping(original)
    def compile(model: Callable[..., Any] | None = None, **kwargs: Any) -> Any:
        if kwargs.get("backend") in (None, "inductor", "cudagraphs", BACKEND):
            kwargs["backend"] = compiled.backend
        _prepare_dynamo()
        return original(model, **kwargs)

    put(torch, "compile", compile)
    when_imported("torch._inductor.compile_fx", _inductor)


def _inductor(module: Any) -> None:
    """Let Inductor called past torch.compile use our compiler for graphs on the device."""
    original = module.compile_fx

    @wrapping(original)
    def compile_fx(model_: Any, example_inputs_: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        if not any(isinstance(x, Tensor) and is_our_device(x.device) for x in example_inputs_):
            return original(model_, example_inputs_, *args, **kwargs)
        if not module.graph_returns_tuple(model_):
            return module.make_graph_return_tuple(model_, example_inputs_, compiled.backend)
        return compiled.backend(model_, example_inputs_)

    module.compile_fx = compile_fx


@functools.cache
def _prepare_dynamo() -> None:
    """Let dynamo compile none of the Python that kernels are made of, which runs inside of what it compiles, and leave calls with our
    generators out of graphs: it does so with torch's own class only."""
    from torch._dynamo import trace_rules  # takes a second
    from torch._dynamo.variables import script_object

    for package in ("wooly", "wis", "bus_schemas"):
        trace_rules.add(package)
    classes: list[Any] = [found for found in vars(script_object).values() if isinstance(found, type)]
    for variable in classes:
        if "is_matching_cls" in vars(variable):  # the class has another name since torch 2.14
            put(variable, "is_matching_cls", staticmethod(partial(_is_traced, variable.is_matching_cls)))
    if count() > 1:
        _compile_for_each_device()


def _is_traced(original: Callable[[type], bool], user_cls: type) -> bool:
    """Whether dynamo takes objects of this class into graphs."""
    return original(user_cls) and not issubclass(user_cls, DeviceGenerator)


def _compile_for_each_device() -> None:
    """Let code that dynamo has compiled be used with the current device that it was compiled with, which it holds as a constant."""
    from torch._dynamo.callback import callback_handler
    from torch._dynamo.guards import GuardBuilder
    from torch._subclasses.fake_tensor import FakeTensorMode

    original: Any = GuardBuilder.DEFAULT_DEVICE

    @wrapping(original)
    def default_device(self: Any, guard: Any) -> None:
        original(self, guard)
        then = current()
        found = (lambda _: current() == then, [f"the current device is cuda:{then}"])
        try:
            self.get_guard_manager(guard).add_lambda_guard(*found, None)
        except TypeError:  # an older torch, which takes no stack of the user's
            self.get_guard_manager(guard).add_lambda_guard(*found)

    put(GuardBuilder, "DEFAULT_DEVICE", default_device)
    callback_handler.register_start_callback(lambda _: FakeTensorMode.cache_clear())  # in which "cuda" stands for one device


def _plan_cache() -> None:
    """torch.backends.cuda.cufft_plan_cache: plans are the node's business, so it is empty and takes any size."""
    cache: Any = torch.backends.cuda.cuFFTPlanCache
    put(cache, "size", property(lambda self: 0))
    put(cache, "max_size", 4096)
    put(cache, "clear", lambda self: None)


_OURS: Final = {"CUDA": "PrivateUse1", "AutogradCUDA": "AutogradPrivateUse1", "AutocastCUDA": "AutocastPrivateUse1"}


def _overrides() -> None:
    """Let a script's own kernel of one of torch's operators, registered for CUDA, be called for tensors of the device."""
    original: Any = torch.library.Library.impl  # untyped in torch

    @wrapping(original)
    def impl(self: Any, op_name: Any, fn: Any, dispatch_key: str = "", **how: Any) -> None:
        original(self, op_name, fn, dispatch_key, **how)
        key = _OURS.get(dispatch_key or self.dispatch_key)
        if key is not None and self.ns == "aten" and not str(getattr(fn, "__module__", "")).startswith("torch."):
            original(self, op_name, fn, key, **how)

    put(torch.library.Library, "impl", impl)


class CUDAGraph(Graph):
    """torch.cuda.CUDAGraph. Its memory pool is its own; ``pool`` and ``capture_error_mode`` mean nothing here."""

    def __init__(self, keep_graph: bool = False) -> None:
        super().__init__()
        self._pool = _graph_pool_handle()

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global", check_input_liveness: bool = False) -> None:
        self._pool = pool or self._pool
        self.begin()

    def capture_end(self) -> None:
        self.end()

    def pool(self) -> tuple[int, int]:
        return self._pool

    def instantiate(self) -> None:
        """Nothing: what was captured is ready."""

    def register_generator_state(self, generator: Any) -> None:
        """Nothing: numbers of other generators than the default one are the same in each replay."""

    def enable_debug_mode(self) -> None:
        """Nothing."""

    def debug_dump(self, debug_path: str) -> None:
        raise NotImplementedError("a graph of the remote device cannot be dumped")


_pools: Final = itertools.count(1)


def _graph_pool_handle() -> tuple[int, int]:
    return (0, next(_pools))


class MemPool:
    """A memory pool by name: the node manages the device's memory, whatever pool it is asked for."""

    allocator: Any = None

    def __init__(self, allocator: Any = None, *args: Any, **kwargs: Any) -> None:
        if allocator is not None:
            raise NotImplementedError("an allocator of your own is not available on a remote device, whose memory the node manages")
        self.id = _graph_pool_handle()

    def use_count(self) -> int:
        return 1

    def snapshot(self, *args: Any) -> list[Any]:
        return []


MemPool.__module__ = "torch.cuda"


@contextmanager
def _use_mem_pool(pool: MemPool, device: Any = None) -> Iterator[None]:
    """As without a pool."""
    yield


def _graphs(face: Face) -> None:
    def refuse(what: str) -> Callable[..., NoReturn]:
        def refused(*args: Any, **kwargs: Any) -> NoReturn:
            raise NotImplementedError(f"torch.cuda.{what} is not available on a remote device, whose memory the node manages")

        return refused

    for name, value in {"MemPool": MemPool, "use_mem_pool": _use_mem_pool}.items():
        for owner in (torch.cuda, torch.cuda.memory):
            if hasattr(owner, name):
                put(owner, name, value)
    for name in ("GreenContext", "CUDAPluggableAllocator"):
        shown = type(name, (), {"__init__": refuse(name), "__module__": "torch.cuda"})
        for owner in (torch.cuda, torch.cuda.memory):
            if hasattr(owner, name):
                put(owner, name, shown)
    if hasattr(torch.cuda, "change_current_allocator"):
        put(torch.cuda, "change_current_allocator", refuse("change_current_allocator"))
    values = {"CUDAGraph": CUDAGraph, "graph_pool_handle": _graph_pool_handle, "is_current_stream_capturing": lambda: face.api.capturing}
    put_all((torch.cuda, torch.cuda.graphs), values)


_registrations: Final[list[Any]] = []  # registrations last as long as these objects


def _biased(gates: Tensor, bias: Tensor | None) -> Tensor:
    return gates if bias is None else gates + bias


def lstm_cell(
    input_gates: Tensor, hidden_gates: Tensor, cx: Tensor, input_bias: Tensor | None = None, hidden_bias: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Gates (batch, 4 x hidden) in the order input, forget, cell, output; cx (batch, hidden). Returns hy, cy and the gates."""
    gates = _biased(input_gates, input_bias) + _biased(hidden_gates, hidden_bias)
    take, forget, cell, output = gates.chunk(4, 1)
    cy = forget.sigmoid() * cx + take.sigmoid() * cell.tanh()
    return output.sigmoid() * cy.tanh(), cy, gates


def gru_cell(
    input_gates: Tensor, hidden_gates: Tensor, hx: Tensor, input_bias: Tensor | None = None, hidden_bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Gates (batch, 3 x hidden) in the order reset, update, new; hx (batch, hidden). Returns hy and the gates."""
    from_input = _biased(input_gates, input_bias)
    from_hidden = _biased(hidden_gates, hidden_bias)
    input_reset, input_update, input_new = from_input.chunk(3, 1)
    hidden_reset, hidden_update, hidden_new = from_hidden.chunk(3, 1)
    update = (hidden_update + input_update).sigmoid()
    new = (input_new + hidden_new * (hidden_reset + input_reset).sigmoid()).tanh()
    return (hx - new) * update + new, from_input


def patch_recurrent(face: Face) -> None:
    """Register the cells."""
    aten = library("aten", "IMPL")
    _registrations.append(aten)
    for name, function in (("_thnn_fused_lstm_cell", lstm_cell), ("_thnn_fused_gru_cell", gru_cell)):
        for key in ("AutogradPrivateUse1", "PrivateUse1"):
            aten.impl(name, function, key)
