"""Fused kernels as data, before any target is chosen, and the emitters that several targets share."""
