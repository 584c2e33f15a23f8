"""Writes a stand-alone program that repeats one call on the CPU and on the device and compares, for bug reports.

It holds the operands (in its text, or in a file beside it where they are larger) and needs nothing but torch and a device.
"""

from __future__ import annotations

import base64
import inspect
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch

from wooly.device.checking import rules
from wooly.device.checking.snapshot import Snapshot, View
from wooly.device.schema import Kind, OpInfo

_EMBEDDED_MAX: Final = 4096
"""Bytes of operands that stand in the script's text; more are saved beside it."""

_TEMPLATE: Final = '''\
"""{name}: the device and the CPU disagree.

Written by WOOLY_CHECK=cpu ({versions}) for the call at
{place}

Run it with the device switched on: `wooly run {file}`, or with WOOLY_NATS_URL set. It prints both outcomes, and exits with 1 while
they differ, with 0 when they agree.
"""

import base64
import os
import pathlib
import sys
from math import inf, nan
from typing import Any

os.environ.pop("WOOLY_CHECK", None)

import torch

torch.set_grad_enabled(False)
BUFFERS = {buffers}


def view(buffer, dtype, size, stride, offset):
    """A tensor of the call; those that shared a buffer share one here."""
    return buffer[: len(buffer) // dtype.itemsize * dtype.itemsize].view(dtype).as_strided(size, stride, offset)


def call(device):
    """Arguments by name, a function that makes the call with them on ``device``, and the buffers under them."""
    buffers = [b.clone().to(device if on_device else "cpu") for b, on_device in BUFFERS]
{tensors}
    arguments = {{{named}}}
    return arguments, lambda: {op}({passed}), buffers


def outcome(device):
    """What the call returns, its tensor arguments afterwards, and the buffers under them, all on the CPU; or the exception."""
    arguments, run, buffers = call(device)
    try:
        returned = flat([run()])
        after = [flat([v]) for v in arguments.values()]
        return [here(v) for v in returned], [[here(v) for v in vs] for vs in after], [here(b) for b in buffers]
    except Exception as error:
        return error


def flat(value):
    return [x for v in value for x in flat(v)] if isinstance(value, (list, tuple)) else [value]


def here(value):
    return value.detach().cpu() if isinstance(value, torch.Tensor) else value


{functions}

def compare(ours, theirs):
    if isinstance(ours, Exception) or isinstance(theirs, Exception):
        same = isinstance(ours, type(theirs)) or isinstance(theirs, type(ours))
        return None if same else f"the device: {{ours!r}}\\nthe CPU: {{theirs!r}}"
    if not isinstance(ours, tuple) or not isinstance(theirs, tuple):
        return f"the device: {{ours!r}}\\nthe CPU: {{theirs!r}}"
{comparison}


if not torch.cuda.is_available():
    sys.exit("no device: set WOOLY_NATS_URL, or start this script by `wooly run`")
{stream}ours, theirs = outcome("cuda"), outcome("cpu")
print("device:", ours)
print("CPU:", theirs)
found = compare(ours, theirs)
print(f"DIFFERS: {{found}}" if found else "agrees")
sys.exit(1 if found else 0)
'''


def arguments_text(info: OpInfo, values: Sequence[Any]) -> str:
    """The arguments as a user reads them: tensors by type, shape and (where not contiguous) layout."""
    return ", ".join(f"{arg.name}={_described(value)}" for arg, value in zip(info.args, values, strict=True) if value is not None)


def _described(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        text = f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
        if not value.is_contiguous():
            text += f" strides {tuple(value.stride())}"
        if value.storage_offset():
            text += f" offset {value.storage_offset()}"
        return text + (" conj" if value.is_conj() else "") + (" neg" if value.is_neg() else "")
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_described, value)) + "]"
    return str(value)


def write(
    path: Path,
    info: OpInfo,
    values: Sequence[Any],
    before: Snapshot,
    place: Sequence[str],
    *,
    comparison: str,
    functions: Sequence[Any] = (),
    reference: Any = None,
    rng_state: bytes = b"",
) -> None:
    """Write the script to ``path`` (a ``.py``), and where needed its operands to a ``.pt`` beside it.

    ``comparison``: statements that return how ``ours`` and ``theirs``, pairs of (returned, arguments after), differ. ``functions``: those
    that they call. ``reference``: what stands for the operation on the CPU. ``rng_state``: where the device's random stream stood.
    """
    buffers = [(buffer, _on_device(before, i)) for i, buffer in enumerate(before.buffers)]
    names: dict[int, str] = {}
    tensors = [f"    {names.setdefault(key, f't{i}')} = {_made(view)}" for i, (key, view) in enumerate(before.views.items())]
    named, passed = [], []
    for arg, value in zip(info.args, values, strict=True):
        text = "device" if arg.kind is Kind.DEVICE and value is not None else _literal(value, names, arg.kind)
        named.append(f"{arg.name!r}: {text}")
        passed.append(f"{arg.name}=arguments[{arg.name!r}]" if arg.kwarg_only else f"arguments[{arg.name!r}]")
    op = _op_text(info)
    if reference is not None:
        op = f"({op} if device == 'cuda' else {reference.__name__})"
    parts = dict.fromkeys([*functions, *([reference] if reference is not None else [])])
    path.write_text(
        _TEMPLATE.format(
            name=info.name,
            versions=f"torch {torch.__version__}",
            place=textwrap.indent("\n".join(place), "    "),
            file=path.name,
            buffers=_buffers_text(buffers, path),
            tensors="\n".join(tensors),
            named=", ".join(named),
            passed=", ".join(passed),
            op=op,
            functions="\n\n".join(_source(fn) for fn in parts),
            comparison=textwrap.indent(comparison, "    "),
            stream=f"torch.cuda.set_rng_state(torch.tensor({list(rng_state)}, dtype=torch.uint8))\n" if rng_state else "",
        )
    )


def _source(function: Any) -> str:
    """The source of ``function`` and of the helpers of its module that it calls."""
    helpers = [f for name, f in vars(rules).items() if inspect.isfunction(f) and name in function.__code__.co_names]
    return "\n\n".join([*(inspect.getsource(h) for h in helpers), inspect.getsource(function)])


def _on_device(before: Snapshot, buffer: int) -> bool:
    return next(view.ours for view in before.views.values() if view.buffer == buffer)


def _made(view: View) -> str:
    text = f"view(buffers[{view.buffer}], {view.dtype}, {view.size}, {view.stride}, {view.offset})"
    if view.conj:
        text += ".conj()"
    return f"torch._neg_view({text})" if view.neg else text


def _literal(value: Any, names: dict[int, str], kind: Kind) -> str:
    if isinstance(value, torch.Tensor):
        return names[id(value)]
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_literal(v, names, kind) for v in value) + "]"
    return "None" if kind is Kind.GENERATOR else repr(value)


def _op_text(info: OpInfo) -> str:
    namespace, _, rest = info.name.partition("::")
    base, _, variant = rest.partition(".")
    return f"torch.ops.{namespace}.{base}.{variant or 'default'}"


def _buffers_text(buffers: Sequence[tuple[torch.Tensor, bool]], path: Path) -> str:
    if sum(buffer.numel() for buffer, _ in buffers) > _EMBEDDED_MAX:
        torch.save(list(buffers), path.with_suffix(".pt"))
        return 'torch.load(pathlib.Path(__file__).with_suffix(".pt"))'
    rows = []
    for buffer, on_device in buffers:
        text = base64.b64encode(bytes(buffer.tolist())).decode()
        made = (
            f'torch.frombuffer(bytearray(base64.b64decode("{text}")), dtype=torch.uint8)' if text else "torch.empty(0, dtype=torch.uint8)"
        )
        rows.append(f"    ({made if text else 'torch.empty(0, dtype=torch.uint8)'}, {on_device}),")
    return "[\n" + "\n".join(rows) + "\n]" if rows else "[]"
