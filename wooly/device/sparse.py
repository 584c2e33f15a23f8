"""Sparse tensors of the device: torch's own objects over dense tensors of the device, which hold their indices and values.

Operators that only handle these parts run torch's CPU kernels, as views of dense tensors do. The products, sums and conversions below are
composed of dense operations on the parts. All others are computed on the CPU of this machine, visibly (``wooly.device.fallback``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from wooly.device import nested
from wooly.device.backend import is_our_device, is_ours, raw_device

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
        return _coo(made_of[0], values, like.size(), like.is_coalesced())
    make: Any = torch.ops.aten._sparse_compressed_tensor_unsafe.default
    made: torch.Tensor = make(*made_of, like.size(), dtype=values.dtype, layout=like.layout, device=raw_device(values))
    return made


def _coo(indices: torch.Tensor, values: torch.Tensor, size: Sequence[int], coalesced: bool) -> torch.Tensor:
    n = indices.size(0)
    make: Any = torch.ops.aten._sparse_coo_tensor_with_dims_and_tensors.default
    made: torch.Tensor = make(
        n, len(size) - n, size, indices, values,
        dtype=values.dtype, layout=torch.sparse_coo, device=raw_device(values), is_coalesced=coalesced,
    )  # fmt: skip
    return made


# --- composed of dense operations


def _to_dense(self: torch.Tensor, dtype: torch.dtype | None = None, masked_grad: bool | None = None) -> torch.Tensor:
    values = self._values()
    dense = values.new_zeros(self.size(), dtype=dtype)
    return _accumulated(dense, self, values if dtype is None else values.to(dtype))


def _accumulated(dense: torch.Tensor, at: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Add ``values`` to ``dense`` in place, at the indices of the COO tensor ``at``; those that occur several times add up."""
    indices = at._indices()
    if indices.size(0) == 0:
        return dense.add_(values.sum(0))
    return dense.index_put_(tuple(indices.unbind(0)), values, accumulate=True)


def _coalesce(self: torch.Tensor) -> torch.Tensor:
    indices, values = parts(self)
    sizes = self.size()[: self.sparse_dim()]
    if indices.size(0) == 0:
        return _coo(indices.new_empty((0, min(1, values.size(0)))), values.sum(0, keepdim=True)[: values.size(0)], self.size(), True)
    flat, summand = torch.unique(_flattened(indices, sizes), return_inverse=True)
    summed = values.new_zeros((flat.size(0), *values.size()[1:])).index_add_(0, summand, values)
    rows = []
    for size in reversed(sizes):
        rows.append(flat % max(size, 1))
        flat = flat // max(size, 1)
    return _coo(torch.stack(rows[::-1]), summed, self.size(), True)


def _flattened(indices: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """``indices`` [dimensions, n] as positions [n] in a row-major tensor of ``sizes``."""
    strides = [math.prod(sizes[i + 1 :]) for i in range(len(sizes))]
    return (indices * torch.tensor(strides, device=indices.device)[:, None]).sum(0)


def _rows_and_columns(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
    """Row, column and value of every element of a COO or CSR matrix; None for other shapes and layouts."""
    if matrix.layout is torch.sparse_coo and matrix.sparse_dim() == 2 == matrix.dim():
        rows, columns = matrix._indices().unbind(0)
        return rows, columns, matrix._values()
    if matrix.layout is torch.sparse_csr and matrix.dim() == 2 and (matrix.is_floating_point() or matrix.is_complex()):
        starts, columns, values = parts(matrix)
        rows = torch.arange(matrix.size(0), device=values.device).repeat_interleave(starts.diff(), output_size=values.size(0))
        return rows, columns, values
    return None


def _product(matrix: torch.Tensor, dense: torch.Tensor) -> Any:
    """A sparse matrix [m, k] times a dense one [k, n] or a vector [k]."""
    elements = _rows_and_columns(matrix) if dense.layout is torch.strided and dense.dtype == matrix.dtype else None
    if elements is None or dense.size(0) != matrix.size(1):
        return NotImplemented
    rows, columns, values = elements
    wide = torch.float32 if dense.dtype in (torch.float16, torch.bfloat16) else dense.dtype
    terms = dense.index_select(0, columns).to(wide) * (values if dense.dim() == 1 else values[:, None]).to(wide)
    return terms.new_zeros((matrix.size(0), *dense.size()[1:])).index_add_(0, rows, terms).to(dense.dtype)


def _mm(self: torch.Tensor, mat2: torch.Tensor) -> Any:
    return _product(self, mat2) if is_ours(mat2) and self.layout in LAYOUTS else NotImplemented


def _addmm(self: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    if self.layout is not torch.strided or self.dtype != mat1.dtype:
        return NotImplemented
    product = _mm(mat1, mat2)
    if product is NotImplemented:
        return product
    scaled = product if alpha == 1 else product * alpha
    if beta == 0:
        return scaled
    return (self if beta == 1 else self * beta) + scaled


def _add_(self: torch.Tensor, other: torch.Tensor, *, alpha: float = 1) -> Any:
    addable = self.layout is torch.strided and other.layout is torch.sparse_coo and self.size() == other.size() and is_ours(self)
    if not addable or self.dtype != other.dtype:
        return NotImplemented
    return _accumulated(self, other, other._values() if alpha == 1 else other._values() * alpha)


def _add(self: torch.Tensor, other: torch.Tensor, *, alpha: float = 1) -> Any:
    if self.layout is not torch.strided or not is_ours(self):
        return NotImplemented
    return _add_(self.clone(memory_format=torch.contiguous_format), other, alpha=alpha)


def _sparse_mask(self: torch.Tensor, mask: torch.Tensor) -> Any:
    if self.layout is not torch.strided or mask.layout is not torch.sparse_coo or self.size() != mask.size() or not mask.sparse_dim():
        return NotImplemented
    indices = mask._indices()
    return _coo(indices.clone(), self[tuple(indices.unbind(0))], self.size(), mask.is_coalesced())


def _zeros_like(self: torch.Tensor, *, dtype: Any = None, layout: Any = None, device: Any = None, **_: Any) -> Any:
    """torch's composite makes the parts on the device that C++ calls cuda, where a program asks for "cuda"."""
    if (device is None or is_our_device(device)) and layout in (None, self.layout):
        return torch.zeros(self.size(), dtype=dtype or self.dtype, layout=self.layout, device=raw_device(self))
    return NotImplemented


COMPOSED: Final[dict[str, dict[str, Callable[..., Any]]]] = {
    "SparsePrivateUse1": {
        "aten::_to_dense": _to_dense,
        "aten::_coalesce": _coalesce,
        "aten::mm": _mm,
        "aten::mv": _mm,
        "aten::addmm": _addmm,
        "aten::addmv": _addmm,
        "aten::add.Tensor": _add,
        "aten::add_.Tensor": _add_,
        "aten::sparse_mask": _sparse_mask,
    },
    "SparseCsrPrivateUse1": {
        "aten::mm": _mm,
        "aten::mv": _mm,
        "aten::addmm": _addmm,
        "aten::addmv": _addmm,
        "aten::zeros_like": _zeros_like,
    },
}
"""By dispatch key: operators composed of dense operations. They answer NotImplemented to calls that they do not cover."""
