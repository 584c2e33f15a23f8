"""Kernels as Triton compiles them."""
