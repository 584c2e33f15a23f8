"""The cuda back end: the shared engine on NVIDIA devices (and AMD's through its ROCm build), through CuPy."""
