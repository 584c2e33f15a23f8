"""Work of a program: exact element-instructions, a pure function of the bound program and so equal on every back end.

One element-instruction is one scalar operation of the definition. By kind, with n(x) the number of elements of x:

- MAP, IOTA, RANDOM, SCAN: n(out)
- REDUCE: n(in) (every element is folded in once), and at least n(out)
- MATMUL [..., m, k] x [..., k, n]: 2 * batch * m * n * k, and at least n(out)
- CONV and its gradients: 2 * n(y) * (c / groups) * positions of the kernel, where y is the convolution's result, and at least n(out)
- POOL: n(y) * positions of the kernel, where y is the pooled tensor, and at least n(out)
- INDEX: the number of elements moved: n(out) for gather and index, n(index) for scatter, n(src) for index_put
- SORT: n(in) * ceil(log2(size along dim)) (at least n(in)) for sort and topk; n(values) * ceil(log2(n + 1)) for search_sorted;
  n(in) * max(rank, 1) for nonzero
- COARSE: a fixed number of scalar operations an element (the table below), sdpa 2 * b * h * m * n * (d + e) + 5 * b * h * m * n, its
  gradient 2 * b * h * m * n * (3 * d + 2 * e) + 8 * b * h * m * n. The number does not depend on whether a back end decomposes.
- LAUNCH: 0 here; a run adds the thread-instructions that its threads executed (chapter 9 of wis/README.md)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from wis.ops import Kind
from wis.program import BoundInstr, BoundProgram, Operand
from wis.windows import window_of

_COARSE_EACH: Final = {
    "softmax": 5,
    "log_softmax": 5,
    "softmax_dx": 4,
    "log_softmax_dx": 4,
    "layer_norm": 8,
    "layer_norm_dx": 11,
    "layer_norm_dwb": 5,
    "gelu": 8,
    "gelu_dx": 12,
    "silu": 4,
    "silu_dx": 7,
    "adamw": 14,
}


def count(bound: BoundProgram) -> int:
    """Element-instructions of the whole program."""
    return sum(count_instr(instr) for instr in bound.code)


def count_instr(instr: BoundInstr) -> int:
    """Element-instructions of one instruction."""
    return _BY_KIND[instr.op.kind](instr)


def _in(instr: BoundInstr, number: int) -> Operand:
    x = instr.ins[number]
    assert isinstance(x, Operand), "the verifier saw to it"
    return x


def _out(instr: BoundInstr) -> int:
    return instr.outs[0].numel


def _reduce(instr: BoundInstr) -> int:
    return max(_in(instr, 0).numel, _out(instr))


def _matmul(instr: BoundInstr) -> int:
    return _out(instr) * max(2 * _in(instr, 0).shape[-1], 1)


def _conv(instr: BoundInstr) -> int:
    result = instr.outs[0] if instr.op.name == "conv" else _in(instr, 0)
    weights = instr.outs[0] if instr.op.name == "conv_dw" else _in(instr, 1)
    return max(2 * result.numel * weights.shape[1] * window_of(instr).n_positions, _out(instr))


def _pool(instr: BoundInstr) -> int:
    result = _in(instr, 0) if instr.op.name == "avg_pool_dx" else instr.outs[0]
    return max(result.numel * window_of(instr).n_positions, _out(instr))


def _index(instr: BoundInstr) -> int:
    if instr.op.name == "scatter":
        return _in(instr, 1).numel
    return _in(instr, 0).numel if instr.op.name == "index_put" else _out(instr)


def _sort(instr: BoundInstr) -> int:
    x = _in(instr, 0)
    if instr.op.name == "search_sorted":
        return _in(instr, 1).numel * max(x.shape[-1].bit_length(), 1)
    if instr.op.name == "nonzero":
        return x.numel * max(len(x.shape), 1)
    return x.numel * max((x.shape[instr.attrs[0]] - 1).bit_length(), 1)


def _coarse(instr: BoundInstr) -> int:
    if instr.op.name in _COARSE_EACH:
        return _COARSE_EACH[instr.op.name] * _in(instr, 0).numel
    backward = instr.op.name == "sdpa_dx"
    q, k, v = (_in(instr, i + backward).shape for i in range(3))
    scores = q[0] * q[1] * q[2] * k[2]
    return scores * (2 * (3 * q[3] + 2 * v[3]) + 8 if backward else 2 * (q[3] + v[3]) + 5)


_BY_KIND: Final[dict[Kind, Callable[[BoundInstr], int]]] = {
    Kind.MAP: _out,
    Kind.IOTA: _out,
    Kind.RANDOM: _out,
    Kind.SCAN: _out,
    Kind.REDUCE: _reduce,
    Kind.MATMUL: _matmul,
    Kind.CONV: _conv,
    Kind.POOL: _pool,
    Kind.INDEX: _index,
    Kind.SORT: _sort,
    Kind.COARSE: _coarse,
    Kind.LAUNCH: lambda instr: 0,
}
