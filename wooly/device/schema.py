"""Reads operator schemas into the form that the kernels need."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch


class Kind(Enum):
    """How an argument enters a template."""

    TENSOR = "tensor"  # Tensor or Tensor?: a slot (or a wrapped number, or None)
    TENSORS = "tensors"  # lists of them
    NUMBER = "number"  # Scalar, float (optional too): a scalar slot, unless the lowering wants it concrete
    NUMBERS = "numbers"  # lists of them
    PLAIN = "plain"  # part of the template's key
    PLAINS = "plains"  # a list that is part of the key
    GENERATOR = "generator"  # which random stream; not part of the key
    DEVICE = "device"
    IGNORED = "ignored"  # pin_memory, non_blocking
    LAYOUT = "layout"


_KINDS = {
    "Tensor": Kind.TENSOR,
    "Optional[Tensor]": Kind.TENSOR,
    "List[Tensor]": Kind.TENSORS,
    "List[Optional[Tensor]]": Kind.TENSORS,
    "number": Kind.NUMBER,
    "Optional[number]": Kind.NUMBER,
    "float": Kind.NUMBER,
    "Optional[float]": Kind.NUMBER,
    "List[number]": Kind.NUMBERS,
    "List[float]": Kind.NUMBERS,
    "Optional[List[float]]": Kind.NUMBERS,
    "Optional[Generator]": Kind.GENERATOR,
    "Generator": Kind.GENERATOR,
}
_BY_NAME = {"device": Kind.DEVICE, "layout": Kind.LAYOUT, "pin_memory": Kind.IGNORED, "non_blocking": Kind.IGNORED}


@dataclass(frozen=True, slots=True)
class Arg:
    """One argument. ``written``: the operator changes this tensor (or these); ``is_out``: and only writes it."""

    name: str
    kind: Kind
    kwarg_only: bool
    has_default: bool
    default: Any
    written: bool
    is_out: bool


@dataclass(frozen=True, slots=True)
class OpInfo:
    """An overload."""

    #: as in registration, ``aten::add.Tensor`` (no ``.default``)
    name: str
    op: Any
    args: tuple[Arg, ...]
    #: by return: the index of the argument that it aliases, or None for a new value
    returns: tuple[int | None, ...]
    #: it returns one list of tensors
    list_return: bool
    tensor_returns: bool
    tags: frozenset[Any]

    @property
    def base(self) -> str:
        """The operator's name without namespace and overload, ``add``."""
        return self.name.split("::", 1)[1].split(".", 1)[0]

    @property
    def mutates(self) -> bool:
        return any(arg.written for arg in self.args)

    @property
    def is_out(self) -> bool:
        return any(arg.is_out for arg in self.args)

    @property
    def written(self) -> tuple[int, ...]:
        return tuple(i for i, arg in enumerate(self.args) if arg.written)

    @property
    def is_view(self) -> bool:
        """Returns an alias of an argument that it does not change."""
        return not self.mutates and any(r is not None for r in self.returns)

    @property
    def takes_tensors(self) -> bool:
        return any(arg.kind in (Kind.TENSOR, Kind.TENSORS) for arg in self.args)

    @property
    def is_factory(self) -> bool:
        """Makes tensors from nothing: called by device, not by its arguments' device."""
        return not self.takes_tensors and any(arg.kind is Kind.DEVICE for arg in self.args)

    @property
    def draws(self) -> bool:
        """Takes numbers from a random stream."""
        return torch.Tag.nondeterministic_seeded in self.tags


def describe(name: str, op: Any) -> OpInfo:
    """Read the schema of ``op``, which is registered as ``name``."""
    schema = op._schema
    sets: list[set[str]] = [set(a.alias_info.before_set) if a.alias_info is not None else set() for a in schema.arguments]

    def source(ret: Any) -> int | None:
        if ret.alias_info is None:
            return None
        alias = set(ret.alias_info.before_set)
        return next((i for i, names in enumerate(sets) if names & alias), None)

    args = tuple(
        Arg(
            a.name,
            _kind(a),
            bool(a.kwarg_only),
            bool(a.has_default_value()),
            a.default_value,
            a.alias_info is not None and bool(a.alias_info.is_write),
            bool(a.is_out),
        )
        for a in schema.arguments
    )
    types = [str(r.type) for r in schema.returns]
    return OpInfo(
        name,
        op,
        args,
        tuple(source(r) for r in schema.returns),
        types == ["List[Tensor]"],
        any("Tensor" in t for t in types),
        frozenset(op.tags),
    )


def _kind(argument: Any) -> Kind:
    text = str(argument.type)
    known = _KINDS.get(text)
    if known is not None:
        return known
    if argument.name in _BY_NAME and not text.startswith("List"):
        return _BY_NAME[argument.name]
    return Kind.PLAINS if "List[" in text else Kind.PLAIN


def overload(name: str) -> Any:
    """The operator overload registered as ``name``, or None when torch does not expose it in Python."""
    namespace, _, rest = name.partition("::")
    base, _, variant = rest.partition(".")
    packet = getattr(getattr(torch.ops, namespace), base, None)
    return getattr(packet, variant or "default", None) if packet is not None else None


def functional_of(info: OpInfo) -> str | None:
    """The name of the overload that computes what ``info`` (in-place or out=) writes, without writing; None when there is none."""
    base = info.base if info.is_out else info.base.removesuffix("_")
    return next(filter(None, (_functional_form(info, name) for name in (base, f"{base}_functional"))), None)


def _functional_form(info: OpInfo, base: str) -> str | None:
    packet = getattr(torch.ops.aten, base, None)
    if packet is None:
        return None
    wanted = [(a.name, str(a.type)) for a in info.op._schema.arguments if not a.is_out]
    for variant in packet.overloads():
        schema = getattr(packet, variant)._schema
        if any(a.alias_info is not None and a.alias_info.is_write for a in schema.arguments):
            continue
        # A functional form may add options (dtype, layout, ...), all with defaults.
        have = [(a.name, str(a.type)) for a in schema.arguments]
        if have[: len(wanted)] == wanted and all(a.has_default_value() for a in schema.arguments[len(wanted) :]):
            return f"aten::{base}" + ("" if variant == "default" else f".{variant}")
    return None
