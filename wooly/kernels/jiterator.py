"""``torch.cuda.jiterator``: a C++ function of one element, given as a template, becomes a kernel over tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import torch
from torch import Tensor

from wooly.errors import KernelArgumentError
from wooly.kernels.raw import RawKernel

_NAMES: Final = {
    torch.float32: "float",
    torch.float64: "double",
    torch.int64: "long long",
    torch.int32: "int",
    torch.int16: "short",
    torch.int8: "signed char",
    torch.uint8: "unsigned char",
    torch.bool: "bool",
    torch.complex64: "cuda::std::complex<float>",
    torch.complex128: "cuda::std::complex<double>",
}
_WIDER: Final = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.complex32: torch.complex64}
_BLOCK: Final = 256
_KERNELS_MAX: Final = 256


def compile_and_launch(
    code: str, name: str, by_reference: bool, n_outputs: int, tensors: Sequence[Tensor], numbers: Mapping[str, Any]
) -> Tensor | tuple[Tensor, ...]:
    """``name`` of every element of ``tensors``, which are broadcast and promoted to one type; half types are computed in f32.

    ``by_reference``: the function takes its ``n_outputs`` results as references, after its arguments; else it returns the only one.
    Raises KernelArgumentError for sparse tensors, other types and tensors elsewhere, CompileError with the compiler's words.
    """
    if not tensors or not all(x.is_cuda and x.layout is torch.strided for x in tensors):
        raise KernelArgumentError(f"{name}: jiterator takes dense tensors on the device, at least one")
    dtype = tensors[0].dtype
    for x in tensors[1:]:
        dtype = torch.promote_types(dtype, x.dtype)
    computed = _WIDER.get(dtype, dtype)
    if computed not in _NAMES:
        raise KernelArgumentError(f"{name}: jiterator does not take {dtype} here; use wooly.RawKernel")
    shape = torch.broadcast_shapes(*(x.shape for x in tensors))  # type: ignore[no-untyped-call]  # torch's
    given = [x.resolve_conj().resolve_neg().to(computed).expand(shape).contiguous() for x in tensors]
    results = [torch.empty(given[0].shape, dtype=computed, device=given[0].device) for _ in range(n_outputs)]
    count = given[0].numel()
    if count:
        kernel = _kernel(code, name, by_reference, len(given), n_outputs, (_NAMES[computed], len(numbers)))
        number = float if computed.is_floating_point or computed.is_complex else bool if computed == torch.bool else int
        kernel((-(-count // _BLOCK),), (_BLOCK,), (count, *given, *results, *map(number, numbers.values())))
    results = [result.to(dtype) for result in results]
    return tuple(results) if by_reference and n_outputs > 1 else results[0]


@lru_cache(_KERNELS_MAX)
def _kernel(code: str, name: str, by_reference: bool, n_inputs: int, n_outputs: int, form: tuple[str, int]) -> RawKernel:
    """``form``: the type in which it computes, and how many numbers it takes."""
    element, n_numbers = form
    inputs, outputs, numbers = (range(n) for n in (n_inputs, n_outputs, n_numbers))
    number = "double" if element in ("float", "double") or "complex" in element else "long long"
    params = [f"const T *x{i}" for i in inputs] + [f"T *y{i}" for i in outputs] + [f"{number} s{i}" for i in numbers]
    args = [f"x{i}[at]" for i in inputs] + [f"(T)s{i}" for i in numbers]
    call = f"{name}<T>({', '.join([*args, *(f'y{i}[at]' for i in outputs)] if by_reference else args)})"
    text = f"""{"#include <cuda/std/complex>" if "complex" in element else ""}
{code}
typedef {element} T;
extern "C" __global__ void elementwise(long long n, {", ".join(params)}) {{
    long long at = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (at < n) {{ {call if by_reference else f"y0[at] = {call}"}; }}
}}
"""
    return RawKernel(text, "elementwise")
