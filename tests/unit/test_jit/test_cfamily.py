"""C source of kernels: pinned word by word, since an innocent change may change results elsewhere; and run where there is a compiler."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from jit.errors import Unspelled
from jit.kernels.cfamily import c_source
from jit.kernels.lower import Lowered, lower
from tests.unit.test_jit.lowered import Runner, formed_loops
from tests.unit.test_jit.lowered_programs import FOLDER, PROGRAMS, pinned, program
from tests.unit.test_jit.programs import random_program
from tests.unit.test_jit.test_lower import agree
from wis.builder import Builder
from wis.dtypes import DType
from wis.kernel.model import RegType, ScalarParam
from wis.kernel.verify import verify_kernel

COMPILER = shutil.which("cc")
_TYPES: Final[dict[RegType, Any]] = {
    RegType.PRED: ctypes.c_uint8, RegType.I16: ctypes.c_int16, RegType.I32: ctypes.c_int32, RegType.I64: ctypes.c_int64,
    RegType.F32: ctypes.c_float, RegType.F64: ctypes.c_double,
}  # fmt: skip


def compiled(folder: Path) -> Runner:
    """Runs a kernel through its C source."""

    def run(lowered: Lowered, grid: tuple[int, int], params: list[Any]) -> None:
        stem = folder / f"k{len(list(folder.iterdir()))}"
        source, library = stem.with_suffix(".c"), stem.with_suffix(".so")
        source.write_text(c_source(verify_kernel(lowered.kernel)))
        assert COMPILER is not None
        flags = ["-std=c99", "-O1", "-ffp-contract=off", "-shared", "-fPIC"]
        subprocess.run([COMPILER, *flags, "-o", str(library), str(source), "-lm"], check=True)
        function = getattr(ctypes.CDLL(str(library)), lowered.kernel.name)
        assert function(*c_arguments(lowered, params), *(ctypes.c_int64(n) for n in (*grid, 0, grid[0]))) == 0

    return run


def c_arguments(lowered: Lowered, params: list[Any]) -> list[Any]:
    found: list[Any] = []
    for param, given in zip(lowered.kernel.params, params, strict=True):
        if isinstance(given, np.ndarray):
            found += [ctypes.c_void_p(given.ctypes.data), ctypes.c_uint64(given.nbytes)]
            continue
        assert isinstance(param, ScalarParam)
        kind = RegType(param.reg_type)
        if kind in _TYPES:
            found.append(_TYPES[kind](given))
        else:
            dtype = DType.F16 if kind is RegType.F16 else DType.BF16
            found.append(ctypes.c_uint16(int(np.asarray(given, np.float32).astype(dtype.numpy).view(np.uint16))))
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_golden_source(name: str) -> None:
    """To accept a change on purpose: delete the file, run the test once (it fails and writes the new one), read the difference."""
    (loop,) = formed_loops(PROGRAMS[name]())
    pinned(FOLDER / f"{name}.c", c_source(verify_kernel(lower(loop.kernel, name).kernel)))


def test_functions_that_the_c_library_lacks_are_refused_by_name() -> None:
    b = Builder()
    b.emit("digamma", b.created(DType.F32, (40,)), [b.external(DType.F32, (40,))])
    (loop,) = formed_loops(b, lambda name, out, ins: True)
    with pytest.raises(Unspelled, match="digamma"):
        c_source(verify_kernel(lower(loop.kernel, "gamma").kernel))


@pytest.mark.skipif(COMPILER is None, reason="there is no C compiler (cc) on the path to run the source with")
class TestCompiled:
    @pytest.mark.parametrize("name", PROGRAMS)
    def test_named_functions_and_half_sums(self, name: str, tmp_path: Path) -> None:
        b, inputs = program(name)
        assert agree(b, inputs, compiled(tmp_path), 4.0 if name != "column_sum" else 0.0) == 1

    @pytest.mark.parametrize("seed", range(4))
    def test_random_programs_agree_bit_by_bit(self, seed: int, tmp_path: Path) -> None:
        b, inputs = random_program(seed, 12)
        agree(b, inputs, compiled(tmp_path))
