"""Lowers branches, ends, instructions without effect here, and refuses those that are not supported."""

from __future__ import annotations

from typing import Final

from wis.dtypes import DType
from wis.frontends.ptx.lowering import LOWERINGS, InstructionLowering, RoutineLowering, access, lowers, table_of
from wis.frontends.ptx.memory import address, space_of
from wis.frontends.ptx.syntax import Instruction, Number
from wis.kernel.model import RegType, Space

__all__: list[str] = []

_I32, _PRED = RegType.I32, RegType.PRED


@lowers("bra", "uni", (1, 2), effect=True, typed=False)
def _bra(low: RoutineLowering, ins: Instruction) -> None:
    target = low.target(ins.args[-1])
    if ins.guard is None:
        low.end("br", [target])
        return
    pred = low.read(ins.guard, _PRED)
    following = low.new_block()
    low.end("cbr", [following, target] if ins.negated else [target, following], ins=[pred])
    low.current = low.code.parts[following]


@lowers("brx", "idx uni", 2, effect=True, typed=False)
def _brx(low: RoutineLowering, ins: Instruction) -> None:
    """An index past the list means nothing in PTX; here the last label is taken."""
    targets = [low.target(label) for label in table_of(low, ins.args[1])]
    if not targets:
        raise low.fail("the list of targets is empty")
    low.end("switch", targets, ins=[low.read(ins.args[0], _I32)])


@lowers("ret", "uni", 0, effect=True, typed=False)
def _ret(low: RoutineLowering, ins: Instruction) -> None:
    low.end("ret", [])


@lowers("exit", "", 0, effect=True, typed=False)
def _exit(low: RoutineLowering, ins: Instruction) -> None:
    if not low.routine.kernel:
        raise low.fail("exit inside of a function is not supported", "return to the kernel, and leave it there")
    low.end("ret", [])


@lowers("trap brkpt", "", 0, effect=True, typed=False)
def _trap(low: RoutineLowering, ins: Instruction) -> None:
    low.emit("raise", [], [])
    low.end("ret", [])


@lowers(
    "nanosleep prefetch prefetchu pmevent discard applypriority setmaxnreg griddepcontrol",
    "mask global local shared L1 L2 param tensormap wait launch_dependents inc dec sync aligned",
    (0, 9),
    effect=True,
    typed=False,
)
def _nothing(low: RoutineLowering, ins: Instruction) -> None:
    """Hints. A launch starts when those before it have ended, so there is nothing to wait for either."""


@lowers("createpolicy", "fractional range cvt global", (1, 9))
def _createpolicy(low: RoutineLowering, ins: Instruction) -> None:
    low.put(ins.args[0], low.const(RegType.I64, 0))


_HINTS: Final = {
    "wmma": "compute the product with ordinary arithmetic, or call torch.matmul",
    "mma": "compute the product with ordinary arithmetic, or call torch.matmul",
    "wgmma": "compute the product with ordinary arithmetic, or call torch.matmul",
    "tcgen05": "compute the product with ordinary arithmetic, or call torch.matmul",
    "tex": "read from a pointer instead", "tld4": "read from a pointer instead", "txq": "pass sizes as arguments",
    "suld": "read from a pointer instead", "sust": "write through a pointer instead", "sured": "use atomics on a pointer",
    "suq": "pass sizes as arguments", "istypep": "pass pointers", "mapa": "clusters have no portable form",
    "getctarank": "clusters have no portable form", "mbarrier": "use __syncthreads() and ordinary copies",
    "multimem": "use ordinary loads and stores", "tensormap": "compute addresses in the kernel", "stmatrix": "store from each thread",
    "movmatrix": "exchange values through shared memory", "alloca": "use an array of fixed size",
    "stacksave": "use an array of fixed size", "stackrestore": "use an array of fixed size",
    "clusterlaunchcontrol": "clusters have no portable form",
}  # fmt: skip


def _refuse(low: RoutineLowering, ins: Instruction) -> None:
    raise low.fail(f"{ins.text} is not portable", _HINTS[ins.op])


class _Anything(frozenset[str]):
    def __contains__(self, _: object) -> bool:
        return True


LOWERINGS.update({name: InstructionLowering(_refuse, _Anything(), True, (0, 99), False) for name in _HINTS})

_ASYNC: Final = frozenset({"async", "ca", "cg", "shared", "global", "commit_group", "wait_group", "wait_all"})


def _cp(low: RoutineLowering, ins: Instruction) -> None:
    """An asynchronous copy is a load and a store; what waits for it has nothing to wait for."""
    mods = ins.mods
    if not mods or mods[0] != "async" or any(m not in _ASYNC and "::" not in m for m in mods):
        raise low.fail(f"{ins.text} is not portable", "copy with loads and stores")
    if {"commit_group", "wait_group", "wait_all"} & set(mods):
        return
    size = ins.args[2] if len(ins.args) > 2 else None
    if not isinstance(size, Number) or size.value not in (4, 8, 16):
        raise low.fail("cp.async copies 4, 8 or 16 bytes")
    where, source = address(low, ins.args[0]), address(low, ins.args[1])
    space = space_of(tuple(m for m in mods[1:] if m.startswith("global")))
    values = [low.code.temp(_I32) for _ in range(size.value // 4)]
    limit = ins.args[3] if len(ins.args) > 3 and not any("cache_hint" in m for m in mods) else None
    if limit is None:
        access(low, "load", space, source, values, DType.U32)
    else:
        _partial(low, space, source, values, low.read(limit, _I32))
    access(low, "store", Space.SHARED, where, values, DType.U32)


LOWERINGS["cp"] = InstructionLowering(_cp, _Anything(), True, (0, 9), False)


def _partial(low: RoutineLowering, space: Space, source: tuple[int, int], values: list[int], limit: int) -> None:
    """The first ``limit`` bytes, zeros after them: words that lie past it are not read."""
    for k, value in enumerate(values):
        low.emit("mov", [value], [low.const(_I32, 0)])
        body, after = low.new_block(), low.new_block()
        low.end("cbr", [body, after], ins=[low.op("lt_u", _PRED, low.const(_I32, 4 * k), limit)])
        low.current = low.code.parts[body]
        access(low, "load", space, (source[0], source[1] + 4 * k), [value], DType.U32)
        bits = low.op("shl", _I32, low.op("sub", _I32, limit, low.const(_I32, 4 * k)), low.const(_I32, 3))
        keep = low.op("bfe_u", _I32, low.const(_I32, -1), low.const(_I32, 0), low.op("min_u", _I32, bits, low.const(_I32, 32)))
        low.emit("and", [value], [value, keep])
        low.start(after)
