"""Loading many compiled objects into one process."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

from jit.cache import ObjectCache
from jit.errors import ToolchainError
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


def test_code_that_calls_an_unknown_function_is_refused() -> None:
    """LLVM resolves such a name to the address 0; calling it would end the executor and every session on it."""
    text = "define double @calls_nothing(double %x) {\n  %y = call double @no_such_function(double %x)\n  ret double %y\n}\n"
    with pytest.raises(ToolchainError, match=r"lacks: no_such_function$"):
        Toolchain(ObjectCache(None)).function("k", "calls_nothing", lambda: text + "declare double @no_such_function(double)\n")


HALF = """
define void @round_to_half(ptr %from, ptr %to) {
  %x = load double, ptr %from
  %y = fptrunc double %x to half
  store half %y, ptr %to
  ret void
}
"""


def test_f64_rounds_to_f16_once() -> None:
    """NumPy rounds f64 to f16 directly, too. Rounding to f32 in between goes wrong next to the middle of two f16 numbers."""
    loader = Toolchain(ObjectCache(None))
    call = c_function(loader.function("k", "round_to_half", lambda: HALF), None, ctypes.c_void_p, ctypes.c_void_p)
    rng = np.random.default_rng(0)
    halves = rng.integers(0, 0x7C00, 2000).astype(np.uint16).view(np.float16).astype(np.float64)
    middles = (halves + np.nextafter(halves.astype(np.float16), np.float16(np.inf)).astype(np.float64)) / 2
    near = [middles, np.nextafter(middles, 0), np.nextafter(middles, np.inf), middles * (1 + 2.0**-30), middles * (1 - 2.0**-30)]
    odd = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 65519.99, 65520.0, 1e-8, 2.0**-25, 5e-324, 1e300])
    x = np.concatenate([*near, -near[1], odd, rng.standard_normal(2000)])
    got = np.empty(len(x), np.float16)
    for i in range(len(x)):
        call(x.ctypes.data + 8 * i, got.ctypes.data + 2 * i)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(got, x.astype(np.float16))
