"""LLVM IR text, over scalars or vectors: values and mathematical functions, with which ``jit.host.simt`` and ``jit.host.library`` write.

May live here: values, maths. May not: ops of the kernel tier, loops, memory, running.
"""
