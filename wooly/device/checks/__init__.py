"""Argument checks that CUDA makes and a recording device must make itself: mixed devices, overlapping targets, wrong element types.

Checks run once a signature (see calls.py), because each depends only on metadata and on which arguments share a buffer; ``distribution``
alone runs at every draw.
"""

from wooly.device.checks.arguments import arguments, distribution
from wooly.device.checks.element_types import castable, dtypes, refuses_dtypes
from wooly.device.checks.places import (
    CPU_INDEX_OPS,
    SELF_OVERLAP,
    devices,
    indices,
    is_dense,
    may_be_cpu_indices,
    overlap,
    repeats,
    same_shape,
    several_devices,
    tensors_of,
)

__all__ = [
    "CPU_INDEX_OPS", "SELF_OVERLAP", "arguments", "castable", "devices", "distribution", "dtypes", "indices", "is_dense",
    "may_be_cpu_indices", "overlap", "refuses_dtypes", "repeats", "same_shape", "several_devices", "tensors_of",
]  # fmt: skip
