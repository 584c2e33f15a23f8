"""Rules 1 and 2: sizes, and that everything a kernel refers to exists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from wis.dtypes import DType
from wis.kernel.inline import recursion, sizes
from wis.kernel.limits import KernelLimits
from wis.kernel.model import (
    KERNEL_VERSION,
    Access,
    Call,
    Kernel,
    Math,
    RegType,
    ScalarParam,
    Switch,
    Sync,
    Terminator,
    shared_bytes,
    successors,
    terminator_reads,
)
from wis.kernel.ops import BY_CODE
from wis.kernel.verify.memory import MEMORY_TYPES
from wis.kernel.verify.report import Body, Report, bodies

_REG_TYPES: Final = frozenset(int(t) for t in RegType)
_LINE_MAX: Final = (1 << 31) - 1
_ADDED: Final = ("dynamic", "local_bytes", "constants", "functions", "file", "lines")  # fields since version 2


def check_sizes(kernel: Kernel, limits: KernelLimits, report: Report) -> None:
    """Rule 1."""
    if kernel.version not in (1, KERNEL_VERSION):
        report("version", "kernel", f"version {kernel.version} is not {KERNEL_VERSION}")
    if kernel.version == 1 and any(getattr(kernel, name) for name in _ADDED):
        report("version", "kernel", f"version 1 has no {', '.join(name for name in _ADDED if getattr(kernel, name))}")
    if kernel.math not in Math._value2member_map_:
        report("reference", "kernel", f"{kernel.math} is not a math policy")
    code = bodies(kernel)
    ops = sum(len(block.code) for body in code for block in body.blocks)
    for what, count, least, most in (
        ("characters of name", len(kernel.name), 1, limits.name_max),
        ("characters of file", len(kernel.file), 0, limits.file_max),
        ("parameters", len(kernel.params), 0, limits.params_max),
        ("registers", sum(len(body.regs) for body in code), 0, limits.regs_max),
        ("blocks", sum(len(body.blocks) for body in code) if kernel.blocks else 0, 1, limits.blocks_max),
        ("ops", ops, 0, limits.ops_max),
        ("threads", kernel.threads_max, 1, limits.threads_max),
        ("shared arrays", len(kernel.shared), 0, limits.params_max),
        ("bytes of local memory", kernel.local_bytes, 0, limits.local_bytes_max),
        ("bytes of constants", len(kernel.constants), 0, limits.constant_bytes_max),
        ("functions", len(kernel.functions), 0, limits.functions_max),
    ):
        if not least <= count <= most:
            report("limit", "kernel", f"{count} {what}, accepted is {least} to {most}")
    if not (kernel.name.isascii() and kernel.name.isidentifier()):
        report("limit", "kernel", f"{kernel.name[:60]!r} is not a name: letters, digits and underscores")
    if not kernel.file.isprintable():
        report("limit", "kernel", "the file's name has characters that cannot be printed")
    if kernel.lines and len(kernel.lines) != ops:
        report("limit", "lines", f"{len(kernel.lines)} source lines for {ops} ops")
    if not all(0 <= line <= _LINE_MAX for line in kernel.lines):
        report("limit", "lines", f"source lines are 0 to {_LINE_MAX}")


def check_references(kernel: Kernel, limits: KernelLimits, report: Report) -> None:
    """Rule 2."""
    for number, param in enumerate(kernel.params):
        if isinstance(param, ScalarParam):
            if param.reg_type not in _REG_TYPES:
                report("type", f"param {number}", f"{param.reg_type} is not a register type")
        else:
            if param.dtype not in MEMORY_TYPES:
                report("type", f"param {number}", f"{param.dtype} is not an element type of memory")
            if param.access not in Access._value2member_map_:
                report("reference", f"param {number}", f"{param.access} is not a kind of access")
    _check_shared(kernel, limits, report)
    for body in bodies(kernel):
        _check_body(kernel, body, limits, report)
    for number, function in enumerate(kernel.functions):
        place = f"function {number}"
        if not (function.name.isascii() and function.name.isidentifier() and len(function.name) <= limits.name_max):
            report("limit", place, f"{function.name[:60]!r} is not a name: at most {limits.name_max} letters, digits and underscores")
        if not function.blocks:
            report("limit", place, "a function has at least one block")
        _check_registers(function.regs, (*function.ins, *function.outs), place, report)
        if len(set(function.ins)) < len(function.ins):
            report("reference", place, "two arguments go into one register")


def _check_shared(kernel: Kernel, limits: KernelLimits, report: Report) -> None:
    last = len(kernel.shared) - 1
    good = True
    for number, array in enumerate(kernel.shared):
        least = 0 if kernel.dynamic and number == last else 1
        if array.dtype not in MEMORY_TYPES or not least <= array.n <= limits.shared_bytes_max:
            report("type", f"shared {number}", f"{array.n} elements of type {array.dtype}")
            good = False
    if kernel.dynamic not in (0, 1):
        report("reference", "kernel", f"dynamic is {kernel.dynamic}, expected 0 or 1")
    elif kernel.dynamic and (last < 0 or kernel.shared[last].dtype != DType.U8):
        report("reference", "kernel", "dynamic shared memory is a last shared array of u8")
    if good and shared_bytes(kernel) > limits.shared_bytes_max:
        report("limit", "kernel", f"{shared_bytes(kernel)} bytes of shared memory, at most {limits.shared_bytes_max} are accepted")


def _check_body(kernel: Kernel, body: Body, limits: KernelLimits, report: Report) -> None:
    wrong = [(number, type_) for number, type_ in enumerate(body.regs) if type_ not in _REG_TYPES]
    for number, type_ in wrong:
        report("type", f"{body.place}reg {number}", f"{type_} is not a register type")
    n_blocks, n_regs = len(body.blocks), len(body.regs)
    for b, block in enumerate(body.blocks):
        for i, op in enumerate(block.code):
            if op.op not in BY_CODE:
                report("op", f"{body.place}block {b} op {i}", f"there is no op with code {op.op}")
            for r in (*op.outs, *op.ins):
                if not 0 <= r < n_regs:
                    report("register", f"{body.place}block {b} op {i}", f"register {r} of {n_regs}")
        place = f"{body.place}block {b} end"
        _check_registers(body.regs, _end_registers(block.end), place, report)
        for target in successors(block.end):
            if not 0 <= target < n_blocks:
                report("reference", place, f"block {target} of {n_blocks}")
        match block.end:
            case Switch(_, targets, _) if not 1 <= len(targets) <= limits.targets_max:
                report("limit", place, f"{len(targets)} targets, accepted is 1 to {limits.targets_max}")
            case Sync(_, barrier, count, arrive):
                if not 0 <= barrier < limits.barriers_max:
                    report("reference", place, f"barrier {barrier} of {limits.barriers_max}")
                if arrive not in (0, 1) or count < -1:
                    report("reference", place, f"count r{count}, arrive {arrive}: expected a register or -1, and 0 or 1")
                elif arrive and count < 0:
                    report("reference", place, "who arrives without waiting says how many threads complete the barrier")
            case Call(function, _, _, _) if not 0 <= function < len(kernel.functions):
                report("reference", place, f"function {function} of {len(kernel.functions)}")


def _end_registers(end: Terminator) -> tuple[int, ...]:
    """Registers that a terminator reads or writes."""
    return (*end.ins, *end.outs) if isinstance(end, Call) else terminator_reads(end)


def _check_registers(regs: Sequence[int], registers: Sequence[int], place: str, report: Report) -> None:
    for r in registers:
        if not 0 <= r < len(regs):
            report("register", place, f"register {r} of {len(regs)}")


def check_calls(kernel: Kernel, limits: KernelLimits, report: Report) -> None:
    """No recursion, and what calls become is not too large. References exist."""
    circle = recursion(kernel.functions)
    for f in circle:
        report("call", f"function {f}", "calls itself, or a function that does: recursion is not supported")
    if circle:
        return
    size, regs = sizes(kernel), sum(len(body.regs) for body in bodies(kernel))
    for what, count, most in (
        ("ops", size.ops + size.blocks, limits.inlined_ops_max),
        ("blocks", size.blocks, limits.inlined_blocks_max),
        ("registers times blocks", regs * size.blocks, limits.register_blocks_max),
    ):
        if count > most:
            report("limit", "kernel", f"{count} {what} after calls became code, at most {most} are accepted")
