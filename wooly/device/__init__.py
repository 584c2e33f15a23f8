"""The torch device: recording kernels, virtual tensors, and their presentation as ``cuda``."""
