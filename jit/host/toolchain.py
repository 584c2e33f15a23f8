"""LLVM: text of a module in, address of its function out; compiled objects go through the cache.

The only module that touches llvmlite, which has no types of its own. Fused kernels are compiled without IR passes (the emitter writes what
passes would make of it; a third of the time) and at code generation level 3; library functions are written plainly and get level 2 passes.

May live here: code generation. May not: what is compiled.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import llvmlite
import llvmlite.binding as llvm
from blake3 import blake3

from jit.cache import ObjectCache
from jit.errors import ToolchainError

__all__ = ["Toolchain", "c_function"]

_SPLIT_FEATURES = ("avx10.1-256", "avx10.1-512", "avx10.2-256", "avx10.2-512")
"""Features that older LLVM lists for a host but that this one does not know by that name."""


class Toolchain:
    """Compiles for this machine. Addresses stay valid as long as the object lives."""

    def __init__(self, cache: ObjectCache) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        features = {name: on for name, on in llvm.get_host_cpu_features().items() if name not in _SPLIT_FEATURES}
        flat = ",".join(("+" if on else "-") + name for name, on in sorted(features.items()))
        self.cpu: str = llvm.get_host_cpu_name()
        self._cache = cache
        self._addresses: dict[str, dict[str, int]] = {}
        target = llvm.Target.from_default_triple()

        def machine() -> Any:
            return target.create_target_machine(cpu=self.cpu, features=flat, opt=3, jit=True)

        self._machine: Any = machine()
        # One engine holds all objects, so every symbol must be unique; it owns its machine, which is why that is another one.
        self._engine: Any = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine())
        self._seal = "\n".join((llvmlite.__version__, ".".join(map(str, llvm.llvm_version_info)), target.triple, self.cpu, flat))
        self.compiled = 0

    def functions(self, key: str, names: Sequence[str], text: Callable[[], str], *, optimise: bool = False) -> dict[str, int]:
        """The addresses of ``names``, defined by the module ``text()``; ``key`` identifies the text, which the cache may make needless.

        Names must be unique among all modules ever given.
        """
        seal = blake3(f"{self._seal}\n{optimise}\n{' '.join(names)}\n{key}".encode()).hexdigest()
        if seal not in self._addresses:
            body = self._cache.get(seal)
            if body is None:
                body = self._compile(text(), optimise)
                self._cache.put(seal, body)
            self._addresses[seal] = self._load(body, names)
        return self._addresses[seal]

    def function(self, key: str, name: str, text: Callable[[], str], *, optimise: bool = False) -> int:
        """As ``functions``, for a module with one function."""
        return self.functions(key, (name,), text, optimise=optimise)[name]

    def _compile(self, text: str, optimise: bool) -> bytes:
        try:
            module = llvm.parse_assembly(text)
            module.verify()
        except RuntimeError as error:
            raise ToolchainError(f"LLVM refused generated code: {error}") from error
        if optimise:
            options = llvm.create_pipeline_tuning_options(speed_level=2)
            options.loop_vectorization = True
            builder = llvm.create_pass_builder(self._machine, options)
            builder.getModulePassManager().run(module, builder)
        self.compiled += 1
        body: bytes = self._machine.emit_object(module)
        return body

    def _load(self, body: bytes, names: Sequence[str]) -> dict[str, int]:
        self._engine.add_object_file(llvm.ObjectFileRef.from_data(body))
        self._engine.finalize_object()
        addresses = {name: int(self._engine.get_function_address(name)) for name in names}
        missing = [name for name, address in addresses.items() if not address]
        if missing:
            raise ToolchainError(f"a compiled object does not define {', '.join(missing)}")
        return addresses


def c_function(address: int, result: Any, *kinds: Any) -> Callable[..., Any]:
    """A Python callable for native code; the interpreter lock is released while it runs."""
    return ctypes.CFUNCTYPE(result, *kinds)(address)
