"""Job table of the compile process: a name for each function from bytes to bytes.

A job raises ToolchainError for input that its compiler refuses.
"""

from __future__ import annotations

from typing import Final

__all__ = ["JOBS"]

JOBS: Final[dict[str, str]] = {
    "llvm": "jit.host.toolchain:compile_job",
    "opencl": "jit.opencl.device:compile_job",
    "nvrtc": "jit.cuda.device:compile_job",
}
"""Name to ``module:function``; the module is imported when the job is first asked for."""
