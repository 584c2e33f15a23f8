"""Kernels of the kernel tier as vector code for CPUs: a gang of neighbouring threads is a vector, a block of threads a loop over gangs.

May live here: analysis, code generation and running of single kernels. May not: tensor programs.
"""
