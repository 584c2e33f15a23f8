"""The cuda back end: the shared engine on NVIDIA devices (and AMD's through its ROCm build), through CuPy.

May live here: CuPy, NVRTC and what is special to CUDA. May not: plans, kernels' source (jit.kernels.cfamily).
"""
