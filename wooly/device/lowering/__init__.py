"""Lowerings of aten operations to WIS: pure functions from metadata to instructions, called once per new signature.

``find(name)`` gives the lowering of an overload, ``lower(...)`` its template for one signature.
Importing this package registers all of them.

May live here: the meaning of torch's operations. May not: tensors' values, handles, connections.
"""

from __future__ import annotations

from wooly.device.lowering import (  # noqa: F401  # each registers its operations
    activations,
    bessel,
    binary,
    composed,
    dynamic,
    factories,
    factorise,
    fft,
    gamma,
    index,
    interpolate,
    linear,
    loss,
    norm,
    optim,
    order,
    packed_attention,
    polynomials,
    quantise,
    ragged,
    reduce,
    shape,
    special,
    synchronised,
    unary,
    windows,
)
from wooly.device.lowering.dtypes import FROM_TORCH, TO_TORCH, wis_dtype
from wooly.device.lowering.registry import COMPOSITES, LOWERINGS, Entry, composite, find, lower, lowers, tensor_places
from wooly.device.lowering.template import Template
from wooly.device.lowering.trace import Trace
from wooly.device.lowering.values import Expected, LoweringError, Meta, ScalarArg, Unsupported

__all__ = [
    "Meta", "ScalarArg", "Expected", "Trace", "Template", "Entry", "Unsupported", "LoweringError", "find", "lower", "lowers", "composite",
    "LOWERINGS", "COMPOSITES", "tensor_places", "FROM_TORCH", "TO_TORCH", "wis_dtype",
]  # fmt: skip
