"""The shared engine on a device that runs kernels by their definition, and on PoCL, beside the reference."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from jit.accel.engine import AccelEngine
from jit.backends import FUEL, create_engine
from jit.engine import Engine, EngineConfig
from tests.support.interpreted_device import InterpretedDevice
from tests.unit.test_jit.conftest import VRAM, Check, checker


@pytest.fixture(scope="session")
def defining() -> Engine:
    return create_engine("reference", cache_dir=None, threads=1, vram_bytes=VRAM)


@pytest.fixture(scope="session", params=[True, False], ids=["unified", "apart"])
def interpreted(request: pytest.FixtureRequest) -> AccelEngine:
    """An engine over the interpreter, its memory reached in place or by copies."""
    return AccelEngine(InterpretedDevice(unified=request.param), "interpreted", EngineConfig(None, 1, VRAM, FUEL["reference"]))


@pytest.fixture(scope="session")
def check(interpreted: AccelEngine, defining: Engine) -> Check:
    """As in test_jit, on that engine."""
    return checker(interpreted, defining)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("programs")


@pytest.fixture(scope="session")
def opencl(folder: Path) -> Iterator[Engine]:
    """The real thing, on whatever OpenCL device there is."""
    engine = create_engine("opencl", cache_dir=folder, threads=2, vram_bytes=VRAM)
    yield engine
    engine.close()
