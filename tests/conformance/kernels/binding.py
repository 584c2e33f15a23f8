"""Binds a case's inputs to the parameters of its kernel, in memory with guarded edges."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tests.golden.cuda.case import Case, Given
from wis.dtypes import DType
from wis.frontends.ptx import import_ptx
from wis.kernel.model import Math
from wis.kernel.module import ArgKind, Argument, Entry, Module
from wis.kernel.verify import VerifiedKernel, verify_kernel
from wooly.kernels.build import compile_to_ptx

__all__ = ["Memory", "Prepared", "Bound", "build", "build_source", "bind"]

Array = npt.NDArray[Any]
_GUARD: Final = 256
_PATTERN: Final = 0xA5


class Memory:
    """Bytes between two guards."""

    def __init__(self, data: bytes) -> None:
        self._all = np.full(len(data) + 2 * _GUARD, _PATTERN, np.uint8)
        self.inside = self._all[_GUARD : _GUARD + len(data)]
        self.inside[:] = np.frombuffer(data, np.uint8)

    @property
    def intact(self) -> bool:
        """Whether the guards are unchanged."""
        return bool((self._all[:_GUARD] == _PATTERN).all() and (self._all[len(self._all) - _GUARD :] == _PATTERN).all())


@dataclass(frozen=True)
class Prepared:
    """A case's kernel, verified, and the module it came in."""

    module: Module
    entry: Entry
    verified: VerifiedKernel


@dataclass(frozen=True)
class Bound:
    """``params``: one a parameter of the kernel. ``memories``: by position of the argument or name of the variable; ``before``: their first
    bytes."""

    params: Sequence[Any]
    memories: Mapping[int | str, Memory]
    before: Mapping[int | str, bytes]


@cache
def _module(text: str, options: tuple[str, ...], names: tuple[str, ...], file: str) -> tuple[Module, dict[str, str]]:
    ptx = compile_to_ptx(text, options, names, name=file)
    return import_ptx(ptx.text, file, math=Math.STRICT), ptx.names


def build(case: Case) -> Prepared:
    """Compile, import and verify, once in a process. Raises CompileError, WisError."""
    return build_source(case.text, case.kernel, case.options, f"{case.source}.cu")


@cache
def build_source(text: str, kernel: str, options: tuple[str, ...], file: str) -> Prepared:
    """The same for any source; ``kernel`` is a name or a name expression."""
    module, names = _module(text, options, (kernel,) if "<" in kernel else (), file)
    wanted = names.get(kernel, kernel)
    entry = next(e for e in module.entries if e.name == wanted)
    return Prepared(module, entry, verify_kernel(entry.kernel))


def bind(prepared: Prepared, given: Given) -> Bound:
    """Fresh memory with the case's inputs."""
    memories: dict[int | str, Memory] = {}
    before: dict[int | str, bytes] = {}

    def memory(key: int | str, data: bytes) -> Array:
        memories[key], before[key] = Memory(data), data
        return memories[key].inside

    params: list[Any] = [None] * len(prepared.entry.kernel.params)
    values = iter(enumerate(given.args))
    for argument in prepared.entry.arguments:
        if argument.kind == ArgKind.VARIABLE:
            variable = prepared.module.variables[argument.variable]
            params[argument.param] = memory(variable.name, variable.data.ljust(variable.nbytes, b"\0"))
            continue
        place, value = next(values)
        _BINDERS[ArgKind(argument.kind)](params, argument, value, lambda data, place=place: memory(place, data))
    return Bound(params, memories, before)


def _buffer(params: list[Any], argument: Argument, value: Any, memory: Callable[[bytes], Array]) -> None:
    place = memory(np.ascontiguousarray(value).tobytes())
    if argument.param >= 0:  # else the kernel never looks at it
        params[argument.param] = place


def _scalar(params: list[Any], argument: Argument, value: Any, memory: Callable[[bytes], Array]) -> None:
    if isinstance(value, bytes):  # a class of the size of a number, as __half is
        value = np.frombuffer(value, DType(argument.dtype).numpy)[0]
    if argument.param >= 0:
        params[argument.param] = value.item()


def _struct(params: list[Any], argument: Argument, value: Any, memory: Callable[[bytes], Array]) -> None:
    raw = value if isinstance(value, bytes) else np.asarray(value).tobytes()
    assert len(raw) == argument.nbytes, f"{argument.name}: {len(raw)} bytes, the kernel wants {argument.nbytes}"
    for field in argument.fields:
        params[field.param] = np.frombuffer(raw, DType(field.dtype).numpy, 1, field.offset)[0].item()


_BINDERS: Final = {ArgKind.BUFFER: _buffer, ArgKind.SCALAR: _scalar, ArgKind.STRUCT: _struct}
