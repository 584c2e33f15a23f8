"""The opencl back end: the shared engine on any OpenCL device, through pyopencl.

May live here: pyopencl and what is special to OpenCL. May not: plans, kernels' source (jit.kernels.cfamily).
"""
