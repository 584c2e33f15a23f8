"""Kernels that each exercise one part of an emitter, at every value where a result changes: edges of memories, integers, warps, atomics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from tests.support.wis_kernels import Bytes, Case
from wis.kernel.text import parse_kernel

__all__ = ["PROBES"]

_EDGE: Final = 21  # bytes of the buffers whose edges are probed: no multiple of any access but a byte's
_WIDTHS: Final = {"u8": 1, "u16": 2, "u32": 4, "u64": 8, "u32x2": 8, "u32x4": 16}
_SIGNED: Final = {"i16": np.int16, "i32": np.int32, "i64": np.int64}


def _case(
    head: str, regs: str, code: Sequence[str], params: Sequence[Bytes | int], threads: int, grid: tuple[int, int, int] = (1, 1, 1),
    block: tuple[int, int, int] | None = None,
) -> Case:  # fmt: skip
    """``code``: lines; one that ends with ``:`` starts the block of code of that number."""
    lines = [f"block {line[:-1]}" if line.endswith(":") else f"  {line}" for line in ("0:", *code)]
    text = "\n".join(["kernel 2 probe", "math strict", f"threads {threads}", *head.split(";"), f"regs {regs}", *lines, ""])
    return Case(parse_kernel(text), grid, block or (threads, 1, 1), 0, tuple(params))


def _noise(nbytes: int, seed: int = 1) -> Bytes:
    return np.random.default_rng(seed).integers(1, 255, nbytes).astype(np.uint8)


def _place(memory: str, at: str) -> list[str]:
    """What is done before an access of ``memory`` at offset ``at``; the address is r3 then."""
    return [f"r3 = mov {at}"] if memory != "arena" else ["r3 = addr(p0)", f"r3 = add r3, {at}"]


def loads(memory: str) -> Case:
    """Every width at every offset around the end of a memory: what was loaded, or zeros and a trap."""
    threads, out, code = 40, 0, ["r0 = special(tid.x)", "r1 = zext r0", "r2 = const(8)", "r2 = mul r1, r2"]
    if memory in ("s0", "local"):
        code.append("r3 = const(0)")
        for i in range(20):
            code += [f"r7 = const({3 * i + 1})", f"store({memory} u8 +{i}) r3, r7"]
    if memory == "s0":
        code += ["bar 1", "1:"]
    for kind, size in _WIDTHS.items():
        count = int(kind.partition("x")[2] or 1)
        values = [f"r{(6 if size == 8 and count == 1 else 7) + i}" for i in range(count)]
        code += [*_place(memory, "r1"), f"{', '.join(values)} = load({memory} {kind}) r3"]
        for value in values:
            code.append(f"store(p1 {'u64' if value == 'r6' else 'u32'} +{out}) r2, {value}")
            out += 8 * threads
    head = f"param buf u8 rw;param buf u64 rw;{'shared u8[24];' if memory == 's0' else ''}{'local 20;' if memory == 'local' else ''}"
    buffers = [_noise(_EDGE), np.zeros(out, np.uint8)]
    return _case(head.rstrip(";"), "i32 i64 i64 i64 i64 i64 i64 i32 i32 i32 i32", [*code, "ret"], buffers, threads)


def stores(memory: str, kind: str) -> Case:
    """A width at every offset around the end, each by a block of its own, so that no two stores race."""
    given = ", ".join(["r2" if kind == "u64" else "r4"] * int(kind.partition("x")[2] or 1))
    code = ["r0 = special(ctaid.x)", "r1 = zext r0", "r2 = const(81985529216486895)", "r4 = const(19088743)", *_place(memory, "r1")]
    code += [f"store({memory} {kind}) r3, {given}", "ret"]
    return _case("param buf u8 rw", "i32 i64 i64 i64 i32", code, [_noise(_EDGE)], 1, (26, 1, 1))


def updates(memory: str) -> Case:
    """Atomics at every offset around the end."""
    code = ["r0 = special(ctaid.x)", "r1 = zext r0", "r2 = const(3)", "r4 = const(5)", *_place(memory, "r1")]
    code += [f"red(add {memory} u32) r3, r4", f"r2 = atom(add {memory} u64) r3, r2", "ret"]
    return _case("param buf u8 rw", "i32 i64 i64 i64 i32", code, [_noise(_EDGE)], 1, (26, 1, 1))


def elements() -> Case:
    """Element-indexed loads and stores before and behind the last whole element."""
    code = ["r0 = special(tid.x)", "r1 = zext r0", "r2 = ld(p0 u32) r1", "r3 = ld(p0 u64) r1", "r2 = add r2, r0", "st(p1 u32) r1, r2"]
    code += ["r4 = const(16)", "r4 = add r1, r4", "r4 = ld(p0 u8) r4", "st(p2 u64) r1, r3", "st(p3 u8) r1, r4", "ret"]
    buffers = [_noise(_EDGE), *(np.zeros(n, np.uint8) for n in (_EDGE, _EDGE, _EDGE))]
    return _case("param buf u32 r;param buf u32 w;param buf u64 w;param buf u8 w", "i32 i64 i32 i64 i64", code, buffers, 24)


def _corners(kind: str) -> Bytes:
    """Pairs of values at which integers change their behaviour, as bytes: all the first ones, then all the second ones."""
    bits = int(kind[1:])
    ends = [0, 1, 2, 7, bits - 1, bits, (1 << bits - 1) - 1, 1 << bits - 1, (1 << bits) - 1, (1 << bits) - 2, 1 << bits // 2]
    values = np.array([v & (1 << bits) - 1 for v in ends], np.uint64).astype(f"u{bits // 8}")
    first, second = np.repeat(values, len(values)), np.tile(values, len(values))
    return np.concatenate([first, second]).view(np.uint8)


_BINARY: Final = (
    "add sub mul and or xor min_s min_u max_s max_u div_s div_u rem_s rem_u mul_hi_s mul_hi_u shl shr_s shr_u".split(),
    "eq ne lt_s lt_u le_s le_u".split(),
)
_UNARY: Final = "not neg abs brev".split()


def integers(kind: str) -> Case:
    """Every integer op of a width on pairs of corner values."""
    data = _corners(kind)
    size = int(kind[1:]) // 8
    n, out = len(data) // size // 2, 0
    code = [
        "r0 = special(tid.x)",
        "r1 = zext r0",
        f"r2 = const({n})",
        "r2 = add r1, r2",
        f"r3 = ld(p0 {kind}) r1",
        f"r4 = ld(p0 {kind}) r2",
    ]
    code += ["r10 = const(8)", "r10 = mul r1, r10"]

    def keep(store: str, register: str) -> None:
        nonlocal out
        code.append(f"store(p1 {store} +{out}) r10, {register}")
        out += 8 * n

    for name in _BINARY[0]:
        code.append(f"r6 = {name} r3, r4")
        keep(kind, "r6")
    for name in _BINARY[1]:
        code.append(f"r7 = {name} r3, r4")
        keep("bool", "r7")
    for name in _UNARY:
        code.append(f"r6 = {name} r3")
        keep(kind, "r6")
    for name in ("popc", "clz"):
        code.append(f"r8 = {name} r3")
        keep("u32", "r8")
    if kind != "i64":
        code += ["r9 = sext r3"]
        keep("i64", "r9")
        code += ["r9 = zext r3"]
        keep("i64", "r9")
    code += ["r11 = s2f r3"]
    keep("f64", "r11")
    code += ["r11 = u2f r3"]
    keep("f64", "r11")
    return _case(
        f"param buf {kind} r;param buf u64 w", f"i32 i64 i64 {kind} {kind} i32 {kind} pred i32 i64 i64 f64", [*code, "ret"],
        [data, np.zeros(out, np.uint8)], n,
    )  # fmt: skip


def saturation() -> Case:
    """Floats to integers of every width, around the least and greatest of them."""
    edges = [0.0, -0.0, 0.5, -0.5, np.nan, np.inf, -np.inf, 1e30, -1e30]
    edges += [s * (2.0**b + d) for b in (15, 16, 31, 32, 63, 64) for s in (1, -1) for d in (0, -1, 1)]
    data = np.array(edges, np.float64)
    n, out = len(data), 0
    code = ["r0 = special(tid.x)", "r1 = zext r0", "r2 = ld(p0 f64) r1", "r3 = const(8)", "r3 = mul r1, r3", "r7 = cvt r2"]
    for register, kind in ((4, "i16"), (5, "i32"), (6, "i64")):
        for name, source in (("f2s", "r2"), ("f2u", "r2"), ("f2s", "r7"), ("f2u", "r7")):
            code += [f"r{register} = {name} {source}", f"store(p1 {kind} +{out}) r3, r{register}"]
            out += 8 * n
    regs = "i32 i64 f64 i64 i16 i32 i64 f32"
    return _case("param buf f64 r;param buf u64 w", regs, [*code, "ret"], [data.view(np.uint8), np.zeros(out, np.uint8)], n)


_SHUFFLES: Final = [
    (mode, by, limit)
    for mode, whole, eighths in (("idx", 31, 0x1807), ("up", 0, 0x1800), ("down", 31, 0x1807), ("bfly", 31, 0x1807))
    for by, limit in ((1, whole), (16, whole), (3, eighths))
]
_FOLDS: Final = ("add unsigned", "min unsigned", "max unsigned", "min signed", "max signed", "and unsigned", "xor unsigned")


def _warp(threads: int, divergent: bool) -> Case:
    """Shuffles of every mode and distance, votes, matches and folds, in whole warps and one that is not, or in some threads only."""
    code = ["r0 = special(tid.x)", "r1 = zext r0", "r2 = ld(p0 i32) r1", "r3 = const(-1)", "r10 = const(4)", "r10 = mul r1, r10"]
    out = 0

    def keep(register: str, store: str = "u32") -> None:
        nonlocal out
        code.append(f"store(p1 {store} +{out}) r10, {register}")
        out += 4 * threads

    if divergent:
        code += ["r4 = const(21)", "r8 = lt_u r0, r4", "cbr r8, 1, 2", "1:"]
    for mode, by, limit in _SHUFFLES[:: 3 if divergent else 1]:
        code += [f"r4 = const({by})", f"r5 = const({limit})", f"r6, r8 = shfl({mode}) r2, r4, r5, r3"]
        keep("r6")
        keep("r8", "bool")
    code += ["r4 = const(3)", "r4 = and r2, r4", "r5 = const(0)", "r8 = eq r4, r5"]
    for name in ("all", "any", "uni"):
        code.append(f"r9 = vote({name}) r8, r3")
        keep("r9", "bool")
    code.append("r6 = ballot r8, r3")
    keep("r6")
    code.append("r6 = match_any r4, r3")
    keep("r6")
    code.append("r6, r9 = match_all r4, r3")
    keep("r6")
    keep("r9", "bool")
    for fold in _FOLDS[:: 3 if divergent else 1]:
        code.append(f"r6 = redux({fold}) r2, r3")
        keep("r6")
    code += ["br 2", "2:", "ret"] if divergent else ["ret"]
    data = np.concatenate([_noise(2 * threads), 255 - _noise(2 * threads)])
    buffers = [data, np.zeros(out, np.uint8)]
    return _case("param buf i32 r;param buf u32 w", "i32 i64 i32 i32 i32 i32 i32 i32 pred pred i64", code, buffers, threads)


def atomics(kind: str, memory: str) -> Case:
    """Every atomic function on pairs of corner values: the old value and the new one."""
    data = _corners(kind[0].replace("u", "i") + kind[1:])
    size = int(kind[1:]) // 8
    n, out = len(data) // size // 2, 0
    held = f"i{kind[1:]}"
    code = [
        "r0 = special(tid.x)",
        "r1 = zext r0",
        f"r2 = const({n})",
        "r2 = add r1, r2",
        f"r3 = ld(p0 {kind}) r1",
        f"r4 = ld(p0 {kind}) r2",
    ]
    code += [f"r5 = const({size})", "r5 = mul r1, r5"]
    functions = ["add", "min", "max", "exch", "cas"] + (["and", "or", "xor"] if kind[0] == "u" else [])
    functions += ["inc", "dec"] if kind == "u32" else []
    for function in functions:
        given = "r4, r3" if function == "cas" else "r4"
        code += [f"store({memory} {kind}) r5, r3", f"r6 = atom({function} {memory} {kind}) r5, {given}", f"r7 = load({memory} {kind}) r5"]
        for register in ("r6", "r7"):
            code.append(f"store(p2 {kind} +{out}) r5, {register}")
            out += size * n
    head = f"param buf {kind} r;param buf {kind} rw;param buf {kind} w" + (f";shared {kind}[{n}]" if memory == "s0" else "")
    buffers = [data, np.zeros(n * size, np.uint8), np.zeros(out, np.uint8)]
    return _case(head, f"i32 i64 i64 {held} {held} i64 {held} {held}", [*code, "ret"], buffers, n)


def coordinates() -> Case:
    """Where a thread is in its block and the grid, in three dimensions; a trap in several blocks and threads, of which the first counts."""
    names = [f"{what}.{axis}" for what in ("tid", "ntid", "ctaid", "nctaid") for axis in "xyz"]
    code = ["r0 = const(0)"]
    for i, name in enumerate(names):
        code += [f"r1 = special({name})", f"r2 = const({7 + 2 * i})", "r0 = mul r0, r2", "r0 = add r0, r1"]
    linear = ["r3 = const(0)"]
    for what, size in (
        ("ctaid.z", ""),
        ("ctaid.y", "nctaid.y"),
        ("ctaid.x", "nctaid.x"),
        ("tid.z", "ntid.z"),
        ("tid.y", "ntid.y"),
        ("tid.x", "ntid.x"),
    ):
        linear += [*([f"r1 = special({size})", "r3 = mul r3, r1"] if size else []), f"r1 = special({what})", "r3 = add r3, r1"]
    code += [*linear, "r4 = zext r3", "st(p0 u32) r4, r0", "ret"]
    blocks, threads = 2 * 3 * 4, 3 * 2 * 2
    return _case(
        "param buf u32 w", "i32 i32 i32 i32 i64", code, [np.zeros(4 * (blocks * threads - 30), np.uint8)], threads, (2, 3, 4), (3, 2, 2)
    )


def turns(barrier: bool) -> Case:
    """A loop of more than 65,535 instructions a thread; or a short one whose threads read what others stored before a barrier."""
    code = [
        "r0 = special(tid.x)",
        "r1 = zext r0",
        "r2 = const(0)",
        "r3 = const(1)",
        f"r4 = const({70 if barrier else 7000})",
        "r5 = mov r0",
        "r9 = const(127)",
        "br 1",
    ]
    code += ["1:", "st(s0 u32) r1, r5", "bar 2" if barrier else "br 2", "2:"]
    code += ["r6 = add r0, r3", "r6 = and r6, r9", "r6 = mov r6" if barrier else "r6 = mov r0", "r7 = zext r6", "r8 = ld(s0 u32) r7"]
    code += ["bar 3" if barrier else "br 3", "3:", "r5 = add r8, r2", "r2 = add r2, r3", "r10 = lt_u r2, r4", "cbr r10, 1, 4", "4:"]
    code += ["st(p0 u32) r1, r5", "ret"]
    return _case(
        "param buf u32 w;shared u32[128]", "i32 i64 i32 i32 i32 i32 i32 i64 i32 i32 pred", code, [np.zeros(512, np.uint8)], 128, (2, 1, 1)
    )


def roundings() -> Case:
    """A product and a sum, each rounded: contracted into one they would be other numbers."""
    data = np.random.default_rng(3).standard_normal(3 * 96)
    code = ["r0 = special(tid.x)", "r1 = zext r0", "r2 = const(96)", "r2 = add r1, r2", "r3 = const(192)", "r3 = add r1, r3"]
    for at, kind in ((4, "f32"), (8, "f64")):
        code += [f"r{at + i} = ld(p0 f64) r{1 + i}" if at == 8 else f"r{at + i} = ld(p1 f32) r{1 + i}" for i in range(3)]
        code += [f"r{at} = mul r{at}, r{at + 1}", f"r{at} = add r{at}, r{at + 2}", f"st(p{2 if at == 8 else 3} {kind}) r1, r{at}"]
    buffers = [data.view(np.uint8), data.astype(np.float32).view(np.uint8), np.zeros(768, np.uint8), np.zeros(384, np.uint8)]
    head = "param buf f64 r;param buf f32 r;param buf f64 w;param buf f32 w"
    return _case(head, "i32 i64 i64 i64 f32 f32 f32 f32 f64 f64 f64", [*code, "ret"], buffers, 96)


def apart() -> Case:
    """One thread waits at another barrier than all the rest: no barrier is complete, which is a trap."""
    code = ["r0 = special(tid.x)", "r1 = zext r0", "r2 = const(0)", "r3 = eq r0, r2", "cbr r3, 1, 2", "1:", "sync 3, 1", "2:", "bar 3"]
    code += ["3:", "r4 = const(9)", "st(p0 u32) r1, r4", "ret"]
    return _case("param buf u32 w", "i32 i64 i32 pred i32", code, [np.zeros(160, np.uint8)], 40)


PROBES: Final[dict[str, Callable[[], Case]]] = {
    **{f"loads {memory}": (lambda memory=memory: loads(memory)) for memory in ("p0", "s0", "local", "arena")},
    **{f"stores {m} {kind}": (lambda m=m, kind=kind: stores(m, kind)) for m in ("p0", "arena") for kind in ("u8", "u32", "u64", "u32x4")},
    **{f"updates {memory}": (lambda memory=memory: updates(memory)) for memory in ("p0", "arena")},
    "elements": elements,
    **{f"integers {kind}": (lambda kind=kind: integers(kind)) for kind in _SIGNED},
    "saturation": saturation, "roundings": roundings, "barriers apart": apart,
    "warp 64": lambda: _warp(64, False), "warp 45": lambda: _warp(45, False), "warp apart": lambda: _warp(40, True),
    **{f"atomics {kind} {m}": (lambda kind=kind, m=m: atomics(kind, m)) for kind in ("u32", "i32", "u64", "i64") for m in ("p1", "s0")},
    "coordinates": coordinates, "turns": lambda: turns(False), "turns and barriers": lambda: turns(True),
}  # fmt: skip
"""Cases by name."""
