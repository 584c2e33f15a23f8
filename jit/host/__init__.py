"""The host backend: plans walked by one native function, kernels through LLVM, matrix products through OpenBLAS."""
