"""``torch.compile(model)``: a graph of aten operations becomes one program, and a call one message.

The graph is recorded once for each form of its arguments (types, shapes, strides, which of them share a buffer, and the values of numbers).
A call names other buffers: those of its arguments, and new ones for its results. What cannot be recorded so is executed as it is.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

import torch
from torch import Tensor

from wooly.device.backend import DEVICE, handle_of, make_empty, offset_of, raw_device, set_storage, storage_of
from wooly.device.graphs import Captured, Drawn, Part, end_capture
from wooly.device.programs import TooLarge, wire
from wooly.device.random import default
from wooly.device.recorder import RECORDER
from wooly.device.tensors import HEAP

__all__ = ["backend"]

_PLAIN: Final = (bool, int, float, complex, str, type(None))
FORMS_MAX: Final = 64
"""Forms of arguments that are kept of one graph; it is executed as it is with any other."""


def backend(graph: torch.fx.GraphModule, inputs: Sequence[Any], **how: Any) -> Callable[..., Any]:
    """What torch.compile calls for each graph that it has found. ``how``: mode and options, which tell Inductor how to generate code."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch import config
    from torch._functorch._aot_autograd.utils import make_boxed_func

    def compiled(part: torch.fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        made: Callable[..., Any] = make_boxed_func(part if _rewinds(part) or _calls_python(part) else _Compiled(part))
        return made

    try:
        # Checkpointed code would draw of generators of its own, and other numbers than the code as it is.
        with config.patch(graphsafe_rng_functionalization=False):
            result: Callable[..., Any] = aot_autograd(fw_compiler=compiled, bw_compiler=compiled)(graph, inputs)
    except Exception as error:  # whatever torch finds: the graph is right as it is
        _warn(error)
        return graph.forward
    return result


def _rewinds(graph: torch.fx.GraphModule) -> bool:
    """Does it keep states of the generator, or draw from one that was kept? A checkpoint does, to draw the same numbers twice."""
    from torch._prims.rng_prims import run_and_save_rng_state, run_with_rng_state

    return any(node.target in (run_and_save_rng_state, run_with_rng_state) for node in graph.graph.nodes)


_TORCHS: Final = frozenset({
    "aten", "prim", "prims", "quantized", "quantized_decomposed", "rngprims", "c10d", "_c10d_functional", "_c10d_functional_autograd",
    "higher_order", "inductor", "symm_mem",
})  # fmt: skip
"""Namespaces of operators whose Python code does the same in each call."""
_WHERE: Final = ("CUDA", "CPU", "CompositeExplicitAutograd")


def _calls_python(graph: torch.fx.GraphModule) -> bool:
    """Does it call an operator that the script, or a library, wrote in Python? What that does may differ from call to call."""
    from torch._library.custom_ops import OPDEFS

    for op in {node.target for node in graph.graph.nodes if isinstance(node.target, torch._ops.OpOverload)}:
        space, name = op.namespace, op._schema.name.partition("::")[2]
        overload = f"{name}.{op._overloadname}" if op._overloadname != "default" else name
        if space not in _TORCHS and (
            f"{space}::{name}" in OPDEFS or any(f"{space}/{overload}/{where}" in torch.library._impls for where in _WHERE)
        ):
            return True
    return False


def _warn(reason: Exception) -> None:
    warnings.warn(f"torch.compile executes a graph as it is: {reason}", stacklevel=3)


@dataclass(frozen=True, slots=True)
class _Result:
    """A tensor that a call returns: a view of the buffer that stands for ``handle``."""

    handle: int
    dtype: torch.dtype
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    #: its memory is read as conjugate, as negative
    conj: bool
    neg: bool


@dataclass(frozen=True, slots=True)
class _Form:
    """A recorded graph. ``arguments``: the handle of each tensor among its arguments; ``made``: bytes of each buffer that a call makes
    anew, and what it holds before the first record: zeros (True), these bytes, or nothing (False: a record makes it). ``results``: what a
    call returns, tensors as _Result."""

    part: Part
    drawn: Drawn
    arguments: tuple[int | None, ...]
    made: dict[int, tuple[int, bool | memoryview]]
    results: tuple[Any, ...]
    nested: bool


class _Compiled:
    def __init__(self, graph: torch.fx.GraphModule) -> None:
        self._graph = graph
        held = (attrgetter(str(node.target))(graph) for node in graph.graph.nodes if node.op == "get_attr")
        self._here = [value for value in held if isinstance(value, Tensor) and value.device.type == "cpu"]
        self._forms: dict[tuple[Any, ...], _Form | None] = {}

    def __call__(self, *args: Any) -> Any:
        key = _key(args)
        if key is None or RECORDER.capturing:
            return self._graph(*args)
        key += tuple(0 if x.is_inference() else x._version for x in self._here)  # tensors of the CPU that a script may write
        if key not in self._forms:
            if len(self._forms) >= FORMS_MAX:
                return self._graph(*args)
            self._forms[key] = _recorded(self._graph, args)
        form = self._forms[key]
        return self._graph(*args) if form is None else _called(form, args)


def _key(args: Sequence[Any]) -> tuple[Any, ...] | None:
    """The form of arguments; None: no program stands for such."""
    found: list[Any] = []
    handles: list[int] = []
    for arg in args:
        if isinstance(arg, _PLAIN):
            found.append((type(arg), repr(arg)))  # -0.0 is not 0.0 here
        elif type(arg) not in (Tensor, torch.nn.Parameter) or raw_device(arg) != DEVICE() or arg.layout is not torch.strided:
            return None
        else:
            handle = handle_of(arg)
            place = handles.index(handle) if handle in handles else len(handles)
            handles.append(handle)
            found.append((arg.dtype, tuple(arg.shape), tuple(arg.stride()), offset_of(arg), place, arg.is_conj(), arg.is_neg()))
    return tuple(found)


def _recorded(graph: torch.fx.GraphModule, args: Sequence[Any]) -> _Form | None:
    """Record the graph without executing it; None when that cannot be. What it makes on the CPU and sends is the same in each call, unless
    it is drawn there."""
    uploads: dict[int, memoryview] = {}
    RECORDER.begin_capture(uploads)
    stream, drawn_here = default(), torch.get_rng_state()
    begun = Drawn(stream.seed, stream.offset)
    results: tuple[Any, ...] = ()
    nested = False
    try:
        with torch.no_grad():
            returned = graph(*args)
        nested = isinstance(returned, tuple | list)
        results = tuple(_described(value) for value in (returned if nested else (returned,)))
        del returned
    except torch.AcceleratorError as error:  # a value is read
        _warn(error)
    except BaseException:
        end_capture(stream, begun).discard()
        raise
    captured = end_capture(stream, begun)
    same = torch.equal(drawn_here, torch.get_rng_state())
    torch.set_rng_state(drawn_here)
    form = _form(captured, uploads, results, nested, args) if captured.valid and same else None
    if form is None:
        captured.discard()
    else:
        HEAP.freed.extend(captured.died - captured.sizes.keys() - captured.allocs.keys())  # of others, that died meanwhile
    return form


def _form(captured: Captured, uploads: dict[int, memoryview], results: tuple[Any, ...], nested: bool, args: Sequence[Any]) -> _Form | None:
    outlives = {result.handle for result in results if isinstance(result, _Result)}
    made: dict[int, tuple[int, bool | memoryview]] = {h: (nbytes, False) for h, nbytes in captured.sizes.items() if h in outlives}
    made |= {handle: (nbytes, uploads.get(handle, True)) for handle, nbytes in captured.allocs.items()}
    arguments = tuple(handle_of(arg) if isinstance(arg, Tensor) else None for arg in args)
    kept = (captured.sizes.keys() | captured.allocs.keys()) - captured.died
    if kept or outlives - {*made, *arguments}:  # something else than the results is kept, or returned
        return None
    wired = wire(captured.records, captured.died - outlives)
    try:
        part = Part(captured.records, wired, RECORDER.programs.get(wired))
    except TooLarge:
        return None
    return None if part.draws_elsewhere(captured.drawn) else _Form(part, captured.drawn, arguments, made, results, nested)


def _described(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    shape, strides = tuple(value.shape), tuple(value.stride())
    return _Result(handle_of(value), value.dtype, offset_of(value), shape, strides, value.is_conj(), value.is_neg())


def _called(form: _Form, args: Sequence[Any]) -> Any:
    storages: dict[int, Any] = {}
    handles: dict[int, int] = {}
    for handle, arg in zip(form.arguments, args, strict=True):
        if handle is not None:
            handles[handle], storages[handle] = handle_of(arg), storage_of(arg)
    for handle, (nbytes, content) in form.made.items():
        base, handles[handle] = HEAP.new_tensor(torch.uint8, (nbytes,), None, nbytes)
        storages[handle] = storage_of(base)
        if content is True:
            RECORDER.alloc(handles[handle], nbytes)
        elif content is not False:
            RECORDER.upload(handles[handle], content)
    seed, begun = default().take(form.drawn.counters)
    form.part.send(seed, begun, form.drawn, handles)
    results = [_tensor(value, storages) if isinstance(value, _Result) else value for value in form.results]
    return tuple(results) if form.nested else results[0]


def _tensor(result: _Result, storages: dict[int, Any]) -> Tensor:
    made = set_storage(make_empty((0,), result.dtype), storages[result.handle], result.offset, result.shape, result.strides)
    made = made.conj() if result.conj else made
    return torch._neg_view(made) if result.neg else made
