"""Records a launch among the torch operations around it, so that it runs in their order and in their batch."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from wis.dtypes import DType
from wis.kernel.encoding import encode_kernel
from wis.kernel.limits import KERNEL_LIMITS
from wis.kernel.model import Access, BufferParam, ScalarParam
from wis.kernel.verify import VerifiedKernel
from wis.ops import BY_NAME
from wis.program import Imm, Instr, Ref
from wooly.device.lowering.template import Template
from wooly.device.lowering.values import ScalarArg
from wooly.device.programs import Stencil
from wooly.device.recorder import RECORDER
from wooly.errors import KernelLaunchError
from wooly.kernels.arguments import Given, Region, register_type
from wooly.shared.lru import LruDict

__all__ = ["Dim3", "Launcher", "dim3"]

Dim3 = tuple[int, int, int]

_LAUNCH: Final = BY_NAME["launch"].code
_STENCILS_MAX: Final = 1024


def dim3(what: str, sizes: int | Sequence[int]) -> Dim3:
    """One to three sizes as three. Raises KernelLaunchError."""
    given = tuple(int(n) for n in sizes) if isinstance(sizes, Sequence) else (int(sizes),)
    if not 1 <= len(given) <= 3 or min(given) < 1:
        raise KernelLaunchError(f"{what} {given}: one to three sizes, each at least 1")
    x, y, z = (*given, 1, 1)[:3]
    return x, y, z


class Launcher:
    """Launches of one kernel. A stencil is made once for a block shape, shared memory and regions; grid and numbers are its scalars."""

    def __init__(self, verified: VerifiedKernel) -> None:
        self.verified = verified
        self._name = (verified.digest, encode_kernel(verified.kernel))
        self._stencils: LruDict[tuple[object, ...], Stencil] = LruDict(_STENCILS_MAX)

    def launch(self, grid: Dim3, block: Dim3, given: Given, shared_bytes: int) -> None:
        """Record one. Raises KernelLaunchError for what no node accepts."""
        self._check(grid, block, shared_bytes, given)
        regions = [(x.handle, x.offset, x.nbytes) for x in given.params if isinstance(x, Region)]
        distinct = list(dict.fromkeys(handle for handle, _, nbytes in regions if nbytes))
        places = tuple((distinct.index(handle), offset, nbytes) if nbytes else (-1, 0, 0) for handle, offset, nbytes in regions)
        key = (block, shared_bytes, places)
        stencil = self._stencils.get(key)
        if stencil is None:
            stencil = self._stencils[key] = Stencil(self._template(block, shared_bytes, places, len(distinct)), self.verified.kernel.name)
        numbers = [x for x in given.params if not isinstance(x, Region)]
        RECORDER.link()  # a launch without memory may be the first thing a script does
        RECORDER.push((stencil, distinct, [*grid, *numbers]))

    def _check(self, grid: Dim3, block: Dim3, shared_bytes: int, given: Given) -> None:
        kernel = self.verified.kernel
        threads = block[0] * block[1] * block[2]
        if threads > kernel.threads_max:
            raise KernelLaunchError(f"{kernel.name}: {threads} threads a block, at most {kernel.threads_max} are accepted")
        if grid[0] * grid[1] * grid[2] > KERNEL_LIMITS.grid_blocks_max:
            raise KernelLaunchError(f"{kernel.name}: a grid of {grid} blocks, at most {KERNEL_LIMITS.grid_blocks_max} are accepted")
        static = sum(array.n * DType(array.dtype).itemsize for array in kernel.shared)
        dynamic = shared_bytes if kernel.dynamic else 0
        if shared_bytes < 0 or static + dynamic > KERNEL_LIMITS.dynamic_shared_bytes_max:
            most = KERNEL_LIMITS.dynamic_shared_bytes_max
            raise KernelLaunchError(f"{kernel.name}: {static + shared_bytes} bytes of shared memory, at most {most} are accepted")
        for x, align in zip(given.params, self.verified.aligns, strict=True):
            if isinstance(x, Region) and x.nbytes and x.offset % align:
                raise KernelLaunchError(
                    f"{kernel.name}: a pointer {x.offset} bytes into its storage, but the kernel's accesses need a multiple of {align}"
                )

    def _template(self, block: Dim3, shared_bytes: int, places: Sequence[tuple[int, int, int]], n_buffers: int) -> Template:
        """Slots: the distinct buffers. A null pointer is an empty region of the first buffer, or of a temporary of no bytes."""
        kernel = self.verified.kernel
        outs: list[Ref] = []
        ins: list[Ref | Imm] = [Imm(i, int(DType.I64)) for i in range(3)]
        out_dims: list[int] = []
        in_dims: list[int] = []
        regions, scalar = iter(places), 3
        nowhere = n_buffers  # a temporary
        for param in kernel.params:
            if isinstance(param, ScalarParam):
                ins.append(Imm(scalar, int(register_type(param))))
                scalar += 1
                continue
            slot, offset, nbytes = next(regions)
            ref = Ref(slot if nbytes else nowhere, int(DType.U8), 1)
            writable = isinstance(param, BufferParam) and param.access & Access.WRITE
            (outs if writable else ins).append(ref)
            (out_dims if writable else in_dims).extend((nbytes, 1, offset))
        temps = (0,) if any(not nbytes for _, _, nbytes in places) else ()
        code = Instr(_LAUNCH, tuple(outs), tuple(ins), (0, *block, shared_bytes if kernel.dynamic else 0))
        dims = [*out_dims, *in_dims]
        sources = tuple(ScalarArg(i, int) for i in range(scalar))
        return Template(n_buffers, (), temps, (code,), struct.pack(f"<{len(dims)}q", *dims), sources, 0, (self._name,))
