"""Rules 5 to 7: reachability, reducibility, written before read."""

from __future__ import annotations

from wis.kernel.flow import Flow, analyse, definitely_assigned
from wis.kernel.limits import KERNEL_LIMITS
from wis.kernel.model import Call, Cbr, Kernel, Ret, Switch, Sync, Terminator
from wis.kernel.verify.report import Body, Report, bodies

__all__ = ["check_depth", "check_paths"]


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
        reads = body.outs if isinstance(block.end, Ret) else _reads(block.end)
        for r in reads:
            if not known >> r & 1:
                report("undefined", f"{body.place}block {b} end", f"register {r} is not written on every path to here")


def _reads(end: Terminator) -> tuple[int, ...]:
    match end:
        case Cbr(pred, _, _):
            return (pred,)
        case Switch(index, _, _):
            return (index,)
        case Sync(_, _, count, _) if count >= 0:
            return (count,)
        case Call(_, ins, _, _):
            return ins
    return ()
