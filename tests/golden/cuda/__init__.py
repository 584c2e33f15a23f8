"""The kernel corpus: CUDA C++ sources of our own by category, and in ``cases`` how each is launched and what it must answer."""
