"""Launches of kernels that a program brings, on the host: compiled when the program is prepared, run by the walker's threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from jit.engine import Number
from jit.host.simt.compile import HostKernel, KernelCompiler
from jit.host.simt.run import Grid, GridRunner, Region
from jit.host.tables import Plan
from jit.kernels.launch import CHECKED, KernelLaunch
from jit.plan.calls import UserLaunch
from jit.runs import LaunchTotals
from wis.launches import KernelCall, kernel_call
from wis.program import BoundInstr, Operand
from wis.verify import Verified

__all__ = ["UserKernels", "Launches", "UnderWay"]


Launches = Mapping[tuple[int, ...], HostKernel]
"""The compiled kernels of one program, by the attributes of its launches."""


@dataclass(frozen=True, slots=True)
class UnderWay:
    """A launch, and how far it came."""

    call: KernelCall
    grid: Grid


class UserKernels:
    """Compiles and runs the launches of all programs of an engine."""

    def __init__(self, compiler: KernelCompiler, runner: GridRunner, fuel: int) -> None:
        self._compiler, self._runner, self._fuel = compiler, runner, fuel

    def prepare(self, verified: Verified, plan: Plan) -> Launches:
        """Raises KernelRefused."""
        wanted = {part.instr.attrs for part in plan.parts if isinstance(part, UserLaunch)}
        return {
            (number, x, y, z, dynamic): self._compiler.prepare(verified.kernels[number], (x, y, z), dynamic, CHECKED, foreign=True)
            for number, x, y, z, dynamic in wanted
        }

    def open(self, instr: BoundInstr, verified: Verified, launches: Launches, values: Sequence[Number]) -> UnderWay:
        """A launch of which nothing ran. Raises LaunchError for a grid beyond the limits."""
        call = kernel_call(instr, verified.kernels, values)
        where = KernelLaunch(call.grid, call.block, call.dynamic_bytes, fuel=self._fuel)
        return UnderWay(call, self._runner.open(launches[instr.attrs], where))

    def go(self, launch: UnderWay, region: Callable[[int], Region], totals: LaunchTotals) -> bool:
        """Run what is left of it; whether it came to its end. ``region``: a whole buffer of the program.

        Raises Interrupted when the run was stopped within a block.
        """
        call = launch.call
        params = [_part(region(x.buffer), x) if isinstance(x, Operand) else x for x in call.params]
        outcome = self._runner.go(launch.grid, params)
        if outcome is None:
            return False
        totals.add(call, outcome.instructions, outcome.trap, out_of_fuel=outcome.out_of_fuel)
        return True


def _part(whole: Region, x: Operand) -> Region:
    """A region of a buffer; an empty one is a null pointer."""
    address, _, place = whole
    return (address + x.offset, x.shape[0], place + x.offset) if x.shape[0] else (address, 0, 0)
