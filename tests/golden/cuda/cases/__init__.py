"""Every case of the kernel corpus. Importing this fills tests.golden.cuda.case.CASES."""

from tests.golden.cuda.case import CASES, ROOT, Case, Given
from tests.golden.cuda.cases import (
    atomics,
    bits,
    crypto,
    divergent,
    gemm,
    graphs,
    half,
    histograms,
    language,
    maths,
    nbody,
    prng,
    reductions,
    scans,
    sorts,
    stencils,
    streaming,
    strings,
    warp,
    wide,
)

__all__ = ["CASES", "ROOT", "CATEGORIES", "Case", "Given"]

_MODULES = (
    atomics, bits, crypto, divergent, gemm, graphs, half, histograms, language, maths, nbody, prng,
    reductions, scans, sorts, stencils, streaming, strings, warp, wide,
)  # fmt: skip

CATEGORIES = tuple(module.__name__.rpartition(".")[2] for module in _MODULES)
"""Names of the categories: folders with sources, modules with answers."""
