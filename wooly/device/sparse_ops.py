"""Operations on sparse tensors of the device, composed of dense operations on their indices and values.

Those in COMPOSED answer NotImplemented to calls that they do not cover, which are then computed on the CPU of this machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from wooly.device.backend import is_our_device, is_ours, raw_device
from wooly.device.lowering import Unsupported, composite
from wooly.device.sparse import LAYOUTS, assembled, coo, parts

_GROUPS_MAX: Final = 1 << 24
"""The most numbers that a softmax holds for the places which its elements may share: of three and more dimensions there are many."""
_COO, _CSR, _CSC = torch.sparse_coo, torch.sparse_csr, torch.sparse_csc


# -- conversions


@composite("aten::_to_sparse", "aten::_to_sparse.sparse_dim")
def _to_sparse(self: Tensor, *options: Any, **named: Any) -> Tensor:
    """The elements of a dense tensor that are not 0. How many there are is asked of the node."""
    given = [*options, *named.values()]
    sparse_dim = given[0] if given and isinstance(given[0], int) else self.dim()
    if any(x not in (None, _COO) for x in given if not isinstance(x, int)) or not 0 < sparse_dim <= self.dim() or not self.numel():
        raise Unsupported("another layout, or a tensor without dimensions or elements")
    there = self != 0
    if sparse_dim < self.dim():
        there = there.flatten(sparse_dim).any(-1)
    indices = there.nonzero().t()
    return coo(indices.clone(), self[tuple(indices.unbind(0))], self.size(), True)


@composite("aten::_to_sparse_csr")
def _to_sparse_csr(self: Tensor, dense_dim: int | None = None) -> Tensor:
    """Of a dense matrix."""
    return _compressed(_matrix(self, dense_dim), _CSR)


@composite("aten::_to_sparse_csc")
def _to_sparse_csc(self: Tensor, dense_dim: int | None = None) -> Tensor:
    """Of a dense matrix."""
    return _compressed(_matrix(self, dense_dim), _CSC)


def _matrix(self: Tensor, dense_dim: int | None) -> Tensor:
    if self.dim() != 2 or dense_dim:
        raise Unsupported("batches of matrices, or of values")
    return _to_sparse(self)


def _compressed(self: Tensor, layout: torch.layout) -> Tensor:
    """A matrix in COO, with the rows (CSC: the columns) compressed."""
    indices, values = parts(self.coalesce())
    major, minor = indices.unbind(0) if layout is _CSR else indices.flip(0).unbind(0)
    if layout is _CSC:
        order = torch.argsort(major, stable=True)
        major, minor, values = major[order], minor[order], values[order]
    n = self.size(0 if layout is _CSR else 1)
    starts = major.new_zeros(n + 1).index_add_(0, major + 1, torch.ones_like(major)).cumsum(0)
    make: Any = torch.ops.aten._sparse_compressed_tensor_unsafe.default
    made: Tensor = make(starts, minor.contiguous(), values, self.size(), dtype=values.dtype, layout=layout, device=raw_device(values))
    return made


def _to_compressed(layout: torch.layout) -> Callable[..., Any]:
    def convert(self: Tensor, dense_dim: int | None = None) -> Any:
        return NotImplemented if self.dim() != 2 or self.sparse_dim() != 2 or dense_dim else _compressed(self, layout)

    return convert


def _csr_to_coo(self: Tensor, *options: Any, **named: Any) -> Any:
    elements = _rows_and_columns(self) if self.layout is _CSR and all(x in (None, _COO, 2) for x in (*options, *named.values())) else None
    if elements is None:
        return NotImplemented
    rows, columns, values = elements
    return coo(torch.stack([rows, columns]), values, self.size(), True)


def _to_dense(self: Tensor, dtype: torch.dtype | None = None, masked_grad: bool | None = None) -> Any:
    if self.layout is _COO:
        values = self._values()
        return _accumulated(values.new_zeros(self.size(), dtype=dtype), self._indices(), values if dtype is None else values.to(dtype))
    elements = _rows_and_columns(self)
    if elements is None or dtype not in (None, self.dtype):
        return NotImplemented
    rows, columns, values = elements
    return values.new_zeros(self.size()).index_put_((rows, columns), values)


def _accumulated(dense: Tensor, indices: Tensor, values: Tensor) -> Tensor:
    """Add ``values`` to ``dense`` in place, at the indices of a COO tensor; those that occur several times add up."""
    if indices.size(0) == 0:
        return dense.add_(values.sum(0))
    return dense.index_put_(tuple(indices.unbind(0)), values, accumulate=True)


def _coalesce(self: Tensor) -> Tensor:
    indices, values = parts(self)
    sizes = self.size()[: self.sparse_dim()]
    if indices.size(0) == 0:
        return coo(indices.new_empty((0, min(1, values.size(0)))), values.sum(0, keepdim=True)[: values.size(0)], self.size(), True)
    flat, summand = torch.unique(_flattened(indices, sizes), return_inverse=True)
    summed = values.new_zeros((flat.size(0), *values.size()[1:])).index_add_(0, summand, values)
    return coo(_unflattened(flat, sizes), summed, self.size(), True)


def _flattened(indices: Tensor, sizes: Sequence[int]) -> Tensor:
    """``indices`` [dimensions, n] as positions [n] in a row-major tensor of ``sizes``."""
    strides = [math.prod(sizes[i + 1 :]) for i in range(len(sizes))]
    return (indices * torch.tensor(strides, device=indices.device)[:, None]).sum(0)


def _unflattened(flat: Tensor, sizes: Sequence[int]) -> Tensor:
    """The inverse of ``_flattened``."""
    rows = []
    for size in reversed(sizes):
        rows.append(flat % max(size, 1))
        flat = flat // max(size, 1)
    return torch.stack(rows[::-1])


def _rows_and_columns(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
    """Row, column and value of every element of a matrix in COO, CSR or CSC; None for other shapes and layouts."""
    if matrix.layout is _COO and matrix.sparse_dim() == 2 == matrix.dim():
        rows, columns = matrix._indices().unbind(0)
        return rows, columns, matrix._values()
    if matrix.layout in (_CSR, _CSC) and matrix.dim() == 2:
        starts, minor, values = parts(matrix)
        n = matrix.size(0 if matrix.layout is _CSR else 1)
        major = torch.arange(n, device=values.device).repeat_interleave(starts.diff(), output_size=values.size(0))
        return (major, minor, values) if matrix.layout is _CSR else (minor, major, values)
    return None


# -- functions of the elements


def _of_values(name: str, *, coalesces: bool) -> Callable[..., Any]:
    """Operator ``name``, which leaves 0 as it is, on the values. ``coalesces``: elements at one place are added first."""

    def of_values(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        if self.layout not in (_COO, _CSR):
            return NotImplemented
        held = self.coalesce() if coalesces and self.layout is _COO else self
        *indices, values = parts(held)
        return assembled(held, [*(x.clone() for x in indices), getattr(torch.ops.aten, name)(values, *args, **kwargs)])

    return of_values


def _pow(self: Tensor, exponent: Any) -> Any:
    return NotImplemented if exponent == 0 else _of_values("pow", coalesces=True)(self, exponent)


def _scaled(name: str) -> Callable[..., Any]:
    """A product with, or a quotient by, a number; products of elements at the same places."""

    def scaled(self: Tensor | complex, other: Tensor | complex) -> Any:
        if name == "mul" and (not isinstance(self, Tensor) or self.layout is torch.strided):
            self, other = other, self
        if not isinstance(self, Tensor) or self.layout not in ((_COO, _CSR) if name == "mul" else (_COO,)):  # torch divides COO only
            return NotImplemented
        if not isinstance(other, Tensor) or (other.layout is torch.strided and other.dim() == 0):
            *indices, values = parts(self)
            return assembled(self, [*(x.clone() for x in indices), getattr(torch.ops.aten, name)(values, other)])
        return _elements_product(self, other) if name == "mul" and self.layout is _COO and self.size() == other.size() else NotImplemented

    return scaled


def _elements_product(self: Tensor, other: Tensor) -> Any:
    if not is_ours(other) or not self.sparse_dim():
        return NotImplemented
    if other.layout is torch.strided:
        indices, values = parts(self)
        return coo(indices.clone(), values * other[tuple(indices.unbind(0))], self.size(), self.is_coalesced())
    if other.layout is not _COO or other.sparse_dim() != self.sparse_dim() or not (self.is_coalesced() and other.is_coalesced()):
        return NotImplemented
    (indices, values), (of_other, others) = parts(self), parts(other)
    if not (values.size(0) and others.size(0)):
        return NotImplemented
    sizes = self.size()[: self.sparse_dim()]
    flat, beside = _flattened(indices, sizes), _flattened(of_other, sizes)
    place = torch.searchsorted(beside, flat).clamp(max=beside.size(0) - 1)
    (both,) = (beside[place] == flat).nonzero().unbind(1)
    return coo(indices[:, both], values[both] * others[place[both]], self.size(), True)


def _sum(self: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
    return self._values().sum(dtype=dtype)


def _norm(self: Tensor, p: Any, dim: Sequence[int], keepdim: bool = False) -> Any:
    return NotImplemented if dim or keepdim else self.coalesce()._values().norm(2 if p is None else p)


def _softmax(log: bool) -> Callable[..., Any]:
    """Over the elements that are there; the others count as -inf."""

    def softmax(self: Tensor, dim: int, half_to_float: bool) -> Any:
        dim = dim if dim >= 0 else dim + self.dim()
        held = self.coalesce()
        indices, values = parts(held)
        if half_to_float or dim >= self.sparse_dim() or not values.numel():
            return NotImplemented
        others = [i for i in range(self.sparse_dim()) if i != dim]
        sizes = [self.size(i) for i in others]
        group = _flattened(indices[others], sizes) if others else torch.zeros_like(indices[0])
        shape = (math.prod(sizes), *values.size()[1:])
        if math.prod(shape) > _GROUPS_MAX:
            return NotImplemented
        most = values.new_full(shape, -math.inf).index_reduce_(0, group, values, "amax")
        shifted = values - most[group]
        total = values.new_zeros(shape).index_add_(0, group, shifted.exp())[group]
        return coo(indices.clone(), shifted - total.log() if log else shifted.exp() / total, self.size(), True)

    return softmax


def _projected(self: Tensor, mask: Tensor) -> Any:
    """The elements of a COO tensor at the places of another one, 0 where it has none."""
    if mask.layout is not _COO or self.size() != mask.size() or self.sparse_dim() != mask.sparse_dim() or not (self._nnz() and mask._nnz()):
        return NotImplemented
    (indices, values), wanted = parts(self.coalesce()), mask._indices()
    sizes = self.size()[: self.sparse_dim()]
    there, flat = _flattened(indices, sizes), _flattened(wanted, sizes)
    place = torch.searchsorted(there, flat).clamp(max=there.size(0) - 1)
    found = (there[place] == flat).view(-1, *(1 for _ in values.size()[1:]))
    return coo(wanted.clone(), torch.where(found, values[place], 0), self.size(), mask.is_coalesced())


def _sparse_mask(self: Tensor, mask: Tensor) -> Any:
    if self.layout is _COO:
        return _projected(self, mask)
    if self.layout is not torch.strided or self.size() != mask.size():
        return NotImplemented
    if mask.layout is _COO and mask.sparse_dim():
        indices = mask._indices()
        return coo(indices.clone(), self[tuple(indices.unbind(0))], self.size(), mask.is_coalesced())
    elements = _rows_and_columns(mask) if mask.layout is _CSR else None
    if elements is None:
        return NotImplemented
    *indices_of, _ = parts(mask)
    return assembled(mask, [*(x.clone() for x in indices_of), self[elements[0], elements[1]]])


# -- sums and products


def _added(self: Tensor, other: Tensor, *, alpha: float = 1) -> Any:
    """Also of two sparse tensors of one layout. As on CUDA, elements that are not in order are put one after the other, up to as many as a
    dense tensor has."""
    if not isinstance(self, Tensor) or not isinstance(other, Tensor):
        return NotImplemented
    if self.layout is torch.strided:
        return _add_(self.clone(memory_format=torch.contiguous_format), other, alpha=alpha) if is_ours(self) else NotImplemented
    if not is_ours(other) or self.layout != other.layout or self.size() != other.size() or self.dtype != other.dtype:
        return NotImplemented
    if self.layout is _CSR:
        one, two = _csr_to_coo(self), _csr_to_coo(other)
        return NotImplemented if one is NotImplemented else _compressed(_added(one, two, alpha=alpha), _CSR)
    if self.layout is not _COO or self.sparse_dim() != other.sparse_dim():
        return NotImplemented
    (indices, values), (of_other, others) = parts(self), parts(other)
    scaled = others if alpha == 1 else others * alpha
    if scaled.dtype != self.dtype:
        return NotImplemented
    if not others.size(0):
        return self.clone()
    if not values.size(0):
        return coo(of_other.clone(), scaled.clone(), self.size(), other.is_coalesced())
    both = coo(torch.cat([indices, of_other], 1), torch.cat([values, scaled]), self.size(), False)
    is_sorted = self.is_coalesced() and other.is_coalesced()
    return both.coalesce() if is_sorted or both._nnz() > self.numel() else both


def _cat(tensors: Sequence[Tensor], dim: int = 0) -> Any:
    first = tensors[0]
    dim = dim if dim >= 0 else dim + first.dim()
    if len({(x.layout, x.dim(), x.layout is _COO and x.sparse_dim()) for x in tensors}) > 1 or first.layout is not _COO:
        return NotImplemented
    sizes = [[*x.size()[:dim], *x.size()[dim + 1 :]] for x in tensors]
    if dim >= first.sparse_dim() or any(size != sizes[0] for size in sizes) or not all(is_ours(x) for x in tensors):
        return NotImplemented
    shifted, start = [], 0
    for x in tensors:
        indices = x._indices()
        shifted.append(torch.cat([indices[:dim], indices[dim : dim + 1] + start, indices[dim + 1 :]]))
        start += x.size(dim)
    size = [*first.size()[:dim], start, *first.size()[dim + 1 :]]
    return coo(torch.cat(shifted, 1), torch.cat([x._values() for x in tensors]), size, False)


def _in_place(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, whose result a COO tensor takes over."""

    def in_place(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        found = function(self, *args, **kwargs) if self.layout is _COO else NotImplemented
        if found is NotImplemented or found.dtype != self.dtype:
            return NotImplemented
        return torch.ops.aten.copy_sparse_to_sparse_.default(self, found)

    return in_place


def _add_(self: Tensor, other: Tensor, *, alpha: float = 1) -> Any:
    if self.layout is _COO:
        return _in_place(_added)(self, other, alpha=alpha)
    addable = self.layout is torch.strided and other.layout is _COO and self.size() == other.size() and is_ours(self)
    if not addable or self.dtype != other.dtype:
        return NotImplemented
    return _accumulated(self, other._indices(), other._values() if alpha == 1 else other._values() * alpha)


def _sub(self: Tensor, other: Tensor, *, alpha: float = 1) -> Any:
    return NotImplemented if not isinstance(self, Tensor) or self.dtype == torch.bool else _added(self, other, alpha=-alpha)


def _product(matrix: Tensor, dense: Tensor) -> Any:
    """A sparse matrix [m, k] times a dense one [k, n] or a vector [k]."""
    elements = _rows_and_columns(matrix)
    if elements is None or dense.dtype != matrix.dtype or dense.size(0) != matrix.size(1):
        return NotImplemented
    rows, columns, values = elements
    if matrix.layout is not _COO and not (values.is_floating_point() or values.is_complex()):
        return NotImplemented
    wide = torch.float32 if dense.dtype in (torch.float16, torch.bfloat16) else dense.dtype
    terms = dense.index_select(0, columns).to(wide) * (values if dense.dim() == 1 else values[:, None]).to(wide)
    return terms.new_zeros((matrix.size(0), *dense.size()[1:])).index_add_(0, rows, terms).to(dense.dtype)


def _of_two_sparse(self: Tensor, other: Tensor) -> Any:
    """The product of two matrices in COO: one term for each pair of elements that meet. How many there are is asked of the node."""
    if self.dim() != 2 or other.dim() != 2 or self.size(1) != other.size(0) or self.dtype != other.dtype or not self.is_floating_point():
        return NotImplemented
    (places, values), (_, others) = parts(self.coalesce()), parts(other.coalesce())
    starts, columns, _ = parts(_compressed(other, _CSR))
    counts = starts.diff()[places[1]]
    ends = counts.cumsum(0)
    if not values.size(0) or not others.size(0):
        return NotImplemented
    of = torch.arange(values.size(0), device=values.device).repeat_interleave(counts, output_size=int(ends[-1]))
    beside = starts[places[1]][of] + torch.arange(of.size(0), device=of.device) - (ends - counts)[of]
    indices = torch.stack([places[0][of], columns[beside]])
    return coo(indices, values[of] * others[beside], (self.size(0), other.size(1)), False).coalesce()


def _mm(self: Tensor, other: Tensor) -> Any:
    if not is_ours(self) or not is_ours(other):
        return NotImplemented
    if self.layout is torch.strided:
        found = _product(other.t(), self.t()) if other.layout is _COO else NotImplemented
        return found if found is NotImplemented else found.t().contiguous()
    if self.layout in LAYOUTS and other.layout is torch.strided:
        return _product(self, other)
    if self.layout is _COO and other.layout is _COO:
        return _of_two_sparse(self, other)
    if self.layout is _CSR and other.layout is _CSR:
        found = _of_two_sparse(_csr_to_coo(self), _csr_to_coo(other))
        return found if found is NotImplemented else _compressed(found, _CSR)
    return NotImplemented


def _bmm(self: Tensor, mat2: Tensor) -> Any:
    if self.layout is not _COO or self.sparse_dim() != 3 or mat2.layout is not torch.strided or self.dtype != mat2.dtype or mat2.dim() != 3:
        return NotImplemented
    if not is_ours(mat2) or self.size()[::2] != mat2.size()[:2]:
        return NotImplemented
    batches, rows, columns = self.size()
    of, row, column = self._indices().unbind(0)
    places = torch.stack([of * rows + row, of * columns + column])  # in one matrix with the others on its diagonal
    found = _product(coo(places, self._values(), (batches * rows, batches * columns), False), mat2.reshape(batches * columns, -1))
    return found.view(batches, rows, mat2.size(2))


def _addmm(self: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    if self.layout is not torch.strided or self.dtype != mat1.dtype or mat2.layout is not torch.strided:
        return NotImplemented
    product = _mm(mat1, mat2)
    if product is NotImplemented:
        return product
    scaled = product if alpha == 1 else product * alpha
    if beta == 0:
        return scaled
    return (self if beta == 1 else self * beta) + scaled


def _sampled_addmm(self: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    elements = (
        _rows_and_columns(self) if self.layout is _CSR and mat1.dim() == 2 == mat2.dim() and is_ours(mat1) and is_ours(mat2) else None
    )
    if elements is None or not self.dtype == mat1.dtype == mat2.dtype or (mat1.size(0), mat1.size(1), mat2.size(1)) != (
        self.size(0), mat2.size(0), self.size(1),
    ):  # fmt: skip
        return NotImplemented
    rows, columns, values = elements
    found = (mat1[rows] * mat2.t()[columns]).sum(1) * alpha
    *indices, _ = parts(self)
    return assembled(self, [*(x.clone() for x in indices), found if beta == 0 else found + values * beta])


def _zeros_like(self: Tensor, *, dtype: Any = None, layout: Any = None, device: Any = None, **_: Any) -> Any:
    """torch's composite makes the parts on the device that C++ calls cuda, where a program asks for "cuda"."""
    if (device is None or is_our_device(device)) and layout in (None, self.layout) and self.layout in (_CSR, _CSC):
        return torch.zeros(self.size(), dtype=dtype or self.dtype, layout=self.layout, device=raw_device(self))
    return NotImplemented


_KEEPING_ZERO: Final = (
    "abs asin asinh atan atanh ceil deg2rad erf erfinv expm1 floor frac isinf isnan isneginf isposinf log1p rad2deg relu round sgn sign "
    "signbit sin sinh sqrt tan tanh trunc"
).split()
_BOTH: Final[dict[str, Callable[..., Any]]] = {
    **{f"aten::{name}": _of_values(name, coalesces=True) for name in _KEEPING_ZERO},
    "aten::neg": _of_values("neg", coalesces=False),
    "aten::mul.Tensor": _scaled("mul"),
    "aten::div.Tensor": _scaled("div"),
    "aten::_to_dense": _to_dense,
    "aten::mm": _mm,
    "aten::mv": _mm,
    "aten::addmm": _addmm,
    "aten::addmv": _addmm,
    "aten::add.Tensor": _added,
    "aten::sub.Tensor": _sub,
    "aten::sparse_mask": _sparse_mask,
}
COMPOSED: Final[dict[str, dict[str, Callable[..., Any]]]] = {
    "SparsePrivateUse1": {
        **_BOTH,
        "aten::_coalesce": _coalesce,
        "aten::_to_sparse_csr": _to_compressed(_CSR),
        "aten::_to_sparse_csc": _to_compressed(_CSC),
        "aten::pow.Tensor_Scalar": _pow,
        "aten::sum": _sum,
        "aten::norm.ScalarOpt_dim": _norm,
        "aten::_sparse_softmax": _softmax(log=False),
        "aten::_sparse_log_softmax": _softmax(log=True),
        "aten::_sparse_sparse_matmul": _of_two_sparse,
        "aten::add_.Tensor": _add_,
        "aten::sub_.Tensor": _in_place(_sub),
        "aten::mul_.Tensor": _in_place(_scaled("mul")),
        "aten::div_.Tensor": _in_place(_scaled("div")),
        "aten::neg_": _in_place(_of_values("neg", coalesces=False)),
        "aten::cat": _cat,
        "aten::bmm": _bmm,
    },
    "SparseCsrPrivateUse1": {
        **_BOTH,
        "aten::_to_sparse": _csr_to_coo,
        "aten::_to_sparse.sparse_dim": _csr_to_coo,
        "aten::sparse_sampled_addmm": _sampled_addmm,
        "aten::zeros_like": _zeros_like,
    },
}
"""By dispatch key: operators composed of dense operations."""
