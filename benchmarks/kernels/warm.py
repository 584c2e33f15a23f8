"""How long a kernel that was compiled by an earlier process takes to be ready: ``python -m benchmarks.kernels.warm FOLDER`` prints ms.

The first run on a folder compiles. May live here: that measurement. May not: anything that is measured beside it.
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
