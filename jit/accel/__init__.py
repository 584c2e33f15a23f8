"""Tensor programs on devices that run kernels of the kernel tier: what the opencl and cuda back ends share."""
