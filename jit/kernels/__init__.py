"""Fused kernels as data, before any target is chosen, and the emitters that several targets share.

May live here: kernels as data, their lowering and source text. May not: compiling or running them (the back ends).
"""
