"""Imports PTX: ``import_ptx`` makes a module of kernels from the output of NVIDIA's compilers.

In order: lexer and parser (text to data), lowering (statements to ops; integers, floats, memory, warp, calls and control have the form of
each instruction), provenance (addresses to memories), tidy (optimisation), graph (order of blocks), assemble (to the kernel tier). What has
no portable meaning is refused with its line and what to do instead.
"""

from __future__ import annotations

from pathlib import PurePath

from wis.dtypes import DType
from wis.frontends.ptx import calls, control, floats, integers, matrix, memory, warp  # noqa: F401  # they register themselves
from wis.frontends.ptx.assemble import Variables, assemble
from wis.frontends.ptx.code import Code, Node
from wis.frontends.ptx.graph import merge, reachable, reducible
from wis.frontends.ptx.lowering import lower
from wis.frontends.ptx.parser import parse
from wis.frontends.ptx.provenance import resolve
from wis.frontends.ptx.scene import Scene
from wis.frontends.ptx.syntax import PtxError, Routine, Source
from wis.frontends.ptx.tidy import define_everything, tidy
from wis.kernel.model import Math, RegType, Space
from wis.kernel.module import MODULE_VERSION, Entry, Module

__all__ = ["PtxError", "import_ptx"]

_TEXT_MAX = 32 << 20


def import_ptx(text: str, source_name: str = "", math: Math = Math.STRICT, *, drops_prints: bool = False) -> Module:
    """The kernels of a PTX file.

    ``source_name``: what trap reports call the file when the PTX names none; ``math``: how named functions are evaluated;
    ``drops_prints``: calls of printf do nothing, instead of being refused. Raises PtxError, and nothing else, for any text; whether the
    kernels keep the limits and rules of the kernel tier is the verifier's to say.
    """
    try:
        if len(text) > _TEXT_MAX:
            raise PtxError(1, f"{len(text)} characters, at most {_TEXT_MAX} are accepted")
        source = parse(text)
        file = PurePath(source.files[1]).name if source.located and 1 in source.files else source_name
        variables = Variables()
        names = [name for name, routine in source.routines.items() if routine.kernel and routine.defined]
        if not names:
            raise PtxError(1, "there is no kernel (.entry) in this file", hint="is a __global__ function in the source, and instantiated?")
        entries = tuple(_entry(source, source.routines[name], variables, math, file, drops_prints) for name in names)
        return Module(MODULE_VERSION, entries, tuple(variables.items))
    except PtxError as error:
        raise error.within(text.splitlines()) from None
    except RecursionError:
        raise PtxError(1, "nested too deeply") from None


def _entry(source: Source, kernel: Routine, variables: Variables, math: Math, file: str, drops_prints: bool) -> Entry:
    scene = Scene(source, kernel, drops_prints)
    codes = [lower(scene, kernel)]
    while len(codes) <= len(scene.functions):
        codes.append(lower(scene, scene.functions[len(codes) - 1]))
    _refuse_recursion(scene, codes)
    _copy_arguments(scene, codes[0])
    for code in codes:
        merge(code)
        define_everything(code)
    places = resolve(scene, codes)
    for code in codes:
        tidy(code, reachable(code))
        merge(code)
        reducible(code)
    return assemble(scene, codes, places, variables, math, file)


def _refuse_recursion(scene: Scene, codes: list[Code]) -> None:
    """Calls must have an end: a function that reaches itself has none that is known."""
    callees = [
        {part.end.extra[0] + 1: part.end.ptx for part in code.parts.values() if part.end is not None and part.end.kind == "call"}
        for code in codes
    ]
    done: set[int] = set()
    path: list[int] = []
    stack = [(0, iter(callees[0].items()))]
    path.append(0)
    while stack:
        at, rest = stack[-1]
        for callee, line in rest:
            if callee in path:
                raise PtxError(line, f"{scene.functions[callee - 1].name} calls itself, directly or through others", hint="use a loop")
            if callee not in done:
                path.append(callee)
                stack.append((callee, iter(callees[callee].items())))
                break
        else:
            done.add(at)
            stack.pop()
            path.pop()


def _copy_arguments(scene: Scene, code: Code) -> None:
    """Arguments whose address is taken are copied to local memory when a thread starts."""
    nodes: list[Node] = []
    for number, symbol in enumerate(scene.symbols):
        if symbol.argument < 0:
            continue
        line = symbol.line
        at = 0
        while at < symbol.nbytes:
            size = next(size for size in (8, 4, 2, 1) if at % size == 0 and at + size <= symbol.nbytes)
            dtype = {8: DType.U64, 4: DType.U32, 2: DType.U16, 1: DType.U8}[size]
            value = code.temp({8: RegType.I64, 4: RegType.I32, 2: RegType.I16, 1: RegType.I16}[size])
            base = code.temp(RegType.I64)
            nodes.append(Node("argument", [value], [], (symbol.argument, at, int(dtype)), 0, line))
            nodes.append(Node("symbol", [base], [], (number,), 0, line))
            nodes.append(Node("store", [], [base, value], (int(Space.LOCAL), 0, int(dtype), 1, at, 0), 0, line))
            at += size
    entry = code.parts[code.entry]
    entry.nodes = nodes + entry.nodes
