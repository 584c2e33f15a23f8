"""Loading many compiled objects into one process."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from jit.cache import ObjectCache
from jit.host import toolchain
from jit.host.toolchain import Toolchain, c_function

MODULE = """
define double @{name}(double %x) {{
  %scaled = fmul double %x, 1.{number}
  %result = call double @exp(double %scaled)
  ret double %result
}}
declare double @exp(double)
"""


def n_mappings() -> int:
    return len(Path("/proc/self/maps").read_text().splitlines())


def test_the_mappings_of_a_process_do_not_grow_with_the_objects_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux gives a process 65,530 mappings; an object has two of its own when it is loaded."""
    monkeypatch.setattr(toolchain, "LOADS_BEFORE_JOINING", 50)
    loader = Toolchain(ObjectCache(None))
    before = n_mappings()
    addresses = [
        loader.function(str(i), f"scaled_{i}", lambda i=i: MODULE.format(name=f"scaled_{i}", number=i))  # type: ignore[misc]
        for i in range(400)
    ]
    assert n_mappings() - before < 200
    assert [c_function(address, ctypes.c_double, ctypes.c_double)(0.0) for address in addresses] == [1.0] * 400
    assert c_function(addresses[5], ctypes.c_double, ctypes.c_double)(1.0) == pytest.approx(4.4816890703)
