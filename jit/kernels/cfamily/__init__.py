"""C-like source of kernels: one emitter, and a table of spellings for C99, OpenCL C and CUDA C (which is HIP C too).

``emit`` returns the source of a verified kernel; ``abi`` describes how that is called.

May live here: source text. May not: compilers, devices.
"""

from typing import Final

from jit.errors import KernelRefused, Unspelled
from jit.kernels.cfamily.abi import Form, Region, Source, fresh_state, launch_words, program
from jit.kernels.cfamily.block_form import BlockForm
from jit.kernels.cfamily.language import C99, CUDA, OPENCL, Language, opencl
from jit.kernels.cfamily.regions import Regions
from jit.kernels.cfamily.thread_form import FuelExits, ThreadForm
from jit.kernels.cfamily.warp import asks_lanes
from jit.kernels.launch import CHECKED, Dim3, KernelOptions
from wis.kernel.uniformity import warp_uniformity
from wis.kernel.verify import Barriers, VerifiedKernel

__all__ = ["emit", "program", "opencl", "Form", "Source", "Region", "Language", "C99", "CUDA", "OPENCL", "fresh_state", "launch_words"]

_SCRATCH_BYTES_MAX: Final = 256 << 20


def emit(
    verified: VerifiedKernel,
    language: Language,
    block: Dim3,
    options: KernelOptions = CHECKED,
    form: Form | None = None,
    dynamic_bytes: int = 0,
) -> Source:
    """The kernel for blocks of ``block`` threads; see ``abi`` for how it is called. ``form`` None: the one that suits the language: on a
    processor a loop over threads is faster than threads as work-items, with barriers and without.

    Raises Unspelled for a form that would not do what the kernel says, KernelRefused for a kernel that needs too much memory.
    """
    thread = _threads_alone(verified, language, block)
    if form is Form.THREAD and not thread:
        raise Unspelled("threads of this kernel cannot be work-items of their own: they wait for each other, or ask, where not all are")
    if thread and (form is Form.THREAD or (form is None and not language.cpu)):
        return ThreadForm(verified, language, block, dynamic_bytes, options).source()
    source = BlockForm(verified, language, block, dynamic_bytes, options).source()
    if source.scratch_bytes > _SCRATCH_BYTES_MAX:
        raise KernelRefused(f"a block of threads needs {source.scratch_bytes} bytes of memory here, at most {_SCRATCH_BYTES_MAX} are given")
    return source


def _threads_alone(verified: VerifiedKernel, language: Language, block: Dim3) -> bool:
    """Whether each thread can be a work-item: all arrive at barriers together, and at what they ask each other in warps.

    CUDA's barriers do not wait for threads that ended, so there some may have; but not where lanes ask each other.
    """
    asks, barriers = asks_lanes(verified.core), verified.barriers
    if language.name == "c99" or barriers is Barriers.DIVERGENT or (barriers is Barriers.LIVE and (asks or not language.warps)):
        return False
    if not asks:
        return FuelExits.known(verified, block) if barriers is not Barriers.NONE and not language.warps else True
    apart = warp_uniformity(verified.core, verified.flow, block).divergent if language.warps else frozenset(verified.flow.order)
    return not apart & Regions(verified.core, verified.flow).asking and FuelExits.known(verified, block)
