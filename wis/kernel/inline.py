"""Inlines calls: a kernel with functions becomes one flat kernel.

Every call gets its own copy of the function's blocks, right behind the calling block, so that loops stay together and edges keep pointing
forward. The copies share one set of registers a function: a function is never active twice in a thread (there is no recursion), and it
reads none of its registers before it wrote them. A call becomes, in thread-instructions: a ``mov`` an argument and the ``br`` in, a ``br``
for the ``ret``, a ``mov`` a result and the ``br`` on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

import msgspec

from wis.kernel.model import Bar, Block, Br, Call, Cbr, Function, Kernel, Op, Ret, Switch, Sync, Terminator
from wis.kernel.ops import BY_NAME

_MOV: Final = BY_NAME["mov"].code


@dataclass(frozen=True, slots=True)
class Size:
    """How large code is after inlining: ``ops`` without terminators."""

    ops: int
    blocks: int


def recursion(functions: Sequence[Function]) -> tuple[int, ...]:
    """Functions that may, over any number of calls, call themselves. References to functions must exist."""
    callees = [{block.end.function for block in f.blocks if isinstance(block.end, Call)} for f in functions]
    # Take away, again and again, functions that call none of the rest; what cannot be taken away calls in a circle or leads into one.
    callers: list[list[int]] = [[] for _ in functions]
    for f, called in enumerate(callees):
        for g in called:
            callers[g].append(f)
    left = [len(called) for called in callees]
    todo = [f for f, n in enumerate(left) if n == 0]
    done = set(todo)
    while todo:
        for f in callers[todo.pop()]:
            left[f] -= 1
            if left[f] == 0:
                done.add(f)
                todo.append(f)
    return tuple(f for f in range(len(functions)) if f not in done)


def sizes(kernel: Kernel) -> Size:
    """The size of ``inline(kernel)``, found without doing it. There must be no recursion."""
    known: dict[int, Size] = {}
    for f in _callees_first(kernel.functions):
        known[f] = _size(kernel.functions[f].blocks, known)
    return _size(kernel.blocks, known)


def _size(blocks: Sequence[Block], known: dict[int, Size]) -> Size:
    ops, count = 0, len(blocks)
    for block in blocks:
        ops += len(block.code)
        if isinstance(block.end, Call):
            inner = known[block.end.function]
            ops += len(block.end.ins) + len(block.end.outs) + inner.ops
            count += 1 + inner.blocks
    return Size(ops, count)


def _callees_first(functions: Sequence[Function]) -> list[int]:
    order: list[int] = []
    seen: set[int] = set()
    for root in range(len(functions)):
        stack = [(root, iter(_called(functions[root])))] if root not in seen else []
        seen.add(root)
        while stack:
            f, rest = stack[-1]
            g = next((g for g in rest if g not in seen), None)
            if g is None:
                order.append(f)
                stack.pop()
            else:
                seen.add(g)
                stack.append((g, iter(_called(functions[g]))))
    return order


def _called(function: Function) -> Iterator[int]:
    return (block.end.function for block in function.blocks if isinstance(block.end, Call))


@dataclass(frozen=True, slots=True)
class _Code:
    """Blocks whose targets are relative to the first of them, with the source lines of their ops."""

    blocks: list[Block]
    lines: list[list[int]]


def inline(kernel: Kernel) -> Kernel:
    """``kernel`` without calls, or itself when it has no functions."""
    if not kernel.functions:
        return kernel
    bodies = [kernel.blocks, *(f.blocks for f in kernel.functions)]
    lengths = [len(block.code) for blocks in bodies for block in blocks]
    lines = iter([kernel.lines[end - n : end] for n, end in zip(lengths, accumulate(lengths), strict=True)])
    body_lines = [[list(next(lines)) or [0] * len(block.code) for block in blocks] for blocks in bodies]
    bases = list(accumulate((len(f.regs) for f in kernel.functions), initial=len(kernel.regs)))
    known: dict[int, _Code] = {}
    for f in _callees_first(kernel.functions):
        known[f] = _expand(kernel, kernel.functions[f].blocks, body_lines[1 + f], bases, bases[f], known)
    flat = _expand(kernel, kernel.blocks, body_lines[0], bases, 0, known)
    return msgspec.structs.replace(
        kernel,
        regs=(*kernel.regs, *(r for f in kernel.functions for r in f.regs)),
        blocks=tuple(flat.blocks),
        functions=(),
        lines=tuple(line for block in flat.lines for line in block) if kernel.lines else (),
    )


def _expand(
    kernel: Kernel, blocks: Sequence[Block], lines: Sequence[list[int]], bases: Sequence[int], base: int, known: dict[int, _Code]
) -> _Code:
    """Blocks with the calls in them replaced and registers moved up by ``base``."""
    extra = [1 + len(known[b.end.function].blocks) if isinstance(b.end, Call) else 0 for b in blocks]
    place = list(accumulate((1 + n for n in extra), initial=0))
    result = _Code([], [])
    for block, block_lines in zip(blocks, lines, strict=True):
        code = tuple(_moved_op(op, base) for op in block.code) if base else block.code
        end = block.end
        if not isinstance(end, Call):
            result.blocks.append(Block(code, _moved_end(end, base, place)))
            result.lines.append(block_lines)
            continue
        function, inside = kernel.functions[end.function], len(result.blocks) + 1
        inner, callee = known[end.function], bases[end.function]
        line = block_lines[-1] if block_lines else 0
        given = tuple(Op(_MOV, (callee + p,), (base + r,)) for p, r in zip(function.ins, end.ins, strict=True))
        result.blocks.append(Block((*code, *given), Br(inside)))
        result.lines.append([*block_lines, *[line] * len(given)])
        result.blocks.extend(Block(b.code, _shifted(b.end, inside, len(inner.blocks))) for b in inner.blocks)
        result.lines.extend(inner.lines)
        taken = tuple(Op(_MOV, (base + r,), (callee + p,)) for r, p in zip(end.outs, function.outs, strict=True))
        result.blocks.append(Block(taken, Br(place[end.target])))
        result.lines.append([line] * len(taken))
    return result


def _moved_op(op: Op, base: int) -> Op:
    return Op(op.op, tuple(r + base for r in op.outs), tuple(r + base for r in op.ins), op.attrs)


def _moved_end(end: Terminator, base: int, place: Sequence[int]) -> Terminator:
    """``end`` with registers moved up by ``base`` and block b at ``place[b]``."""
    match end:
        case Cbr(pred, yes, no):
            return Cbr(pred + base, place[yes], place[no])
        case Switch(index, targets, default):
            return Switch(index + base, tuple(place[t] for t in targets), place[default])
        case Sync(target, barrier, count, arrive):
            return Sync(place[target], barrier, count if count < 0 else count + base, arrive)
        case Br(target):
            return Br(place[target])
        case Bar(target):
            return Bar(place[target])
    return end


def _shifted(end: Terminator, by: int, n: int) -> Terminator:
    """``end`` of one of a function's ``n`` blocks, registers in place, in its copy at ``by``. Behind the copy is where it goes on."""
    return Br(by + n) if isinstance(end, Ret) else _moved_end(end, 0, range(by, by + n))
