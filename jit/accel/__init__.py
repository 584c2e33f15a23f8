"""Tensor programs on devices that run kernels of the kernel tier: what the opencl and cuda back ends share.

May live here: what is the same on every such device. May not: an API of a device (jit.opencl, jit.cuda), text of kernels (jit.kernels).
"""
