"""Checks that a module's declared arguments fit its kernels."""

from __future__ import annotations

from collections.abc import Iterator

from wis.dtypes import DType
from wis.errors import Finding
from wis.kernel.model import BufferParam, ScalarParam
from wis.kernel.module import ArgKind, Argument, Entry, Module

__all__ = ["check_module"]


def check_module(module: Module) -> list[Finding]:
    """Every broken rule: kinds, types, variables and offsets exist, and every parameter of a kernel is given exactly once.

    An entry without arguments is a kernel by itself, whose parameters are given in their order.
    """
    findings = []
    for number, entry in enumerate(module.entries):
        if any(entry.name == other.name for other in module.entries[:number]):
            findings.append(Finding("module", f"entry {number}", f"there is an entry {entry.name!r} already"))
        given: list[int] = []
        for place, argument in enumerate(entry.arguments):
            where = f"entry {number} argument {place}"
            findings += [Finding("module", where, text) for text in _complaints(module, entry, argument, given)]
        if entry.arguments and not findings and sorted(given) != list(range(len(entry.kernel.params))):
            findings.append(
                Finding("module", f"entry {number}", f"arguments give parameters {sorted(given)} of {len(entry.kernel.params)}")
            )
    return findings


def _complaints(module: Module, entry: Entry, argument: Argument, given: list[int]) -> Iterator[str]:
    """``given``: parameters that arguments give, added to."""
    if argument.kind not in ArgKind._value2member_map_:
        yield f"{argument.kind} is not a kind of argument"
        return
    if argument.kind == ArgKind.STRUCT:
        for field in argument.fields:
            if field.dtype not in DType._value2member_map_:
                yield f"{field.dtype} is not an element type"
            elif not 0 <= field.offset <= argument.nbytes - DType(field.dtype).itemsize:
                yield f"a field at byte {field.offset} of {argument.nbytes}"
            yield from _parameter(entry, field.param, ScalarParam, given)
        return
    if argument.kind == ArgKind.SCALAR and argument.dtype not in DType._value2member_map_:
        yield f"{argument.dtype} is not an element type"
    if argument.kind == ArgKind.VARIABLE and not 0 <= argument.variable < len(module.variables):
        yield f"variable {argument.variable} of {len(module.variables)}"
    if argument.param != -1 or argument.kind == ArgKind.VARIABLE:  # -1: the kernel never looks at it
        yield from _parameter(entry, argument.param, ScalarParam if argument.kind == ArgKind.SCALAR else BufferParam, given)


def _parameter(entry: Entry, number: int, kind: type[BufferParam] | type[ScalarParam], given: list[int]) -> Iterator[str]:
    if not 0 <= number < len(entry.kernel.params):
        yield f"parameter {number} of {len(entry.kernel.params)}"
    elif not isinstance(entry.kernel.params[number], kind):
        yield f"parameter {number} is not of this kind"
    given.append(number)
