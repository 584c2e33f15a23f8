"""The host backend: plans walked by one native function, kernels through LLVM, matrix products through OpenBLAS.

May live here: code generation, threads and native calls for CPUs. May not: grouping (jit.plan), accounts of memory (jit.memory).
"""
