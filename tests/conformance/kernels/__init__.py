"""The kernel corpus (tests/golden/cuda) on every kernel device: equal to NumPy, equal to one another, whole and in pieces."""
