"""The door: a verified kernel in, its source out.

May live here: the choice of a form. May not: text.
"""

from __future__ import annotations

from typing import Final

from jit.kernels.cfamily.abi import Form, Source
from jit.kernels.cfamily.block_form import BlockForm
from jit.kernels.cfamily.language import Language
from jit.kernels.cfamily.regions import Regions
from jit.kernels.cfamily.thread_form import ThreadForm
from jit.kernels.cfamily.warp import WARP_SIGS
from jit.kernels.device import Dim3, KernelOptions
from wis.kernel.ops import BY_CODE
from wis.kernel.uniformity import warp_uniformity
from wis.kernel.verify import Barriers, VerifiedKernel

__all__ = ["emit"]


def emit(
    verified: VerifiedKernel,
    language: Language,
    block: Dim3,
    options: KernelOptions = KernelOptions(),  # noqa: B008  # a frozen value
    form: Form | None = None,
    dynamic_bytes: int = 0,
) -> Source:
    """The kernel for blocks of ``block`` threads; see ``abi`` for how it is called. ``form`` None: the one that suits the language.

    Raises Unspelled for what the language cannot say.
    """
    chosen = form or _suitable(verified, language, block)
    return _FORMS[chosen](verified, language, block, dynamic_bytes, options).source()


_FORMS: Final = {Form.THREAD: ThreadForm, Form.BLOCK: BlockForm}


def _suitable(verified: VerifiedKernel, language: Language, block: Dim3) -> Form:
    """The thread form where it is right and not slower.

    On processors a work-item that runs all threads is right for everything, and faster where threads wait for each other.
    """
    barriers = verified.barriers
    if language.cpu:
        plain = barriers is Barriers.NONE and not _asks(verified) and not _spins(verified)
        return Form.THREAD if plain and language.name != "c99" else Form.BLOCK
    if barriers not in (Barriers.NONE, Barriers.UNIFORM) or (_asks(verified) and not language.warps):
        return Form.BLOCK
    if not _asks(verified):
        return Form.THREAD
    apart = warp_uniformity(verified.core, verified.flow, block).divergent
    return Form.BLOCK if apart & Regions(verified.core, verified.flow).asking else Form.THREAD


def _asks(verified: VerifiedKernel) -> bool:
    """Whether lanes of a warp see, or wait for, each other."""
    return any(BY_CODE[op.op].sig in WARP_SIGS for code in verified.core.blocks for op in code.code)


def _spins(verified: VerifiedKernel) -> bool:
    """Whether a thread may wait, in a loop, for what another one stores."""
    return bool(verified.flow.loops) and Regions(verified.core, verified.flow).fair
