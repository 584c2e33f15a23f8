"""Measures the start of a kernel that an earlier process compiled: ``python -m benchmarks.kernels.warm FOLDER`` prints ms.

The first run on a folder compiles.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from benchmarks.kernels.cases import CASES, CUDA
from tests.support.kernel_devices import HostKernels
from wooly.kernels.build import build_cuda


def main() -> None:
    built = build_cuda(CUDA, ("--fmad=false",))
    verified = [(case, built.verified(built.entry(case.name))) for case in CASES]
    device = HostKernels(Path(sys.argv[1]), 1)
    for case, kernel in verified:
        start = time.perf_counter()
        device.prepare(kernel, case.block)
        print(f"{case.name} {1e3 * (time.perf_counter() - start):.3f}")
    device.close()


if __name__ == "__main__":
    main()
