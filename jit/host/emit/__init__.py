"""LLVM IR text of single operations, over scalars or vectors: what ``jit.host.simt`` and ``jit.host.library`` write kernels with.

May live here: values, maths, operations. May not: loops, choosing groups, memory, running.
"""
