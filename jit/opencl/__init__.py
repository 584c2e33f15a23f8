"""The opencl back end: the shared engine on any OpenCL device, through pyopencl."""
