"""The cuda back end as far as it goes without a driver: what it says then, and that NVRTC takes what it would compile."""

from __future__ import annotations

import importlib.util

import pytest

from jit.accel.device import CHECKED, OWN
from jit.accel.engine import AccelEngine
from jit.accel.library.matmul import _tiled
from jit.backends import FUEL, create_engine
from jit.engine import EngineConfig
from jit.errors import ToolchainError
from jit.kernels.cfamily import CUDA, emit, program
from jit.library.index import _index_put
from jit.library.writer import Walk
from tests.support.interpreted_device import InterpretedDevice
from tests.unit.test_jit.programs import random_program
from wis.dtypes import DType
from wis.kernel.verify import verify_kernel
from wis.ops import ScatterMode
from wis.verify import verify

NVRTC = importlib.util.find_spec("nvidia") is not None


@pytest.mark.skipif(importlib.util.find_spec("cupy") is not None, reason="CuPy is here")
def test_a_machine_without_cupy_gets_the_install_command() -> None:
    with pytest.raises(ToolchainError, match="pip install cupy"):
        create_engine("cuda", cache_dir=None, threads=1, vram_bytes=1 << 20)


@pytest.mark.skipif(not NVRTC, reason="the CUDA compiler's wheel is not installed")
def test_the_compiler_takes_fused_and_library_kernels() -> None:
    from wooly.kernels.nvrtc import compile_to_ptx

    engine = AccelEngine(InterpretedDevice(), "interpreted", EngineConfig(None, 1, 1 << 26, FUEL["cuda"]))
    for seed in (0, 3, 7):
        b, _ = random_program(seed, 12)
        written, dims, _ = b.finish()
        engine.prepare(verify(written, dims))
    requests = list(engine._lowering.requests.values())
    assert len(requests) >= 8
    sources = [emit(r.verified, CUDA, r.block, r.options) for r in requests]
    for made in (_tiled(DType.F32, 1), _index_put(Walk.POINTS, ScatterMode.ADD, DType.F64, 1, 1, 1, False)):
        sources += [emit(verify_kernel(made.kernel), CUDA, (made.threads, 1, 1), options) for options in (OWN, CHECKED)]
    unique = {source.entry: source for source in sources}
    from jit.cuda import OPTIONS

    ptx = compile_to_ptx(program(list(unique.values())), OPTIONS, symbolic_math=False)
    assert ptx.text.count(".entry") == len(unique)
    assert "fma.rn.f32" in ptx.text and "div.approx" not in ptx.text and ".ftz" not in ptx.text
