"""Making a failing kernel smaller while it still fails, so that a person can read it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from tests.support.wis_kernels import Case
from wis.errors import VerifyError
from wis.kernel.model import Block, Br, Cbr, Kernel, Ret, Switch, Terminator, successors
from wis.kernel.verify import verify_kernel

__all__ = ["shrink"]


def shrink(case: Case, fails: Callable[[Case], bool]) -> Case:
    """The smallest case found for which ``fails`` holds, as it does for ``case``."""
    changed = True
    while changed:
        changed = False
        for smaller in _smaller(case):
            if _valid(smaller.kernel) and fails(smaller):
                case, changed = smaller, True
                break
    return case


def _valid(kernel: Kernel) -> bool:
    try:
        verify_kernel(kernel)
    except VerifyError:
        return False
    return True


def _smaller(case: Case) -> Iterator[Case]:
    """Cases with something less, what takes away most first."""
    if case.kernel.functions:
        flat = verify_kernel(case.kernel).flat
        yield _with(case, flat.blocks, flat)
    for grid in ((1, 1, 1), (2, 1, 1)):
        if case.grid != grid and grid[0] < case.grid[0] * case.grid[1] * case.grid[2]:
            yield _sized(case, grid=grid)
    for shape in ((1, 1, 1), (2, 1, 1), (33, 1, 1)):
        if case.block != shape and shape[0] < case.block[0] * case.block[1] * case.block[2]:
            yield _sized(case, block=shape)
    blocks = case.kernel.blocks
    for b, block in enumerate(blocks):
        if isinstance(block.end, Cbr | Switch):
            for target in successors(block.end):
                yield _with(case, (*blocks[:b], Block(block.code, Br(target)), *blocks[b + 1 :]))
        elif not isinstance(block.end, Ret | Br):
            yield _with(case, (*blocks[:b], Block(block.code, Br(successors(block.end)[0])), *blocks[b + 1 :]))
    for step in (16, 4, 1):
        for b, block in enumerate(blocks):
            for at in range(0, len(block.code), step):
                yield _with(case, (*blocks[:b], Block((*block.code[:at], *block.code[at + step :]), block.end), *blocks[b + 1 :]))


def _sized(case: Case, grid: tuple[int, int, int] | None = None, block: tuple[int, int, int] | None = None) -> Case:
    return Case(case.kernel, grid or case.grid, block or case.block, case.dynamic_bytes, case.params)


def _with(case: Case, blocks: tuple[Block, ...], kernel: Kernel | None = None) -> Case:
    """Other code; what can no longer be reached is left out, single edges are joined."""
    changed = msgspec.structs.replace(kernel or case.kernel, blocks=_tidy(blocks))
    return Case(changed, case.grid, case.block, case.dynamic_bytes, case.params)


def _tidy(blocks: tuple[Block, ...]) -> tuple[Block, ...]:
    reached, todo = {0}, [0]
    while todo:
        for c in successors(blocks[todo.pop()].end):
            if c not in reached:
                reached.add(c)
                todo.append(c)
    order = sorted(reached)
    sources = {b: [a for a in order if b in successors(blocks[a].end)] for b in order}
    kept: list[int] = []
    joined: dict[int, tuple[list[int], Block]] = {}
    for b in order:
        if b in joined:
            continue
        members, code, end = [b], blocks[b].code, blocks[b].end
        while isinstance(end, Br) and end.target > members[-1] and len(sources[end.target]) == 1:
            members.append(end.target)
            code, end = (*code, *blocks[end.target].code), blocks[end.target].end
        kept.append(b)
        for m in members:
            joined[m] = (members, Block(code, end))
    place = {b: n for n, b in enumerate(kept)}
    return tuple(Block(joined[b][1].code, _moved(joined[b][1].end, place)) for b in kept)


def _moved(end: Terminator, place: dict[int, int]) -> Terminator:
    match end:
        case Cbr(pred, yes, no):
            return Cbr(pred, place[yes], place[no])
        case Switch(index, targets, default):
            return Switch(index, tuple(place[t] for t in targets), place[default])
        case Ret():
            return end
    return msgspec.structs.replace(end, target=place[end.target])
