"""Single kernel ops on arrays: a kernel that loads one element for each input, applies the op, stores each result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from wis.dtypes import DType
from wis.kernel.interpret import Launch, launch
from wis.kernel.model import KERNEL_VERSION, Access, Block, BufferParam, Kernel, Math, Op, RegType, Ret, Space, Special
from wis.kernel.ops import BY_NAME
from wis.kernel.verify import verify_kernel

__all__ = ["MEMORY", "edge_values", "one_op", "run_op"]

Array = npt.NDArray[Any]
MEMORY = {
    RegType.PRED: DType.BOOL,
    RegType.I16: DType.I16,
    RegType.I32: DType.I32,
    RegType.I64: DType.I64,
    RegType.F16: DType.F16,
    RegType.BF16: DType.BF16,
    RegType.F32: DType.F32,
    RegType.F64: DType.F64,
}


def one_op(name: str, outs: Sequence[RegType], ins: Sequence[RegType], attrs: tuple[int, ...] = (), math: Math = Math.NATIVE) -> Kernel:
    """Parameters: a buffer an input, a buffer an output; thread t of block b works on element 256 b + t."""
    n = len(ins)
    regs = [RegType.I32, RegType.I64, RegType.I64, *ins, *outs]
    code = [
        Op(BY_NAME["special"].code, (0,), (), (Special.CTAID_X,)),
        Op(BY_NAME["sext"].code, (1,), (0,)),
        Op(BY_NAME["const"].code, (2,), (), (256,)),
        Op(BY_NAME["mul"].code, (1,), (1, 2)),
        Op(BY_NAME["special"].code, (0,), (), (Special.TID_X,)),
        Op(BY_NAME["sext"].code, (2,), (0,)),
        Op(BY_NAME["add"].code, (1,), (1, 2)),
    ]
    code += [Op(BY_NAME["ld"].code, (3 + i,), (1,), (Space.GLOBAL, i, MEMORY[t])) for i, t in enumerate(ins)]
    code.append(Op(BY_NAME[name].code, tuple(range(3 + n, 3 + n + len(outs))), tuple(range(3, 3 + n)), attrs))
    code += [Op(BY_NAME["st"].code, (), (1, 3 + n + i), (Space.GLOBAL, n + i, MEMORY[t])) for i, t in enumerate(outs)]
    params = [*(BufferParam(MEMORY[t], Access.READ) for t in ins), *(BufferParam(MEMORY[t], Access.WRITE) for t in outs)]
    return Kernel(KERNEL_VERSION, "one", math, 256, tuple(params), (), tuple(map(int, regs)), (Block(tuple(code), Ret()),))


def run_op(kernel: Kernel, outs: Sequence[RegType], ins: Sequence[Array]) -> list[Array]:
    """The results for whole arrays of one length."""
    n = len(ins[0])
    blocks = -(-n // 256)
    padded = [np.concatenate([x, np.zeros(blocks * 256 - n, x.dtype)]) for x in ins]
    found = [np.zeros(blocks * 256 * MEMORY[t].itemsize, np.uint8) for t in outs]
    outcome = launch(verify_kernel(kernel), Launch((blocks, 1, 1), (256, 1, 1)), [*(x.view(np.uint8) for x in padded), *found])
    assert not outcome.trapped
    return [x.view(MEMORY[t].numpy)[:n] for x, t in zip(found, outs, strict=True)]


_SMALL_FLOATS = [0.0, 1.0, 1.5, 2.0, 3.0, 0.1, 1 / 3, 1e-3, 65504.0, 65519.0, 65520.0, 6e-8, 2.0**-24, 2.0**-25, 2.0**24 + 1]


def edge_values(type_: RegType, n: int, seed: int) -> Array:
    """``n`` values: zeros, ones, limits, denormals, infinities, NaN, neighbours of powers of two, and random bits."""
    rng = np.random.default_rng(seed)
    if type_ is RegType.PRED:
        return rng.integers(0, 2, n).astype(np.bool_)
    kind = np.dtype(f"i{type_.bits // 8}")
    info = np.iinfo(kind)
    raw = rng.integers(info.min, info.max, n, kind, endpoint=True)
    target = MEMORY[type_].numpy
    if type_ in (RegType.I16, RegType.I32, RegType.I64):
        known = [0, 1, -1, 2, 7, 31, 32, 33, 63, 64, 255, 256, info.max, info.min, info.max - 1, info.min + 1, info.max // 3]
        values = np.array(known, kind)
        small = rng.integers(-70, 300, n).astype(kind)
        return np.where(rng.random(n) < 0.3, small, np.where(rng.random(n) < 0.4, rng.choice(values, n), raw)).astype(kind)
    least = np.array([1, 2, 3], kind).view(target)
    with np.errstate(all="ignore"):
        ends = np.array([np.inf, -np.inf, np.nan]).astype(target)
        values = np.concatenate([np.array(_SMALL_FLOATS).astype(target), least, -least, ends])
        values = np.concatenate([values, (-values.astype(np.float64)).astype(target)])
        top = {RegType.F16: 0x7BFF, RegType.BF16: 0x7F7F, RegType.F32: 0x7F7FFFFF, RegType.F64: 0x7FEFFFFFFFFFFFFF}[type_]
        one = np.array([1.0]).astype(target).view(kind)[0]
        near = np.array([top, top - 1, top - 2, one - 1, one + 1, (int(one) * 2) // 2 + 3], kind).view(target)
        values = np.concatenate([values, near, rng.choice(near, 4), (rng.standard_normal(40) * 3).astype(target)])
        middle = (rng.standard_normal(n) * np.exp(rng.standard_normal(n) * 3)).astype(target)
    chosen = rng.random(n)
    result = raw.view(target).copy()
    result[chosen < 0.4] = rng.choice(values, int((chosen < 0.4).sum()))
    result[chosen > 0.7] = middle[chosen > 0.7]
    return result
