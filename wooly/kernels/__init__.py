"""Kernels that a user writes: from CUDA C++ or PTX to modules of the instruction set, and the calls that run them."""
