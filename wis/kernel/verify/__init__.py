"""The verifier of the kernel tier. ``verify_kernel`` returns a new value, ``VerifiedKernel``, that back ends and the interpreter require.

Rules (the names in findings are in brackets):

 1. the version is known; name, parameters, registers, blocks, ops, threads, shared, local and constant bytes, functions, targets of a
    switch, source lines, and what calls become are within the limits [version, limit]
 2. every op code, register, register type, parameter, shared array, block, function, barrier, element type and special value exists; a
    barrier that some only arrive at has a count; dynamic shared memory is a last array of u8 [op, register, type, reference]
 3. ops and terminators have the registers and attributes that the table names, of the types that its rule names; calls fit their
    functions [arity, type]
 4. loads are from readable, stores to writable buffers, atomics on buffers that are both, of element types that the register holds, at
    most 16 bytes at a time; constants are only loaded, and addresses taken of buffers, shared and local memory [access, type]
 5. there is a block; every block can be reached, and from every block a thread can end; in functions: return [flow]
 6. the graph is reducible: every loop is entered at its head only; loops stand not too deep inside of each other [flow, limit]
 7. a register is written on every path before it is read; results of a function before it returns [undefined]
 8. no function calls itself, over any number of calls [call]
 9. under strict math, named functions have a strict form in their type [math]

Not checked, because it cannot do harm: places in memory (outside or misaligned: a load gives 0, a store is dropped, the thread traps),
barriers that some threads never reach (a trap ends the block), time (fuel ends a run). What the verifier finds out besides: how threads
meet at barriers, whether blocks are numbered so that warps stay together, uniformity, and whether a grid may be run in pieces (see
``VerifiedKernel``).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from wis.dtypes import DType
from wis.encoding import digest
from wis.kernel.certificate import Certificate, certify
from wis.kernel.expand import expand, expanded_ops
from wis.kernel.flow import Flow, analyse, definitely_assigned, is_ordered
from wis.kernel.inline import inline
from wis.kernel.limits import KERNEL_LIMITS, KernelLimits
from wis.kernel.matrix import COST
from wis.kernel.model import Bar, Call, Kernel, Ret, Space, Sync, encode_kernel, terminator_reads
from wis.kernel.ops import Sig, codes_of
from wis.kernel.uniformity import Uniformity, apart, block_uniformity, uniformity
from wis.kernel.verify.memory import MEMORY_TYPES
from wis.kernel.verify.report import Body, Report, bodies
from wis.kernel.verify.structure import check_calls, check_references, check_sizes
from wis.kernel.verify.types import check_types

__all__ = ["MEMORY_TYPES", "TRAPPING", "Barriers", "Certificate", "Site", "Uses", "VerifiedKernel", "verify_kernel"]

TRAPPING: Final = frozenset({Sig.LOAD, Sig.STORE, Sig.BYTES_LOAD, Sig.BYTES_STORE, Sig.ATOM, Sig.RED, Sig.RAISE})
"""Ops of these rules may trap."""

_TRAPPING: Final = codes_of(*TRAPPING)
_PLACED: Final = _TRAPPING - codes_of(Sig.RAISE)  # those that access memory
_COUNTED: Final = codes_of(Sig.BYTES_LOAD, Sig.BYTES_STORE)
_SPACED: Final = _PLACED | codes_of(Sig.ADDRESS)
_ATOMICS: Final = codes_of(Sig.ATOM, Sig.RED)
_MATRICES: Final = codes_of(Sig.MMA, Sig.MMA_F64)
_WARP: Final = _MATRICES | codes_of(Sig.SHFL, Sig.VOTE, Sig.BALLOT, Sig.MATCH_ANY, Sig.MATCH_ALL, Sig.ACTIVEMASK, Sig.REDUX)


class Barriers(IntEnum):
    """How the threads of a block meet at barriers."""

    NONE = 0  # there are no barriers
    UNIFORM = 1  # proven: all threads of the block arrive together at every barrier, and none ended before
    LIVE = 2  # proven: all threads arrive together but those that ended, or will end without waiting at a barrier again
    DIVERGENT = 3  # not proven, or barriers with a count


class Site(NamedTuple):
    """An op that may trap: its block and place in ``flat``, and its source line (0: unknown)."""

    block: int
    op: int
    line: int


class Uses(NamedTuple):
    """What a kernel has in it, anywhere. ``warp``: ops in which lanes of a warp see each other; ``arena``: accesses by address."""

    warp: bool
    atomics: bool
    shared: bool
    local: bool
    constants: bool
    arena: bool


@dataclass(frozen=True, slots=True)
class VerifiedKernel:
    """A kernel that keeps every rule, with the results of the verifier's analyses."""

    #: as given
    kernel: Kernel
    #: ``kernel`` with calls inlined; the interpreter runs it
    flat: Kernel
    #: ``flat`` with core ops only, block for block; back ends compile it
    core: Kernel
    digest: bytes
    #: of ``core``
    flow: Flow
    #: of ``core``
    uniformity: Uniformity
    certificate: Certificate
    #: thread-instructions of each block of ``flat`` (expansion changes no count)
    costs: tuple[int, ...]
    #: ops of ``flat`` that may trap, in order of code; those of ``core`` have the same order
    sites: tuple[Site, ...]
    #: by parameter: bytes that the start of its region must be a multiple of (1: any)
    aligns: tuple[int, ...]
    #: how threads arrive at barriers
    barriers: Barriers
    #: blocks are numbered so that the threads of a warp reconverge (``is_ordered``)
    ordered: bool
    uses: Uses


def verify_kernel(kernel: Kernel, limits: KernelLimits = KERNEL_LIMITS) -> VerifiedKernel:
    """Check every rule. Raises VerifyError with all findings of the first pass that has any."""
    report = Report(limits.findings_max)
    check_sizes(kernel, limits, report)
    check_references(kernel, limits, report)
    report.stop()
    check_types(kernel, report)
    check_calls(kernel, limits, report)
    flow = check_paths(kernel, report)
    report.stop()
    flat = inline(kernel)
    if flat is not kernel:
        flow = analyse(flat.blocks)
        check_depth("", flow, report)
        report.stop()
    sites = _sites(flat)
    if len(sites) > limits.sites_max:
        report("limit", "kernel", f"{len(sites)} ops that may trap, at most {limits.sites_max} are accepted")
        report.stop()
    if (ops := expanded_ops(flat)) > limits.expanded_ops_max:
        report("limit", "kernel", f"{ops} ops once all are core ops, at most {limits.expanded_ops_max} are accepted")
        report.stop()
    core = expand(flat)
    same = uniformity(core, flow)
    return VerifiedKernel(
        kernel=kernel,
        flat=flat,
        core=core,
        digest=digest(encode_kernel(kernel)),
        flow=flow,
        uniformity=same,
        certificate=certify(flat, flow),
        costs=tuple(1 + sum(COST if op.op in _MATRICES else 1 for op in block.code) for block in flat.blocks),
        sites=sites,
        aligns=_aligns(flat),
        barriers=_barriers(flat, flow),
        ordered=is_ordered(flow),
        uses=_uses(flat),
    )


def _sites(flat: Kernel) -> tuple[Site, ...]:
    sites, before = [], 0
    for b, block in enumerate(flat.blocks):
        for i, op in enumerate(block.code):
            if op.op in _TRAPPING:
                sites.append(Site(b, i, flat.lines[before + i] if flat.lines else 0))
        before += len(block.code)
    return tuple(sites)


def _aligns(flat: Kernel) -> tuple[int, ...]:
    aligns = [1] * len(flat.params)
    for block in flat.blocks:
        for op in block.code:
            if op.op in _PLACED and op.attrs[0] == Space.GLOBAL:
                count = op.attrs[3] if op.op in _COUNTED else 1
                aligns[op.attrs[1]] = max(aligns[op.attrs[1]], count * DType(op.attrs[2]).itemsize)
    return tuple(aligns)


def _barriers(flat: Kernel, flow: Flow) -> Barriers:
    ends = {b: block.end for b, block in enumerate(flat.blocks) if isinstance(block.end, Sync | Bar)}
    if not ends:
        return Barriers.NONE
    if any(isinstance(end, Sync) and (end.count >= 0 or end.arrive) for end in ends.values()):
        return Barriers.DIVERGENT
    same = block_uniformity(flat, flow)
    if same.divergent.isdisjoint(ends):
        return Barriers.UNIFORM
    return Barriers.LIVE if apart(flow, same.split, ends.keys()).isdisjoint(ends) else Barriers.DIVERGENT


def _uses(flat: Kernel) -> Uses:
    codes = {op.op for block in flat.blocks for op in block.code}
    spaces = {op.attrs[0] for block in flat.blocks for op in block.code if op.op in _SPACED}
    return Uses(
        warp=not codes.isdisjoint(_WARP),
        atomics=not codes.isdisjoint(_ATOMICS),
        shared=Space.SHARED in spaces,
        local=Space.LOCAL in spaces,
        constants=Space.CONST in spaces,
        arena=Space.ARENA in spaces,
    )


def check_paths(kernel: Kernel, report: Report) -> Flow:
    """Check the kernel's code and every function by itself; returns the flow of the kernel's own."""
    flows = [analyse(body.blocks) for body in bodies(kernel)]
    for body, flow in zip(bodies(kernel), flows, strict=True):
        _check_flow(body, flow, report)
        check_depth(body.place, flow, report)
    report.stop()
    for body, flow in zip(bodies(kernel), flows, strict=True):
        _check_defined(body, flow, report)
    return flows[0]


def _check_flow(body: Body, flow: Flow, report: Report) -> None:
    for b in sorted(set(range(len(body.blocks))) - set(flow.order)):
        report("flow", f"{body.place}block {b} end", "no thread can reach this block")
    for b in sorted(flow.endless):
        report("flow", f"{body.place}block {b} end", "a thread that arrives here can never end")
    for a, b in flow.irreducible:
        report("flow", f"{body.place}block {a} end", f"enters the loop of block {b} beside its head: the graph is not reducible")


def check_depth(place: str, flow: Flow, report: Report) -> None:
    """How deep loops stand inside of each other; asked again when calls have become code."""
    for loop in flow.loops:
        if loop.depth > KERNEL_LIMITS.loop_depth_max:
            report(
                "limit",
                f"{place}block {loop.head} end",
                f"a loop inside of {loop.depth - 1} others; {KERNEL_LIMITS.loop_depth_max} deep is accepted",
            )


def _check_defined(body: Body, flow: Flow, report: Report) -> None:
    for b, known in enumerate(definitely_assigned(body.blocks, flow, len(body.regs), body.ins)):
        block = body.blocks[b]
        for i, op in enumerate(block.code):
            for r in op.ins:
                if not known >> r & 1:
                    report("undefined", f"{body.place}block {b} op {i}", f"register {r} is not written on every path to here")
            for r in op.outs:
                known |= 1 << r
        end = block.end
        reads = body.outs if isinstance(end, Ret) else end.ins if isinstance(end, Call) else terminator_reads(end)
        for r in reads:
            if not known >> r & 1:
                report("undefined", f"{body.place}block {b} end", f"register {r} is not written on every path to here")
