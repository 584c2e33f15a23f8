"""Renders the record of a run as a page of docs."""

from __future__ import annotations

from collections.abc import Sequence

from tests.conformance.cuda.faults import Caught
from tests.conformance.cuda.parts import Part

__all__ = ["page"]

_GPU_HEAD = """# The cuda back end on a GPU

`make cuda-gpu` executes the cuda back end (jit/cuda, jit/kernels/cfamily, jit/accel) on the GPU of the machine, {device}, and
compares what every kernel leaves in memory with what its definition leaves. What this page says of kernels without a GPU, and the
faults that the comparison sees, is in [The CUDA emitter, executed without a GPU](cuda-roundtrip.md).

Every launch is executed a second time by the definition of the kernel tier (for models: on `host`), and all bytes of the buffers are
compared. Kernels with a strict form, and all of the corpus, must leave the same bits (any NaN is any NaN); *near* are kernels of
functions without a strict form, or that add floats in the order in which threads arrive.
"""
_HEAD = """# The CUDA emitter, executed without a GPU

`make cuda-roundtrip` executes the cuda back end (jit/cuda, jit/kernels/cfamily, jit/accel) on a machine without a GPU and compares what
every kernel leaves in memory with what its definition leaves.

The engine is the real one; the calls of CuPy that it makes are answered by `tests/support/cuda_driver.py`: NVRTC compiles the emitted
CUDA C to PTX (sm_90), the PTX importer (wis/frontends/ptx) makes a kernel of it, and the `host` back end executes that. The driver's
double is stricter than a driver: streams execute only when something waits for them, new memory holds noise, freed memory is never used
again, the number of arguments must be the declared one, and an access outside of an allocation ends the run.

`tests/support/compared_device.py` executes every launch a second time by the definition of the kernel tier (for models: on `host`,
without the way through CUDA C) and compares all bytes of the buffers. Kernels with a strict form, and all of the corpus, must leave the
same bits (any NaN is any NaN); *near* are kernels of functions without a strict form, or that add floats in the order in which threads
arrive.
"""
_TABLE = """
| part | programs | kernels | launches | equal bits | near | refused | wrong |
|---|---:|---:|---:|---:|---:|---:|---:|
{rows}

{parts}
"""
_FAULTS = """
## Planted faults

Each of these changes of the emitter's text, one at a time, makes a test of `tests/unit/test_accel/test_cuda_execution.py` fail (it is
part of `make test`); `python -m tests.conformance.cuda --parts --faults` repeats this.

| file | fault | test that fails |
|---|---|---|
{rows}
"""


def page(parts: Sequence[Part], found: Sequence[Caught], device: str = "") -> str:
    """Markdown. ``device``: the GPU that executed the parts; empty: the stand-in did."""
    rows = [
        f"| {p.name} | {p.programs:,} | {len(p.tally.kernels):,} | {p.tally.launches:,} | {p.tally.equal:,} | "
        f"{len(near):,}{f' (at most {max(near):.3g} ulp)' if near else ''} | {len(p.refused)} | {len(p.wrong)} |"
        for p in parts
        for near in [p.tally.near]
    ]
    about = [f"- *{p.name}*: {p.what}." for p in parts]
    troubles = [f"- {p.name}: {text}" for p in parts for text in (*p.refused, *p.wrong)]
    text = (_GPU_HEAD.format(device=device) if device else _HEAD) + _TABLE.format(rows="\n".join(rows), parts="\n".join(about))
    if troubles:
        text += "\n## Refused or wrong\n\n" + "\n".join(troubles) + "\n"
    if found:
        text += _FAULTS.format(rows="\n".join(f"| {f.fault.file} | {f.fault.what} | {f.test or '**none**'} |" for f in found))
    return text
