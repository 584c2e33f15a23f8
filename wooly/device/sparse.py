"""Sparse tensors of the device: torch's own objects over dense tensors of the device, which hold their indices and values.

Operators that only handle these parts run torch's CPU kernels, as views of dense tensors do. Many others are composed of dense operations
on the parts (``wooly.device.sparse_ops``). The rest is computed on the CPU of this machine, visibly (``wooly.device.fallback``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

from wooly.device import nested
from wooly.device.backend import raw_device

CPU_KEYS_OF: Final = {
    "SparsePrivateUse1": ("SparseCPU", torch._C.DispatchKeySet(torch._C.DispatchKey.SparseCPU)),
    "SparseCsrPrivateUse1": ("SparseCsrCPU", torch._C.DispatchKeySet(torch._C.DispatchKey.SparseCsrCPU)),
}
"""By dispatch key of sparse tensors of the device: the key whose kernels in torch do the same for tensors of the CPU."""

STRUCTURAL: Final = frozenset(
    """
    _sparse_coo_tensor_with_dims _sparse_coo_tensor_with_dims_and_tensors empty.memory_format empty_like clone copy_ copy_sparse_to_sparse_
    resize_as_sparse_ sparse_resize_ sparse_resize_and_clear_ zero_ unsqueeze permute _indices _values indices values crow_indices
    ccol_indices col_indices row_indices _nnz _dimI _dimV sparse_dim dense_dim is_coalesced _coalesced_
    """.split()
)
"""Operators whose CPU kernel in torch handles the parts of a sparse tensor by operations on dense tensors, and reads no memory itself."""

FACTORIES: Final = frozenset({"_sparse_coo_tensor_with_dims", "empty.memory_format", "zeros"})
"""Operators that make sparse tensors from nothing: called by the device that a program names."""

_COMPRESSED: Final = {
    torch.sparse_csr: ("crow_indices", "col_indices"),
    torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"),
    torch.sparse_bsc: ("ccol_indices", "row_indices"),
}

LAYOUTS: Final = frozenset({torch.sparse_coo, *_COMPRESSED})
"""COO and the compressed layouts."""


def has_parts(tensor: torch.Tensor) -> bool:
    """Is this a COO, a compressed or a nested tensor?"""
    return tensor.layout in LAYOUTS or tensor.is_nested


def parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The dense tensors that one is made of: indices (one tensor, or two), then values. A nested tensor: its buffer."""
    if tensor.is_nested:
        return [nested.buffer_of(tensor)]
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    return [*(getattr(tensor, name)() for name in _COMPRESSED[tensor.layout]), tensor.values()]


def assembled(like: torch.Tensor, made_of: Sequence[torch.Tensor]) -> torch.Tensor:
    """A tensor of the layout and size of ``like`` over other parts, on their device."""
    values = made_of[-1]
    if like.is_nested:
        return nested.over(values, like)
    if like.layout is torch.sparse_coo:
        return coo(made_of[0], values, like.size(), like.is_coalesced())
    make: Any = torch.ops.aten._sparse_compressed_tensor_unsafe.default
    made: torch.Tensor = make(*made_of, like.size(), dtype=values.dtype, layout=like.layout, device=raw_device(values))
    return made


def coo(indices: torch.Tensor, values: torch.Tensor, size: Sequence[int], coalesced: bool) -> torch.Tensor:
    """A COO tensor of these parts."""
    n = indices.size(0)
    make: Any = torch.ops.aten._sparse_coo_tensor_with_dims_and_tensors.default
    made: torch.Tensor = make(
        n, len(size) - n, size, indices, values,
        dtype=values.dtype, layout=torch.sparse_coo, device=raw_device(values), is_coalesced=coalesced,
    )  # fmt: skip
    return made
