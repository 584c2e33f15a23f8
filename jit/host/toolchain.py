"""LLVM: text of a module in, address of its function out; compiled objects go through the cache.

The only module that touches llvmlite, which has no types of its own. Fused kernels are compiled without IR passes (the emitter writes what
passes would make of it; a third of the time) and at code generation level 3; library functions are written plainly and get level 2 passes.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding as llvm
from blake3 import blake3

from jit.cache import ObjectCache
from jit.compiling.process import CompileProcess
from jit.errors import ToolchainError

__all__ = ["Toolchain", "c_function", "compile_job"]

_TRUNCATE = "__truncdfhf2"
_TRUNCATE_TEXT = f"""
define half @{_TRUNCATE}(double %x) {{
  %near = fptrunc double %x to float
  %back = fpext float %near to double
  %bits = bitcast float %near to i32
  %inexact = fcmp one double %back, %x
  %low = and i32 %bits, 1
  %even = icmp eq i32 %low, 0
  %size = call double @llvm.fabs.f64(double %x)
  %reached = call double @llvm.fabs.f64(double %back)
  %beyond = fcmp ogt double %reached, %size
  %step = select i1 %beyond, i32 -1, i32 1
  %moved = add i32 %bits, %step
  %adjust = and i1 %inexact, %even
  %odd = select i1 %adjust, i32 %moved, i32 %bits
  %single = bitcast i32 %odd to float
  %result = fptrunc float %single to half
  ret half %result
}}
declare double @llvm.fabs.f64(double)
"""
"""What LLVM calls to round f64 to f16 where the processor has no instruction for it; compiler-rt has it, a Python process does not. It
rounds to f32 to odd, which makes the second rounding exact (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008)."""

LOADS_BEFORE_JOINING = 4096
"""After how many loaded objects their mappings are joined. Each object has two of its own; Linux gives a process 65,530."""

_SYMBOL_TABLE, _SYMBOL_BYTES = 2, 24  # SHT_SYMTAB and sizeof(Elf64_Sym) of the System V ABI

_SPLIT_FEATURES = ("avx10.1-256", "avx10.1-512", "avx10.2-256", "avx10.2-512")
"""Features that older LLVM lists for a host but that this one does not know by that name."""


class _Host:
    """This machine as LLVM sees it, and how modules are compiled for it."""

    def __init__(self) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        features = {name: on for name, on in llvm.get_host_cpu_features().items() if name not in _SPLIT_FEATURES}
        self.features = ",".join(("+" if on else "-") + name for name, on in sorted(features.items()))
        self.cpu: str = llvm.get_host_cpu_name()
        self._target: Any = llvm.Target.from_default_triple()
        self.triple: str = self._target.triple
        self._machine = self.machine()

    def machine(self) -> Any:
        return self._target.create_target_machine(cpu=self.cpu, features=self.features, opt=3, jit=True)

    def compile(self, text: str, optimise: bool, passes: Sequence[str] = ()) -> bytes:
        """The object of a module; ``passes``: these instead of the usual ones. Raises ToolchainError."""
        try:
            module = llvm.parse_assembly(text)
            module.verify()
        except RuntimeError as error:
            raise ToolchainError(f"LLVM refused generated code: {error}") from error
        if optimise:
            options = llvm.create_pipeline_tuning_options(speed_level=2)
            options.loop_vectorization = True
            builder = llvm.create_pass_builder(self._machine, options)
            manager = llvm.create_new_module_pass_manager() if passes else builder.getModulePassManager()
            for name in passes:
                getattr(manager, f"add_{name}_pass")()
            manager.run(module, builder)
        body: bytes = self._machine.emit_object(module)
        return body


@cache
def _this_host() -> _Host:
    return _Host()


@cache
def _define_truncation() -> Any:
    """Make ``__truncdfhf2`` known to every engine of this process; the engine that holds it."""
    host = _this_host()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), host.machine())
    engine.add_object_file(llvm.ObjectFileRef.from_data(host.compile(_TRUNCATE_TEXT, False)))
    engine.finalize_object()
    llvm.add_symbol(_TRUNCATE, engine.get_function_address(_TRUNCATE))
    return engine


def _undefined(body: bytes) -> list[str]:
    """The names that an object (ELF, 64 bits, little-endian) refers to and does not define."""
    table_at, entry_bytes, n_sections = struct.unpack_from("<Q10xHH", body, 0x28)
    sections = [struct.unpack_from("<IIQQQQII", body, table_at + i * entry_bytes) for i in range(n_sections)]
    names = []
    for _, kind, _, _, at, nbytes, link, _ in sections:
        if kind != _SYMBOL_TABLE:
            continue
        for symbol_at in range(at, at + nbytes, _SYMBOL_BYTES):
            name_at, _, _, section = struct.unpack_from("<IBBH", body, symbol_at)
            if name_at and not section:
                start = sections[link][4] + name_at
                names.append(body[start : body.index(b"\0", start)].decode())
    return names


def compile_job(payload: bytes) -> bytes:
    """A job of the compile process: one byte (optimise or not) and the text of a module in, its object out."""
    return _this_host().compile(payload[1:].decode(), payload[:1] == b"\1")


class Toolchain:
    """Compiles for this machine. Addresses stay valid as long as the object lives.

    ``guard``: what compiles the modules that are declared foreign; None: they are compiled here like all others.
    """

    def __init__(self, cache: ObjectCache, guard: CompileProcess | None = None) -> None:
        self._host = _Host()
        self.cpu = self._host.cpu
        self._cache = cache
        self._guard = guard
        self._addresses: dict[str, dict[str, int]] = {}
        # One engine holds all objects, so every symbol must be unique; it owns its machine, which is why that is another one.
        _define_truncation()
        self._engine: Any = llvm.create_mcjit_compiler(llvm.parse_assembly(""), self._host.machine())
        version = ".".join(map(str, llvm.llvm_version_info))
        self._seal = "\n".join((llvmlite.__version__, version, self._host.triple, self.cpu, self._host.features))
        self.compiled = 0
        self._loaded = 0

    def functions(
        self,
        key: str,
        names: Sequence[str],
        text: Callable[[], str],
        *,
        optimise: bool = False,
        passes: Sequence[str] = (),
        foreign: bool = False,
    ) -> dict[str, int]:
        """The addresses of ``names``, defined by the module ``text()``; ``key`` identifies the text, which the cache may make needless.

        Names must be unique among all modules ever given. ``foreign``: the text was made from a user's kernel; raises KernelRefused when
        its compilation exceeds a limit.
        """
        seal = blake3(f"{self._seal}\n{optimise} {passes}\n{' '.join(names)}\n{key}".encode()).hexdigest()
        if seal not in self._addresses:
            body = self._cache.get(seal)
            if body is None:
                self.compiled += 1
                if foreign and self._guard is not None:
                    body = self._guard.compile("llvm", (b"\1" if optimise else b"\0") + text().encode())
                else:
                    body = self._host.compile(text(), optimise, passes)
                self._cache.put(seal, body)
            self._addresses[seal] = self._load(body, names)
        return self._addresses[seal]

    def function(self, key: str, name: str, text: Callable[[], str], *, optimise: bool = False) -> int:
        """As ``functions``, for a module with one function."""
        return self.functions(key, (name,), text, optimise=optimise)[name]

    def _load(self, body: bytes, names: Sequence[str]) -> dict[str, int]:
        # LLVM would call the address 0 of a name that neither this process nor an earlier object of this engine defines.
        unknown = [name for name in _undefined(body) if not (llvm.address_of_symbol(name) or self._engine.get_function_address(name))]
        if unknown:
            raise ToolchainError(f"generated code calls functions that this process lacks: {', '.join(unknown)}")
        self._engine.add_object_file(llvm.ObjectFileRef.from_data(body))
        self._engine.finalize_object()
        addresses = {name: int(self._engine.get_function_address(name)) for name in names}
        missing = [name for name, address in addresses.items() if not address]
        if missing:
            raise ToolchainError(f"a compiled object does not define {', '.join(missing)}")
        self._loaded += 1
        if self._loaded % LOADS_BEFORE_JOINING == 0:
            _join_mappings()
        return addresses


def _join_mappings() -> None:
    """Give the constants of loaded objects, each in a read-only mapping between two of code, the protection of code.

    The kernel then makes one mapping of them all. LLVM's memory manager never joins any, so that a process would reach its limit after some
    32,000 objects, and end.
    """
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, protection, *_, inode = line.split()[:5]
        if protection == "r--p" and inode == "0" and len(line.split()) == 5:  # without a file or a name
            low, high = (int(end, 16) for end in span.split("-"))
            if protect(low, high - low, mmap.PROT_READ | mmap.PROT_EXEC):
                raise ToolchainError(f"mprotect: {os.strerror(ctypes.get_errno())}")


def c_function(address: int, result: Any, *kinds: Any) -> Callable[..., Any]:
    """A Python callable for native code; the interpreter lock is released while it runs."""
    return ctypes.CFUNCTYPE(result, *kinds)(address)
