"""Single kernels: our host back end beside NumPy and hand-written OpenCL C on PoCL, and what checks, counts, fuel and slices cost."""
