"""The cuda back end executed without a GPU, on everything that there is: the kernel corpus, library kernels, fused groups, models."""
