"""LLVM IR text of fused kernels: from a ``jit.kernels.loop.LoopKernel`` to one function.

May live here: IR of fused kernels. May not: choosing groups, memory, running.
"""
