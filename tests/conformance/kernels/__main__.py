"""``make kernels``: the kernel corpus on every device, and docs/kernels.md.

usage: python -m tests.conformance.kernels [--backends reference host opencl] [--only NAME] [--no-targets] [--report FILE]
"""

from __future__ import annotations

import argparse
import sys
import traceback
from pathlib import Path
from typing import Any

from jit.errors import ToolchainError
from tests.conformance.kernels.binding import build
from tests.conformance.kernels.record import Entry, page
from tests.conformance.kernels.runner import Result, differences, partition_faults, run_case
from tests.conformance.kernels.targets import TARGETS, emitted_fault, source_fault
from tests.golden.cuda.cases import CASES, Case
from tests.support.kernel_devices import KERNEL_DEVICES

_DOC = Path(__file__).parents[3] / "docs" / "kernels.md"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.kernels", description=__doc__)
    parser.add_argument("--backends", nargs="+", default=["reference", "host", "opencl"], choices=list(KERNEL_DEVICES))
    parser.add_argument("--only", nargs="+", default=[""], help="cases whose names begin so")
    parser.add_argument("--no-targets", action="store_true", help="do not compile for NVIDIA's targets")
    parser.add_argument("--trace", action="store_true", help="show where an exception came from")
    parser.add_argument("--report", default="", help="write the record to this file (docs/kernels.md: --report default)")
    return parser.parse_args()


def examine(case: Case, devices: dict[str, Any], *, targets: bool, trace: bool = False) -> Entry:
    """Everything there is to check about one case; an exception is a fault."""
    entry = Entry(case)
    try:
        entry.certificate = _certificate(case)
    except Exception as error:  # whatever goes wrong belongs to this case and must not hide the others
        entry.devices["import"] = [_sentence(error, trace)]
        return entry
    results = {name: _ran(case, name, device, trace) for name, device in devices.items()}
    entry.devices = {name: result.faults for name, result in results.items()}
    fine = [result for result in results.values() if result.state]
    entry.instructions = fine[0].instructions if fine else 0
    for other in fine[1:]:
        entry.between += differences(fine[0], other, counts=not case.racy)
    if not entry.certificate:
        for result in fine:
            entry.pieces += _pieces(case, result, devices[result.device], trace)
    if targets:
        entry.source = {t: source_fault(case, t) for t in TARGETS}
        entry.emitted = {t: _emitted(case, t, trace) for t in TARGETS}
    return entry


def _certificate(case: Case) -> str:
    """Empty: certified; else why not."""
    certificate = build(case).verified.certificate
    return "" if certificate.allows(case.grid, case.block) else certificate.reason or "not for this grid"


def _ran(case: Case, name: str, device: Any, trace: bool) -> Result:
    try:
        return run_case(case, name, device)
    except Exception as error:  # as above
        return Result(name, [f"{name}: {_sentence(error, trace)}"])


def _pieces(case: Case, result: Result, device: Any, trace: bool) -> list[str]:
    try:
        return partition_faults(case, result, device)
    except Exception as error:  # as above
        return [f"{result.device}, in pieces: {_sentence(error, trace)}"]


def _emitted(case: Case, target: str, trace: bool) -> str:
    try:
        return emitted_fault(case, target)
    except Exception as error:  # as above
        return _sentence(error, trace)


def _sentence(error: Exception, trace: bool) -> str:
    if trace:
        traceback.print_exception(error)
    return f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"


def _devices(names: list[str]) -> dict[str, Any]:
    made = {}
    for name in names:
        try:
            made[name] = KERNEL_DEVICES[name]()
        except ToolchainError as error:
            print(f"{name}: not on this machine: {error}")
    return made


def main() -> int:
    options = _arguments()
    devices = _devices(options.backends)
    entries = []
    for case in CASES.values():
        if case.name.startswith(tuple(options.only)):
            entry = examine(case, devices, targets=not options.no_targets, trace=options.trace)
            entries.append(entry)
            print(
                f"{'ok   ' if not entry.faults else 'WRONG'} {case.name}",
                *(f"        {f[:600]}" for f in entry.faults),
                sep="\n",
                flush=True,
            )
    for device in devices.values():
        device.close()
    wrong = sum(bool(e.faults) for e in entries)
    print(f"{len(entries)} cases, {wrong} wrong")
    if options.report:
        path = _DOC if options.report == "default" else Path(options.report)
        path.write_text(page(entries, list(devices), [] if options.no_targets else TARGETS))
    return 1 if wrong or not entries else 0


if __name__ == "__main__":
    sys.exit(main())
