"""Front ends: translate other kernel languages to modules of the instruction set. Pure, like all of wis.

A folder for each source language; rules and semantics of kernels are in wis.kernel.
"""
