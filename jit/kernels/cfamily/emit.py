"""The door: a verified kernel in, its source out.

May live here: the choice of a form. May not: text.
"""

from __future__ import annotations

from typing import Final

from jit.kernels.cfamily.abi import Form, Source
from jit.kernels.cfamily.block_form import BlockForm
from jit.kernels.cfamily.language import Language
from jit.kernels.cfamily.thread_form import ThreadForm
from jit.kernels.device import Dim3, KernelOptions
from wis.kernel.verify import VerifiedKernel

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
    return Form.THREAD
