"""C-like source of kernels: one emitter, and a table of spellings for C99, OpenCL C and CUDA C (which is HIP C too).

``emit`` is the door; how what it returns is called stands in ``abi``.

May live here: source text. May not: compilers, devices.
"""

from jit.kernels.cfamily.abi import Form, Region, Source, fresh_state, launch_words, program
from jit.kernels.cfamily.emit import emit
from jit.kernels.cfamily.language import C99, CUDA, OPENCL, Language, opencl

__all__ = ["emit", "program", "opencl", "Form", "Source", "Region", "Language", "C99", "CUDA", "OPENCL", "fresh_state", "launch_words"]
