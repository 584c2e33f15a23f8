"""Whether NVIDIA's compiler takes a case, as its source and in the CUDA form that the cuda back end makes of it. Needs no GPU."""

from __future__ import annotations

from typing import Final

from jit.kernels.cfamily import CUDA, emit
from jit.kernels.launch import CHECKED
from tests.conformance.kernels.binding import build
from tests.golden.cuda.case import Case
from wooly.errors import CompileError
from wooly.kernels.build import compile_to_ptx

__all__ = ["TARGETS", "source_fault", "emitted_fault"]

TARGETS: Final = ("sm_75", "sm_90", "sm_120")


def source_fault(case: Case, target: str) -> str:
    """Why the source does not compile; empty when it does."""
    names = (case.kernel,) if "<" in case.kernel else ()
    return _compiled(case.text, (*case.options, f"-arch={target}"), names)


def emitted_fault(case: Case, target: str) -> str:
    """Why what we emit does not compile; empty when it does."""
    source = emit(build(case).verified, CUDA, case.block, CHECKED, dynamic_bytes=case.shared)
    return _compiled(source.text, ("--fmad=false", f"-arch={target}"))


def _compiled(text: str, options: tuple[str, ...], names: tuple[str, ...] = ()) -> str:
    try:
        compile_to_ptx(text, options, names, symbolic_math=False)
    except CompileError as error:
        return str(error)
    return ""
