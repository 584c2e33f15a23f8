"""``wooly.RawKernel`` and ``wooly.RawModule``: kernels written in CUDA C++, called as CuPy's classes of these names are. A launch is
recorded among the torch operations around it, so that it runs in their order and in their batch. Its arguments are checked, and split into
memory and numbers.
"""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from wis.dtypes import DType
from wis.kernel.limits import KERNEL_LIMITS
from wis.kernel.model import Access, BufferParam, RegType, ScalarParam, encode_kernel
from wis.kernel.module import ArgKind, Argument, Entry
from wis.kernel.verify import Certificate, VerifiedKernel
from wis.ops import BY_NAME
from wis.program import Imm, Instr, Ref
from wooly.device import transfer
from wooly.device.backend import HANDLE_SHIFT, index_of_handle, is_ours, offset_of, storage_of
from wooly.device.checks import several_devices
from wooly.device.face.foreign import DevicePointer
from wooly.device.lowering.template import Template
from wooly.device.lowering.values import ScalarArg
from wooly.device.programs import Stencil
from wooly.device.recorder import RECORDERS
from wooly.device.tensors import buffer_at
from wooly.errors import CompileError, KernelArgumentError, KernelLaunchError
from wooly.kernels.build import Built, build_cuda, build_ptx, load_wis
from wooly.shared.lru import LruDict

__all__ = ["RawKernel", "RawModule", "Function", "Variables"]

Number = int | float


@dataclass(frozen=True, slots=True)
class Region:
    """Memory from a pointer to the end of its storage."""

    #: of the buffer; -1: no memory
    handle: int
    #: in bytes
    offset: int
    #: to the end of the storage
    nbytes: int
    #: keeps the storage alive
    keep: Any


NULL: Final = Region(-1, 0, 0, None)
"""A null pointer: no memory."""


@dataclass(frozen=True, slots=True)
class Given:
    """One value for every parameter of the kernel, in order."""

    params: tuple[Region | Number, ...]


def bind_arguments(entry: Entry, args: Sequence[Any], variables: Sequence[Region]) -> Given:
    """``args`` as the source declares them, ``variables`` the module's memory. Raises KernelArgumentError naming the argument."""
    wanted = [a for a in entry.arguments if a.kind != ArgKind.VARIABLE]
    if len(args) != len(wanted):
        names = ", ".join(a.name for a in wanted)
        raise KernelArgumentError(f"{entry.name} takes {len(wanted)} arguments ({names}), {len(args)} were given")
    params: list[Region | Number] = [0] * len(entry.kernel.params)
    for place, (argument, value) in enumerate(zip(wanted, args, strict=True)):
        who = f"{entry.name}: argument {place} ({argument.name})"
        if argument.param < 0 and argument.kind != ArgKind.STRUCT:
            continue  # the kernel never looks at it
        if argument.kind == ArgKind.BUFFER:
            params[argument.param] = _region(who, value)
        elif argument.kind == ArgKind.SCALAR:
            params[argument.param] = _scalar(who, value, DType(argument.dtype))
        else:
            for at, number in _fields(who, entry, argument, value):
                params[at] = number
    for argument in entry.arguments:
        if argument.kind == ArgKind.VARIABLE:
            params[argument.param] = variables[argument.variable]
    return Given(tuple(params))


def _region(who: str, value: Any) -> Region:
    if isinstance(value, torch.Tensor):
        if not is_ours(value):
            raise KernelArgumentError(f"{who} is a tensor on {value.device}; a pointer takes one on cuda: move it there with .cuda()")
        return region_of(value)
    if isinstance(value, Region):
        return value
    if isinstance(value, DevicePointer):
        storage = value.storage
        return _from(who, storage, value.address - storage.data_ptr()) if storage is not None else NULL
    if value is None or (isinstance(value, int) and value == 0):
        return NULL
    if hasattr(value, "data_ptr") or isinstance(value, numbers.Number | np.generic):
        raise KernelArgumentError(f"{who} is a pointer: give a cuda tensor (or its data_ptr()), or None; not {value!r}")
    raise KernelArgumentError(f"{who} is a pointer and takes a cuda tensor, not {type(value).__name__}")


def region_of(tensor: torch.Tensor) -> Region:
    """From the first element of one of our tensors to the end of its storage."""
    return _from("a tensor", storage_of(tensor), offset_of(tensor) * tensor.element_size())


def region_at(address: int) -> Region | None:
    """From an address on the device to the end of its buffer; None for an address of anything else."""
    if not address:
        return NULL
    found = buffer_at(address)
    return None if found is None else Region(found[0], found[1], found[2] - found[1], None)


def _from(who: str, storage: Any, offset: int) -> Region:
    nbytes = storage.nbytes()
    if not 0 <= offset <= nbytes:
        raise KernelArgumentError(f"{who} points {offset} bytes into a storage of {nbytes}")
    return Region(storage.data_ptr() >> HANDLE_SHIFT, offset, nbytes - offset, storage)


def _scalar(who: str, value: Any, dtype: DType) -> Number:
    """``value`` as the declared type holds it; signed and unsigned readings of an integer type are both accepted."""
    if isinstance(value, torch.Tensor) and value.numel() == 1 and not is_ours(value):
        value = value.item()
    if dtype.itemsize == 8 and dtype.is_integer and isinstance(value, torch.Tensor) and is_ours(value):
        region = region_of(value)  # a pointer that is only computed with
        return (region.handle << HANDLE_SHIFT) + region.offset
    if value is None and dtype.itemsize == 8 and dtype.is_integer:
        return 0
    if isinstance(value, torch.Tensor) or (isinstance(value, np.ndarray) and value.ndim):
        raise KernelArgumentError(f"{who} takes a number ({dtype.text}), not {type(value).__name__}")
    if isinstance(value, np.generic | np.ndarray):
        value = value.item()
    if dtype.is_integer or dtype is DType.BOOL:
        if not isinstance(value, numbers.Integral):
            raise KernelArgumentError(f"{who} takes a whole number ({dtype.text}), not {value!r}")
        bits = 8 * dtype.itemsize
        if not -(1 << bits - 1) <= int(value) < 1 << bits:
            raise KernelArgumentError(f"{who}: {value} does not fit {dtype.text}")
        # A byte stands extended in a register of 16 bits; wider types fill theirs.
        return int(np.array(int(value) & 0xFF, np.uint8).view(dtype.numpy)) if bits == 8 and dtype.is_integer else int(value)
    if not isinstance(value, numbers.Real):
        raise KernelArgumentError(f"{who} takes a number ({dtype.text}), not {value!r}")
    return float(value)


_BY_REGISTER: Final = {
    RegType.PRED: DType.BOOL, RegType.I16: DType.I16, RegType.I32: DType.I32, RegType.I64: DType.I64, RegType.F16: DType.F16,
    RegType.BF16: DType.BF16, RegType.F32: DType.F32, RegType.F64: DType.F64,
}  # fmt: skip


def _fields(who: str, entry: Entry, argument: Argument, value: Any) -> list[tuple[int, Region | Number]]:
    """The numbers and pointers of a struct, given as bytes or as a NumPy record of its size."""
    raw = bytes(value) if isinstance(value, bytes | bytearray | memoryview) else np.asarray(value).tobytes()
    if len(raw) != argument.nbytes:
        raise KernelArgumentError(f"{who} is a struct of {argument.nbytes} bytes (a NumPy record of its layout), {len(raw)} were given")
    found: list[tuple[int, Region | Number]] = []
    for field in argument.fields:
        number = np.frombuffer(raw, DType(field.dtype).numpy, 1, field.offset)[0].item()
        if isinstance(entry.kernel.params[field.param], BufferParam):
            region = region_at(number)
            if region is None:
                raise KernelArgumentError(f"{who} points to {number:#x} at byte {field.offset}, which is no memory of the device")
            found.append((field.param, region))
        else:
            found.append((field.param, number))
    return found


def register_type(param: ScalarParam) -> DType:
    """The type of the immediate that a scalar parameter takes."""
    return _BY_REGISTER[RegType(param.reg_type)]


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
        found = {index_of_handle(handle) for handle in distinct}
        if len(found) > 1:
            raise several_devices(found)
        recorder = RECORDERS[found.pop() if found else transfer.check_device(None)]
        recorder.link()  # a launch without memory may be the first thing a script does
        recorder.push((stencil, distinct, [*grid, *numbers]))

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
        dims = (*out_dims, *in_dims)
        sources = tuple(ScalarArg(i, int) for i in range(scalar))
        return Template(n_buffers, (), temps, (code,), dims, sources, 0, (self._name,))


Sizes = int | Sequence[int]


class Variables:
    """A loaded module's ``__device__`` and ``__constant__`` variables: buffers that live as long as it does. ``shared``: those of all
    modules of one source, by name or name expression."""

    def __init__(self, built: Built, shared: dict[str, torch.Tensor] | None = None) -> None:
        self._built = built
        self._shared = {} if shared is None else shared
        self._tensors: list[torch.Tensor] | None = None

    def tensors(self) -> list[torch.Tensor]:
        """One u8 tensor on the device for each, made at the first call."""
        if self._tensors is None:
            called = {lowered: expression for expression, lowered in self._built.names.items()}
            self._tensors = []
            for v in self._built.module.variables:
                name = called.get(v.name, v.name)
                if name not in self._shared:
                    self._shared[name] = _uploaded(v.data, v.nbytes)
                self._tensors.append(self._shared[name])
        return self._tensors

    def regions(self) -> list[Region]:
        return [region_of(tensor) for tensor in self.tensors()]

    def get(self, name: str) -> torch.Tensor:
        for variable, tensor in zip(self._built.module.variables, self.tensors(), strict=True):
            if variable.name == name:
                return tensor
        there = ", ".join(v.name for v in self._built.module.variables) or "none"
        raise CompileError(f"there is no variable {name!r} in this module, which has: {there}")


def _uploaded(data: bytes, nbytes: int) -> torch.Tensor:
    whole = torch.zeros(nbytes, dtype=torch.uint8)
    if data:
        whole[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    return whole.to("cuda")


class RawKernel:
    """A kernel from CUDA C++ source.

    ``kernel(grid, block, args, shared_mem=0)`` runs it, in order with the torch operations before and after it. ``grid`` and ``block`` are
    one to three sizes; ``args`` holds a cuda tensor (its memory from the first element on), a ``data_ptr()`` or None for every pointer,
    numbers for scalars, and a NumPy record or bytes for a struct; ``shared_mem`` is the dynamic shared memory in bytes.

    ``options`` are the compiler's (``-DN=4``, ``--fmad=false``, ``-I...``); ``-use_fast_math`` means the device's own math functions
    instead of those that give the same bits everywhere. Compiled at the first use, without a GPU; the result is kept on disk.

    Raises CompileError (source or unsupported constructs, with their line), KernelArgumentError, KernelLaunchError.
    """

    def __init__(self, code: str, name: str, options: Sequence[str] = (), backend: str = "nvrtc", **unused: Any) -> None:
        if backend not in ("nvrtc", "nvcc"):
            raise ValueError(f"backend {backend!r}: kernels are compiled by nvrtc")
        self.code, self.name, self.options = code, name, tuple(options)
        self._loaded: Function | None = None

    def compile(self, log_stream: Any = None) -> None:
        """Compile now instead of at the first call."""
        self._function()

    def __call__(self, grid: Sizes, block: Sizes, args: Sequence[Any] = (), *, shared_mem: int = 0, **unused: Any) -> None:
        self._function()(grid, block, args, shared_mem=shared_mem)

    @property
    def max_threads_per_block(self) -> int:
        return self._function().launcher.verified.kernel.threads_max

    @property
    def shared_size_bytes(self) -> int:
        """Static shared memory."""
        return sum(array.n * DType(array.dtype).itemsize for array in self._function().launcher.verified.kernel.shared)

    @property
    def local_size_bytes(self) -> int:
        """Local memory of a thread."""
        return self._function().launcher.verified.kernel.local_bytes

    @property
    def certificate(self) -> Certificate:
        """Whether a launch may be cut into pieces, and why not."""
        return self._function().launcher.verified.certificate

    def _function(self) -> Function:
        if self._loaded is None:
            built = build_cuda(self.code, self.options, (self.name,))
            self._loaded = Function(built, built.entry(self.name), Variables(built))
        return self._loaded

    def __repr__(self) -> str:
        return f"<wooly.RawKernel {self.name}>"


class Function:
    """A kernel of a loaded module."""

    def __init__(self, built: Built, entry: Entry, variables: Variables) -> None:
        self.entry = entry
        self._variables = variables
        self.launcher = Launcher(built.verified(entry))

    def __call__(self, grid: Sizes, block: Sizes, args: Sequence[Any] = (), *, shared_mem: int = 0, **unused: Any) -> None:
        given = bind_arguments(self.entry, args, self._variables.regions())
        self.launcher.launch(dim3("grid", grid), dim3("block", block), given, int(shared_mem))


class RawModule:
    """Several kernels and the variables they share, from CUDA C++ (``code``), or from a ``.cu``, ``.ptx`` or ``.wis`` file (``path``).

    ``name_expressions`` instantiate templates: ``RawModule(code=..., name_expressions=["scale<float>"]).get_function("scale<float>")``.
    """

    def __init__(
        self,
        code: str | None = None,
        *,
        path: str | Path | None = None,
        options: Sequence[str] = (),
        backend: str = "nvrtc",
        name_expressions: Sequence[str] | None = None,
        **unused: Any,
    ) -> None:
        if (code is None) == (path is None):
            raise ValueError("give either code or path")
        if backend not in ("nvrtc", "nvcc"):
            raise ValueError(f"backend {backend!r}: kernels are compiled by nvrtc")
        self.code, self.path, self.options = code, path, tuple(options)
        self.name_expressions = tuple(name_expressions or ())
        self._loaded: tuple[Built, Variables] | None = None
        self._functions: dict[str, Function] = {}

    def compile(self, log_stream: Any = None) -> None:
        """Compile now instead of at the first use."""
        self._module()

    def get_function(self, name: str) -> Function:
        """The kernel called ``name``, to be called as a RawKernel is. Raises CompileError when there is none."""
        if name not in self._functions:
            built, variables = self._module()
            self._functions[name] = Function(built, built.entry(name), variables)
        return self._functions[name]

    def get_global(self, name: str) -> torch.Tensor:
        """The memory of a ``__device__`` or ``__constant__`` variable: a u8 tensor on the device, which every launch sees; ``view`` it."""
        return self._module()[1].get(name)

    def _module(self) -> tuple[Built, Variables]:
        if self._loaded is None:
            built = _read(Path(self.path), self.options, self.name_expressions) if self.path is not None else None
            if built is None:
                assert self.code is not None, "one of the two was given"
                built = build_cuda(self.code, self.options, self.name_expressions)
            self._loaded = built, Variables(built)
        return self._loaded


def _read(path: Path, options: Sequence[str], names: Sequence[str]) -> Built:
    if path.suffix == ".wis":
        return load_wis(path.read_bytes())
    if path.suffix == ".ptx":
        return build_ptx(path.read_text(), file=path.name)
    return build_cuda(path.read_text(), options, names, file=path.name)
