"""LLVM IR text of fused kernels: from a ``jit.kernels.loop.LoopKernel`` to one function."""
