"""Recording kernels, one per operator overload, generated from its schema.

A kernel describes its arguments as one tuple (the key), looks up the plan for that key, makes the output tensors and appends a
record: a few microseconds. Everything decided from the key (shapes, promotion, overlap, devices, lowering) is decided once, in
calls.py. Python source is generated because a loop over arguments, testing each one's type, costs as much again as all of that.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from types import CodeType, FunctionType
from typing import Any, Final

import torch

from wooly.device import numbers, transfer
from wooly.device.backend import (
    BACKEND,
    DEVICE,
    HANDLE_SHIFT,
    HAS_SWAP,
    handle_of,
    has_kernel,
    index_of_handle,
    is_our_device,
    is_tracing,
    make_empty,
    make_storage,
    untraced,
)
from wooly.device.calls import CallPlan, carry_out, first
from wooly.device.checks import several_devices
from wooly.device.fallback import make_elsewhere, split
from wooly.device.families import Families
from wooly.device.lowering import LOWERINGS, Entry
from wooly.device.recorder import RECORDER, RECORDERS, RECORDS_MAX
from wooly.device.schema import Arg, Kind, OpInfo, functional_of
from wooly.device.tensors import FORK_MESSAGE, HEAP, HEAPS
from wooly.errors import ForkError

__all__ = ["make_kernel", "forget_plans", "serve_several", "after_fork"]

PLANS_MAX: Final = 8192
"""Plans kept for one operator; a model whose shapes never repeat must not grow without end."""

_all_plans: Final[list[dict[Any, Any]]] = []


def forget_plans() -> None:
    """Drop every plan: something that plans depend on (the default dtype) has changed."""
    for plans in _all_plans:
        plans.clear()


def _describe(value: Any, handles: list[int], numbers: list[Any]) -> Any:
    """The key of a tensor argument that is not a plain Tensor: None, a wrapped number, a subclass."""
    if value is None:
        return None
    if isinstance(value, torch.Tensor):
        handles.append(handle_of(value))
        return (value.dtype, value.size(), value.stride(), value.storage_offset(), value.is_cpu, value.is_conj(), value.is_neg())
    numbers.append(int(value) if type(value) is bool else value)
    return type(value)


def _several(plan: tuple[Any, ...], handles: list[int], numbers: list[Any], at: int = 0) -> Any:
    """The rest of a functional call with several outputs, or with one that is not contiguous, on device ``at``."""
    stencil, _, outs, build = plan
    made = []
    for out in outs:
        tensor, handle = HEAPS[at].new_tensor(out.dtype, out.shape, out.strides, out.nbytes)
        made.append(tensor)
        handles.append(handle)
    RECORDERS[at].push((stencil, handles, numbers))
    return build(made) if build is not None else None


def _on_other(plan: tuple[Any, ...], handles: list[int], numbers: list[Any], at: int) -> Any:
    """The rest of a functional call on another device than the first."""
    stencil, dtype, shape, nbytes = plan
    if dtype is None:
        return _several(plan, handles, numbers, at)
    result, handle = HEAPS[at].new_tensor(dtype, shape, None, nbytes)
    RECORDERS[at].push((stencil, [*handles, handle], numbers))
    return result


def _where(found: set[int], device: Any = None) -> int:
    """The number of the device of a call: that of its tensors, else the one that ``device`` names. Raises RuntimeError for several."""
    if len(found) > 1:
        raise several_devices(found)
    return found.pop() if found else transfer.check_device(device)


_shared: Final[dict[str, Any]] = {
    "Tensor": torch.Tensor,
    "Parameter": torch.nn.Parameter,
    "describe": _describe,
    "several": _several,
    "new_handle": HEAP.new_handle,
    "new_tensor": HEAP.new_tensor,
    "make_empty": make_empty,
    "make_storage": make_storage,
    "Buf": HEAP.Buf,
    "on_other": _on_other,
    "where": _where,
    "index_of_handle": index_of_handle,
    "check_device": transfer.check_device,
    "is_our_device": is_our_device,
    "moved_beside": transfer.moved_beside,
    "recorders": RECORDERS,
    "pending": RECORDER.pending,
    "append": RECORDER.pending.append,
    "flush": RECORDER.full,
}
"""Globals of every generated kernel, before its own."""


def _refuse(record: Any) -> None:
    raise ForkError(FORK_MESSAGE)


def after_fork() -> None:
    """In a forked child: kernels that make no new buffer must refuse too."""
    for names in _namespaces:
        names["append"] = _refuse


_namespaces: Final[list[dict[str, Any]]] = []
"""The globals of every kernel."""
_kernels: Final[list[FunctionType]] = []
_serves_several = False


def serve_several() -> None:
    """From now on tensors of several devices of ours may be met: kernels are generated again, with a look at where their arguments are."""
    global _serves_several
    if not _serves_several:
        _serves_several = True
        for kernel in _kernels:
            kernel.__code__, kernel.__defaults__, kernel.__kwdefaults__ = _stub.__code__, None, None


def make_kernel(info: OpInfo) -> Callable[..., Any]:
    """The kernel of one overload. It is generated when it is first called: a program uses some hundred of the two thousand."""

    def generate() -> Callable[..., Any]:
        name = functional_of(info) if info.mutates and info.name not in LOWERINGS else info.name
        source, constants = _source(info, LOWERINGS.get(name) if name is not None else None)
        names.update(constants)
        names["check"] = lambda *values: numbers.check(info, values)
        kernel.__code__ = _compiled(source)
        kernel.__defaults__ = tuple(arg.default for arg in info.args if arg.has_default and not arg.kwarg_only)
        kernel.__kwdefaults__ = {arg.name: arg.default for arg in info.args if arg.has_default and arg.kwarg_only}
        return kernel

    plans: dict[Any, Any] = {}
    _all_plans.append(plans)
    names = {**_shared, "generate": generate, "get": plans.get}
    names["our_device"] = DEVICE()
    _namespaces.append(names)
    kernel = FunctionType(_stub.__code__, names, info.name)
    _kernels.append(kernel)
    names["apart"] = lambda device, values: make_elsewhere(info, values, torch.device(BACKEND, device))
    names["miss"] = _miss(info, plans, kernel)
    return kernel


def _stub(*args: Any, **kwargs: Any) -> Any:
    """What every kernel is until its first call (then its code is replaced; ``generate`` is one of its globals)."""
    return generate()(*args, **kwargs)  # type: ignore[name-defined]  # noqa: F821  # in the globals of each kernel


_codes: Final[dict[str, CodeType]] = {}


def _compiled(source: str) -> CodeType:
    """The code of the function that ``source`` defines; kernels of like signature share it."""
    code = _codes.get(source)
    if code is None:
        module = compile(source, f"{os.path.abspath(__file__)}: generated", "exec")  # in our folder, where dynamo compiles nothing
        code = _codes[source] = next(c for c in module.co_consts if isinstance(c, CodeType))
    return code


def _miss(info: OpInfo, plans: dict[Any, Any], kernel: Callable[..., Any]) -> Callable[[Any, Sequence[Any]], Any]:
    """What a kernel does with a key it has not met; a key that holds traced sizes never was."""

    families = Families(info)
    _all_plans.append(families.families)

    def traced(values: Sequence[Any]) -> Any:
        args, kwargs = split(info, values)
        recorded = _RECORDED_INSIDE.get(info.name)
        if recorded is not None and not torch._C._dispatch_tls_is_dispatch_key_excluded("Tracer"):
            return recorded(*args)
        with untraced():
            return kernel(*args, **kwargs)

    def miss(key: Any, values: Sequence[Any]) -> Any:
        if is_tracing():
            return traced(values)
        plan = families.plan(key, values)
        if len(plans) >= PLANS_MAX:
            plans.clear()
        plans[key] = _quick(info, plan, values)
        return carry_out(info, plan, values)

    return miss


def _convolution(*args: Any) -> Any:
    cudnn: Any = torch.backends.cudnn
    return torch.ops.aten._convolution.default(*args, cudnn.benchmark, cudnn.deterministic, cudnn.enabled, cudnn.allow_tf32)


_RECORDED_INSIDE: Final[dict[str, Callable[..., Any]]] = {"aten::convolution": _convolution}
"""Operations that the tracer does not record: it waits for another that torch's own kernels of them call."""


def _quick(info: OpInfo, plan: CallPlan, values: Sequence[Any]) -> tuple[Any, ...]:
    """What the generated code wants of a plan: (stencil, ...) where it can do it all itself, else (None, function of the values)."""
    stencil = plan.stencil
    cpu = any(t.is_cpu for v in values for t in (v if isinstance(v, list | tuple) else [v]) if isinstance(t, torch.Tensor))
    if stencil is not None and not stencil.rng_counters and not cpu:
        if info.mutates and not plan.outs:
            return (stencil, None)
        if not info.mutates and plan.build is first and plan.outs[0].strides is None:
            out = plan.outs[0]
            return (stencil, out.dtype, out.shape, out.nbytes)
        if not info.mutates:
            return (stencil, None, plan.outs, plan.build)
    if plan.substitute is not None:
        return (None, plan.substitute)
    return (None, lambda *now: carry_out(info, plan, now))


# --- the generator


def _source(info: OpInfo, entry: Entry | None) -> tuple[str, dict[str, Any]]:
    """Source of ``info``'s kernel, and the constants that are to be among its globals. The defaults of the signature are left out."""
    names = [arg.name if arg.kwarg_only else f"a{i}" for i, arg in enumerate(info.args)]
    assert _RESERVED.isdisjoint(names), f"{info.name} has an argument that generated code uses for itself"
    constants: dict[str, Any] = {}

    def constant(value: Any) -> str:
        name = f"c{len(constants)}"
        constants[name] = value
        return name

    body: list[str] = []
    keys = []
    bits = _bits(info)
    if _serves_several and info.base in _FROM_ANYWHERE:
        at = next(name for name, arg in zip(names, info.args, strict=True) if arg.name.startswith("value"))
        body.append(f"if isinstance({at}, Tensor) and not {at}.dim() and not {at}.is_cpu: {at} = moved_beside({names[0]}, {at})")
    for i, (name, arg) in enumerate(zip(names, info.args, strict=True)):
        lines, key = _argument(i, name, arg, entry, bits, constant, info.base in _SHAPED_BY_NUMBERS)
        body += lines
        if key is not None:
            keys.append(key)
    values = f"({''.join(f'{n}, ' for n in names)})"
    body += _number_checks(info, names, values)
    body.append(f"key = ({''.join(f'{k}, ' for k in keys)})")
    if _serves_several:
        device = next((name for name, arg in zip(names, info.args, strict=True) if arg.kind is Kind.DEVICE), None)
        body.append(f"at = where(found{', ' + device if device else ''})")
        if device and info.takes_tensors:
            body.append(f"if is_our_device({device}) and check_device({device}) != at: return apart(check_device({device}), {values})")
    body += _mutating_tail(info, names, values) if info.mutates else _functional_tail(values)
    positional = [n for n, arg in zip(names, info.args, strict=True) if not arg.kwarg_only]
    keywords = [n for n, arg in zip(names, info.args, strict=True) if arg.kwarg_only]
    signature = ", ".join([*positional, *(["*", *keywords] if keywords else [])])
    start = "handles = []; numbers = []" + ("; found = set()" if _serves_several else "")
    lines = [f"def kernel({signature}):", *(f"    {line}" for line in (start, *body))]
    return "\n".join(lines), constants


_RESERVED: Final = frozenset({"get", "miss", "handles", "numbers", "key", "plan", "t", "x", "kx", "check", "found", "at"})
"""Names of generated code that are in use while arguments are still needed."""


_FROM_ANYWHERE: Final = frozenset({"fill", "fill_", "masked_fill", "masked_fill_", "index_put", "index_put_", "_index_put_impl_"})
"""Operations whose value may be one element of another device."""

_SHAPED_BY_NUMBERS: Final = frozenset({"arange", "range"})
"""Operations whose result's size depends on the values of number arguments: those are part of the key although they are scalar slots."""


def _bits(info: OpInfo) -> str:
    """Key parts for torch's lazy conjugate and negative bits, where its dispatcher leaves them to the kernel."""
    parts = ""
    if has_kernel(info.name, "Conjugate"):
        parts += ", {x}.is_conj()"
    if has_kernel(info.name, "Negative"):
        parts += ", {x}.is_neg()"
    return parts


def _argument(
    i: int, name: str, arg: Arg, entry: Entry | None, bits: str, constant: Callable[[Any], str], shaping: bool
) -> tuple[list[str], str | None]:
    """Lines that describe one argument, and its part of the key."""
    key = f"k{i}"
    if arg.kind is Kind.TENSOR:
        return _tensor(name, key, bits), key
    if arg.kind is Kind.TENSORS:
        item = _tensor("x", "kx", bits)
        return [
            f"{key} = []",
            f"for x in {name} or ():",
            *(f"    {line}" for line in item),
            f"    {key}.append(kx)",
            f"{key} = tuple({key})",
        ], key
    if arg.kind in (Kind.NUMBER, Kind.NUMBERS):
        return _number(name, key, arg, entry, constant, shaping), key
    if arg.kind is Kind.PLAINS:
        return [f"{key} = tuple({name}) if {name} is not None else None"], key
    if arg.kind in (Kind.GENERATOR, Kind.IGNORED):
        return [], None
    return [], name


def _tensor(name: str, key: str, bits: str) -> list[str]:
    meta = f"({name}.dtype, {name}.size(), {name}.stride(), {name}.storage_offset(), {name}.is_cpu{bits.format(x=name)})"
    return [
        f"t = type({name})",
        "if t is Tensor or t is Parameter:",
        f"    {key} = {meta}",
        f"    handles.append({name}.untyped_storage().data_ptr() >> {HANDLE_SHIFT})",
        "else:",
        f"    {key} = describe({name}, handles, numbers)",
        *([f"if type({key}) is tuple and not {key}[4]: found.add(index_of_handle(handles[-1]))"] if _serves_several else ()),
    ]


def _number(name: str, key: str, arg: Arg, entry: Entry | None, constant: Callable[[Any], str], shaping: bool) -> list[str]:
    if arg.kind is Kind.NUMBERS:
        if entry is None or arg.name in entry.concrete:
            return [f"{key} = tuple([(type(x), x) for x in {name}]) if {name} is not None else None"]
        return [
            f"if {name} is None: {key} = None",
            f"else: {key} = tuple(map(type, {name})); numbers += [int(x) if type(x) is bool else x for x in {name}]",
        ]
    if entry is None or arg.name in entry.concrete:
        return [f"{key} = (type({name}), {name})"]
    append = f"{key} = type({name}); numbers.append(int({name}) if {key} is bool else {name})"
    if shaping:
        append += f"; {key} = ({key}, {name})"
    lines = [f"if {name} is None: {key} = None"]
    special = entry.special.get(arg.name)
    if special:
        lines.append(f"elif {name} in {constant(tuple(special))}: {key} = (type({name}), {name})")
    return [*lines, f"else: {append}"]


def _number_checks(info: OpInfo, names: Sequence[str], values: str) -> list[str]:
    """Lines that look at numbers which torch may refuse for their value."""
    given = [name for name, arg in zip(names, info.args, strict=True) if arg.kind is Kind.NUMBER]
    if info.base in numbers.ALWAYS:
        return [f"check{values}"]
    if info.base not in numbers.BY_SIZE:
        return []
    low = "0 <=" if info.base in numbers.FILLING else f"-{numbers.PLAIN_BELOW} <"
    odd = [f"{x} is not None and (type({x}) is complex or not {low} {x} < {numbers.PLAIN_BELOW})" for x in given]
    return [f"if {' or '.join(odd)}: check{values}"] if odd else []


def _functional_tail(values: str) -> list[str]:
    make = [
        "handle = new_handle(nbytes)",
        "result = make_empty(shape, dtype)",
        "storage = result.untyped_storage()",
        f"storage._swap_data_ptr_(make_storage(handle << {HANDLE_SHIFT}, our_device, nbytes))",
        "storage._wooly_buf = Buf(handle, nbytes)",
    ]
    return [
        "plan = get(key)",
        f"if plan is None: return miss(key, {values})",
        f"if plan[0] is None: return plan[1]{values}",
        *(["if at: return on_other(plan, handles, numbers, at)"] if _serves_several else ()),
        "stencil, dtype, shape, nbytes = plan",
        "if dtype is None: return several(plan, handles, numbers)",
        *(make if HAS_SWAP else ["result, handle = new_tensor(dtype, shape, None, nbytes)"]),
        "handles.append(handle)",
        "append((stencil, handles, numbers))",
        f"if len(pending) >= {RECORDS_MAX}: flush()",
        "return result",
    ]


def _mutating_tail(info: OpInfo, names: Sequence[str], values: str) -> list[str]:
    lines = []
    if sum(a.kind is Kind.TENSOR for a in info.args) > 1 or any(a.kind is Kind.TENSORS for a in info.args):
        lines += [
            "if len(set(handles)) != len(handles):",
            "    key = (key, tuple(map(handles.index, handles))); handles = list(dict.fromkeys(handles))",
        ]
    returned = [names[r] if r is not None else "None" for r in info.returns]
    return [
        *lines,
        "plan = get(key)",
        f"if plan is None: return miss(key, {values})",
        f"if plan[0] is None: return plan[1]{values}",
        f"{'if at: recorders[at].push' if _serves_several else 'append'}((plan[0], handles, numbers))",
        *(["else: append((plan[0], handles, numbers))"] if _serves_several else ()),
        f"if len(pending) >= {RECORDS_MAX}: flush()",
        f"return {', '.join(returned)}" if len(returned) != 1 else f"return {returned[0]}",
    ]
