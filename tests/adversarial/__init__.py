"""Kernels, launches and bytes that mean harm, each beside a canary tenant on the same device."""
