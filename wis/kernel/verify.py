"""The verifier of the kernel tier. ``verify_kernel`` returns a new value, ``VerifiedKernel``, that back ends and the interpreter require.

Rules (the names in findings are in brackets):

 1. the version is known; name, parameters, registers, blocks, ops, threads and shared bytes are within the limits [version, limit]
 2. every op code, register, register type, parameter, shared array, block, element type and special value exists [op, register, type,
    reference]
 3. ops have the registers and attributes that the table names, of the types that its rule names [arity, type]
 4. loads are from readable, stores to writable buffers, of element types that the register holds [access, type]
 5. there is a block; every block can be reached, and from every block a thread can end [flow]
 6. the graph is reducible: every loop is entered at its head only [flow]
 7. a register is written on every path before it is read [undefined]
 8. a barrier stands only where all threads of a block arrive: not between a branch on a varying register and the place where its paths meet
    [barrier]

Not checked, because it cannot do harm: indices (outside: a load gives 0, a store is dropped, the trap bit is set), time (fuel ends a run).
The slice certificate says whether a grid may be run in pieces; see ``Certificate``. May live here: rules. May not: meaning (interpret).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from wis.dtypes import DType
from wis.encoding import digest
from wis.errors import Finding, VerifyError
from wis.kernel.encoding import encode_kernel
from wis.kernel.flow import Flow, Uniformity, analyse, definitely_assigned, uniformity
from wis.kernel.limits import KERNEL_LIMITS, KernelLimits
from wis.kernel.model import (
    KERNEL_VERSION,
    Access,
    Bar,
    BufferParam,
    Cbr,
    Kernel,
    Math,
    Op,
    RegType,
    ScalarParam,
    Space,
    Special,
    successors,
)
from wis.kernel.ops import BY_CODE, KernelOp, Sig

__all__ = ["Certificate", "Site", "VerifiedKernel", "verify_kernel", "MEMORY_TYPES", "TRAPPING"]

TRAPPING: Final = frozenset({Sig.LOAD, Sig.STORE, Sig.BYTES_LOAD, Sig.BYTES_STORE, Sig.ATOM, Sig.RED, Sig.RAISE})
"""Ops of these rules may trap."""

_INTS: Final = frozenset({RegType.I16, RegType.I32, RegType.I64})
_FLOATS: Final = frozenset({RegType.F32, RegType.F64})
_ANY_FLOAT: Final = _FLOATS | {RegType.F16, RegType.BF16}

MEMORY_TYPES: Final[dict[DType, frozenset[RegType]]] = {
    DType.BOOL: frozenset({RegType.PRED}),
    DType.U8: frozenset({RegType.I16, RegType.I32, RegType.I64}),
    DType.I8: frozenset({RegType.I16, RegType.I32, RegType.I64}),
    DType.U16: frozenset({RegType.I16, RegType.I32, RegType.I64}),
    DType.I16: frozenset({RegType.I16, RegType.I32, RegType.I64}),
    DType.U32: frozenset({RegType.I32, RegType.I64}),
    DType.I32: frozenset({RegType.I32, RegType.I64}),
    DType.U64: frozenset({RegType.I64}),
    DType.I64: frozenset({RegType.I64}),
    DType.F16: frozenset({RegType.F16}),
    DType.BF16: frozenset({RegType.BF16}),
    DType.F32: frozenset({RegType.F32}),
    DType.F64: frozenset({RegType.F64}),
}
"""Registers that an element loads into (integers extend by their own signedness) and is stored from (low bits)."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """Whether the blocks of a grid may run in pieces, in any order, with one result.

    They may when no buffer is both stored to and loaded from: then no block can see what another did. ``in_out``: the buffers that are
    both; a launch may still be cut when those are updated element by element, which only the maker of the kernel knows. The certificate is
    about one launch whose buffer arguments do not overlap.
    """

    sliceable: bool
    in_out: tuple[int, ...]


class Site(NamedTuple):
    """An op that may trap: its block and place in ``flat``, and its source line (0: unknown)."""

    block: int
    op: int
    line: int


@dataclass(frozen=True, slots=True)
class VerifiedKernel:
    """A kernel that keeps every rule, with what the verifier found out about it.

    ``kernel`` is as given; ``flat`` is it with calls inlined (the definition runs this); ``core`` is ``flat`` with only core ops, block for
    block, what back ends compile. ``costs[b]``: thread-instructions of block b (of ``flat``, so expansion changes no count). ``sites``: ops
    of ``flat`` that may trap, in order of code; those of ``core`` come in the same order. ``flow`` and ``uniformity`` are about ``core``.
    """

    kernel: Kernel
    flat: Kernel
    core: Kernel
    digest: bytes
    flow: Flow
    uniformity: Uniformity
    certificate: Certificate
    costs: tuple[int, ...]
    sites: tuple[Site, ...]


class _Report:
    def __init__(self, findings_max: int) -> None:
        self.findings: list[Finding] = []
        self._max = findings_max

    def __call__(self, rule: str, place: str, text: str) -> None:
        if len(self.findings) < self._max:
            self.findings.append(Finding(rule, place, text))

    def stop(self) -> None:
        """End the verification when anything was found: later passes rely on what earlier ones checked."""
        if self.findings:
            raise VerifyError(self.findings)


def verify_kernel(kernel: Kernel, limits: KernelLimits = KERNEL_LIMITS) -> VerifiedKernel:
    """Check every rule. Raises VerifyError with all findings of the first pass that has any."""
    report = _Report(limits.findings_max)
    _check_sizes(kernel, limits, report)
    _check_references(kernel, report)
    report.stop()
    for b, block in enumerate(kernel.blocks):
        for i, op in enumerate(block.code):
            _check_op(kernel, op, f"block {b} op {i}", report)
        if isinstance(block.end, Cbr) and kernel.regs[block.end.pred] != RegType.PRED:
            report("type", f"block {b} end", f"cbr takes a pred, not {_text(kernel, block.end.pred)}")
    flow = analyse(kernel)
    _check_flow(kernel, flow, report)
    report.stop()
    _check_defined(kernel, flow, report)
    same = uniformity(kernel, flow)
    for b, block in enumerate(kernel.blocks):
        if isinstance(block.end, Bar) and b in same.divergent:
            report("barrier", f"block {b} end", "only some threads of a block may arrive here")
    report.stop()
    costs = tuple(len(block.code) + 1 for block in kernel.blocks)
    sites = tuple(
        Site(b, i, 0) for b, block in enumerate(kernel.blocks) for i, op in enumerate(block.code) if BY_CODE[op.op].sig in TRAPPING
    )
    return VerifiedKernel(kernel, kernel, kernel, digest(encode_kernel(kernel)), flow, same, _certificate(kernel), costs, sites)


def _check_sizes(kernel: Kernel, limits: KernelLimits, report: _Report) -> None:
    if kernel.version not in (1, KERNEL_VERSION):
        report("version", "kernel", f"version {kernel.version} is not {KERNEL_VERSION}")
    if kernel.math not in Math._value2member_map_:
        report("reference", "kernel", f"{kernel.math} is not a math policy")
    for what, count, least, most in (
        ("characters of name", len(kernel.name), 1, limits.name_max),
        ("parameters", len(kernel.params), 0, limits.params_max),
        ("registers", len(kernel.regs), 0, limits.regs_max),
        ("blocks", len(kernel.blocks), 1, limits.blocks_max),
        ("ops", sum(len(block.code) for block in kernel.blocks), 0, limits.ops_max),
        ("threads", kernel.threads_max, 1, limits.threads_max),
        ("shared arrays", len(kernel.shared), 0, limits.params_max),
    ):
        if not least <= count <= most:
            report("limit", "kernel", f"{count} {what}, accepted is {least} to {most}")
    if not (kernel.name.isascii() and kernel.name.isidentifier()):
        report("limit", "kernel", f"{kernel.name!r} is not a name: letters, digits and underscores")


def _check_references(kernel: Kernel, report: _Report) -> None:
    for number, type_ in enumerate(kernel.regs):
        if type_ not in RegType._value2member_map_:
            report("type", f"reg {number}", f"{type_} is not a register type")
    for number, param in enumerate(kernel.params):
        if isinstance(param, ScalarParam):
            if param.reg_type not in RegType._value2member_map_:
                report("type", f"param {number}", f"{param.reg_type} is not a register type")
        else:
            if param.dtype not in MEMORY_TYPES:
                report("type", f"param {number}", f"{param.dtype} is not an element type of memory")
            if param.access not in Access._value2member_map_:
                report("reference", f"param {number}", f"{param.access} is not a kind of access")
    total = 0
    for number, array in enumerate(kernel.shared):
        if array.dtype not in MEMORY_TYPES or not 0 < array.n <= KERNEL_LIMITS.shared_bytes_max:
            report("type", f"shared {number}", f"{array.n} elements of type {array.dtype}")
        else:
            total += array.n * DType(array.dtype).itemsize
    if total > KERNEL_LIMITS.shared_bytes_max:
        report("limit", "kernel", f"{total} bytes of shared memory, at most {KERNEL_LIMITS.shared_bytes_max} are accepted")
    for b, block in enumerate(kernel.blocks):
        for i, op in enumerate(block.code):
            place = f"block {b} op {i}"
            if op.op not in BY_CODE:
                report("op", place, f"there is no op with code {op.op}")
            _check_registers(kernel, (*op.outs, *op.ins), place, report)
        if isinstance(block.end, Cbr):
            _check_registers(kernel, (block.end.pred,), f"block {b} end", report)
        for target in successors(block.end):
            if not 0 <= target < len(kernel.blocks):
                report("reference", f"block {b} end", f"block {target} of {len(kernel.blocks)}")


def _check_registers(kernel: Kernel, registers: Sequence[int], place: str, report: _Report) -> None:
    for r in registers:
        if not 0 <= r < len(kernel.regs):
            report("register", place, f"register {r} of {len(kernel.regs)}")


def _text(kernel: Kernel, register: int) -> str:
    return RegType(kernel.regs[register]).text


def _check_op(kernel: Kernel, op: Op, place: str, report: _Report) -> None:
    row = BY_CODE[op.op]
    if (len(op.ins), len(op.outs), len(op.attrs)) != (row.n_ins, row.n_outs, len(row.attrs)):
        report("arity", place, f"{row.name} has {row.n_outs} outputs, {row.n_ins} inputs and {len(row.attrs)} attributes")
        return
    outs, ins = ([RegType(kernel.regs[r]) for r in registers] for registers in (op.outs, op.ins))
    complaint = _memory(kernel, row, op, outs, ins) if row.sig in (Sig.LOAD, Sig.STORE) else _RULES[row.sig](kernel, op, outs, ins)
    if complaint:
        report("access" if complaint.startswith("buffer") else "type", place, f"{row.name}: {complaint}")


Types = list[RegType]


def _same(allowed: frozenset[RegType]) -> Callable[[Kernel, Op, Types, Types], str]:
    def check(kernel: Kernel, op: Op, outs: Types, ins: Types) -> str:
        if len({*outs, *ins}) > 1:
            return f"{_names(outs)} from {_names(ins)}, expected one type"
        return "" if outs[0] in allowed else f"not for {outs[0].text}"

    return check


def _compare(allowed: frozenset[RegType]) -> Callable[[Kernel, Op, Types, Types], str]:
    def check(kernel: Kernel, op: Op, outs: Types, ins: Types) -> str:
        if outs[0] is not RegType.PRED or ins[0] is not ins[1]:
            return f"{_names(outs)} from {_names(ins)}, expected a pred from one type"
        return "" if ins[0] in allowed else f"not for {ins[0].text}"

    return check


def _convert(source: frozenset[RegType], target: frozenset[RegType], fits: Callable[[RegType, RegType], bool]) -> Callable[..., str]:
    def check(kernel: Kernel, op: Op, outs: Types, ins: Types) -> str:
        good = ins[0] in source and outs[0] in target and fits(ins[0], outs[0])
        return "" if good else f"{outs[0].text} from {ins[0].text} is no such conversion"

    return check


def _names(types: Types) -> str:
    return ", ".join(t.text for t in types) or "nothing"


def _const(kernel: Kernel, op: Op, outs: Types, ins: Types) -> str:
    bits = outs[0].bits
    if outs[0] is RegType.PRED:
        return "" if op.attrs[0] in (0, 1) else f"{op.attrs[0]} is not 0 or 1"
    return "" if -(1 << bits - 1) <= op.attrs[0] < 1 << bits - 1 else f"{op.attrs[0]} does not fit {bits} bits, sign-extended"


def _special(kernel: Kernel, op: Op, outs: Types, ins: Types) -> str:
    if op.attrs[0] not in Special._value2member_map_:
        return f"{op.attrs[0]} is not a special value"
    return "" if outs[0] is RegType.I32 else f"gives i32, not {outs[0].text}"


def _param(kernel: Kernel, op: Op, outs: Types, ins: Types) -> str:
    number = op.attrs[0]
    param = kernel.params[number] if 0 <= number < len(kernel.params) else None
    if not isinstance(param, ScalarParam):
        return f"there is no scalar parameter {number}"
    return "" if outs[0] == param.reg_type else f"parameter {number} is {RegType(param.reg_type).text}, not {outs[0].text}"


def _select(kernel: Kernel, op: Op, outs: Types, ins: Types) -> str:
    good = ins[0] is RegType.PRED and ins[1] is ins[2] is outs[0]
    return "" if good else f"{_names(outs)} from {_names(ins)}, expected T from pred, T, T"


def _memory(kernel: Kernel, row: KernelOp, op: Op, outs: Types, ins: Types) -> str:
    space, which, dtype = op.attrs
    if ins[0] is not RegType.I64:
        return f"the index is {ins[0].text}, expected i64"
    value = outs[0] if row.sig is Sig.LOAD else ins[1]
    if dtype not in MEMORY_TYPES or value not in MEMORY_TYPES[DType(dtype)]:
        return f"{value.text} does not hold elements of type {DType(dtype).text if dtype in DType._value2member_map_ else dtype}"
    if space == Space.SHARED:
        if not 0 <= which < len(kernel.shared):
            return f"there is no shared array {which}"
        return "" if kernel.shared[which].dtype == dtype else "a shared array is accessed as its own element type"
    param = kernel.params[which] if space == Space.GLOBAL and 0 <= which < len(kernel.params) else None
    if not isinstance(param, BufferParam):
        return f"there is no memory {which} in space {space}"
    need = Access.READ if row.sig is Sig.LOAD else Access.WRITE
    return "" if param.access & need else f"buffer parameter {which} is not declared for this"


_RULES: Final[dict[Sig, Callable[[Kernel, Op, Types, Types], str]]] = {
    Sig.CONST: _const,
    Sig.MOV: _same(frozenset(RegType)),
    Sig.SPECIAL: _special,
    Sig.PARAM: _param,
    Sig.NUMBER: _same(_INTS | _FLOATS),
    Sig.FLOAT: _same(_FLOATS),
    Sig.INT: _same(_INTS),
    Sig.BITS: _same(_INTS | {RegType.PRED}),
    Sig.EQUAL: _compare(_INTS | _FLOATS),
    Sig.ORDER_FLOAT: _compare(_FLOATS),
    Sig.ORDER_INT: _compare(_INTS),
    Sig.SELECT: _select,
    Sig.WIDEN: _convert(_INTS, _INTS, lambda a, b: a.bits < b.bits),
    Sig.NARROW: _convert(_INTS, _INTS, lambda a, b: a.bits > b.bits),
    Sig.FLOAT_FLOAT: _convert(_ANY_FLOAT, _ANY_FLOAT, lambda a, b: a is not b),
    Sig.INT_FLOAT: _convert(_INTS, _FLOATS, lambda a, b: True),
    Sig.FLOAT_INT: _convert(_FLOATS, _INTS, lambda a, b: True),
    Sig.REINTERPRET: _convert(_INTS | _ANY_FLOAT, _INTS | _ANY_FLOAT, lambda a, b: a is not b and a.bits == b.bits),
}


def _check_flow(kernel: Kernel, flow: Flow, report: _Report) -> None:
    for b in sorted(set(range(len(kernel.blocks))) - set(flow.order)):
        report("flow", f"block {b} end", "no thread can reach this block")
    for b in sorted(flow.endless):
        report("flow", f"block {b} end", "a thread that arrives here can never end")
    for a, b in flow.irreducible:
        report("flow", f"block {a} end", f"enters the loop of block {b} beside its head: the graph is not reducible")


def _check_defined(kernel: Kernel, flow: Flow, report: _Report) -> None:
    for b, known in enumerate(definitely_assigned(kernel, flow)):
        for i, op in enumerate(kernel.blocks[b].code):
            for r in op.ins:
                if r not in known:
                    report("undefined", f"block {b} op {i}", f"register {r} is not written on every path to here")
            known |= set(op.outs)
        end = kernel.blocks[b].end
        if isinstance(end, Cbr) and end.pred not in known:
            report("undefined", f"block {b} end", f"register {end.pred} is not written on every path to here")


def _certificate(kernel: Kernel) -> Certificate:
    touched: dict[Sig, set[int]] = {Sig.LOAD: set(), Sig.STORE: set()}
    for block in kernel.blocks:
        for op in block.code:
            sig = BY_CODE[op.op].sig
            if sig in touched and op.attrs[0] == Space.GLOBAL:
                touched[sig].add(op.attrs[1])
    both = tuple(sorted(touched[Sig.LOAD] & touched[Sig.STORE]))
    return Certificate(not both, both)
