"""Tensor programs on devices that run kernels of the kernel tier: what the opencl and cuda back ends share.

May live here: what is the same on all these devices. May not: device APIs (jit.opencl, jit.cuda), text of kernels (jit.kernels).
"""
