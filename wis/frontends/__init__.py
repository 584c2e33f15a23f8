"""Front ends: from other people's texts to modules of the instruction set. Pure, like all of wis.

May live here: one folder for each source language. May not: rules and meaning of kernels (wis.kernel), running them.
"""
