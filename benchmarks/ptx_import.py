"""Measures the import of PTX after NVRTC, for the kernels of the corpus: ``python -m benchmarks.ptx_import``.

A source's time is the least processor time of some rounds, parsing, lowering and verifying together. The bar is for sources of about 200
instructions.
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Final, NamedTuple

from tests.golden.cuda.cases import CASES
from wis.frontends.ptx import import_ptx
from wis.frontends.ptx.parser import parse
from wis.kernel.verify import verify_kernel
from wooly.kernels.nvrtc import compile_to_ptx

__all__ = ["BAR_MS", "Row", "measure", "near_200"]

BAR_MS: Final = 20.0
"""Highest accepted median of the sources of 150 to 260 instructions."""
_ROUNDS: Final = 5


class Row(NamedTuple):
    """``import_ms`` and ``verify_ms``: processor time for all kernels of a source."""

    source: str
    instructions: int
    import_ms: float
    verify_ms: float


def measure(rounds: int = _ROUNDS) -> list[Row]:
    """One row a source of the corpus, by size."""
    rows = []
    for case in {case.source: case for case in CASES.values()}.values():
        text = compile_to_ptx(case.text, case.options, (case.kernel,) if "<" in case.kernel else ()).text
        instructions = sum(len(routine.code) for routine in parse(text).routines.values())
        times = [_once(text) for _ in range(rounds)]
        rows.append(Row(case.source, instructions, min(t[0] for t in times), min(t[1] for t in times)))
    return sorted(rows, key=lambda row: row.instructions)


def _once(text: str) -> tuple[float, float]:
    start = time.process_time()
    module = import_ptx(text)
    between = time.process_time()
    for entry in module.entries:
        verify_kernel(entry.kernel)
    return (between - start) * 1e3, (time.process_time() - between) * 1e3


def near_200(rows: list[Row]) -> float:
    """Median over the sources of about 200 instructions, in milliseconds."""
    return statistics.median(row.import_ms + row.verify_ms for row in rows if 150 <= row.instructions <= 260)


def main() -> int:
    rows = measure()
    for row in rows:
        print(f"{row.instructions:5} instructions: import {row.import_ms:5.1f} ms, verify {row.verify_ms:5.1f} ms  {row.source}")
    total = sum(row.instructions for row in rows)
    each = sum(row.import_ms + row.verify_ms for row in rows) / total * 1e3
    print(f"about 200 instructions: {near_200(rows):.1f} ms (bar {BAR_MS:.0f}); {each:.0f} us an instruction over {total}")
    return int(near_200(rows) > BAR_MS)


if __name__ == "__main__":
    sys.exit(main())
