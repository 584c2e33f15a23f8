"""C source of fused kernels, pinned word by word: an innocent change of text may change results on a compiler not run here."""

from __future__ import annotations

from pathlib import Path

import pytest

from jit.host.emit.ops import supported
from jit.kernels.cfamily import c_source
from jit.kernels.loop import LoopKernel
from jit.plan.form import form
from jit.plan.fuse import fuse
from wis.builder import Builder
from wis.dtypes import DType
from wis.views import expand

FOLDER = Path(__file__).parents[2] / "golden" / "jit"


def kernel_of(b: Builder) -> LoopKernel:
    """The one kernel that the collected program fuses to."""
    bound = b.bound()
    (step,) = fuse(bound.code, bound.program.buffers, supported)
    assert step.group is not None
    return form(step.group).kernel


def scaled_sigmoid() -> Builder:
    b = Builder()
    x, y = b.external(DType.F32, (4, 100)), b.created(DType.F32, (4, 100))
    t = b.temp(DType.F32, (4, 100))
    b.emit("sigmoid", t, [x])
    b.emit("mul", y, [t, b.const(2.0, DType.F32)])
    return b


def half_bias() -> Builder:
    b = Builder()
    x, bias, y = b.external(DType.F16, (4, 100)), b.external(DType.F16, (100,)), b.created(DType.F16, (4, 100))
    t = b.temp(DType.F16, (4, 100))
    b.emit("add", t, [x, expand(bias, (4, 100))])
    b.emit("max", y, [t, b.const(0.0, DType.F16)])
    return b


def masked_integers() -> Builder:
    b = Builder()
    x, y = b.external(DType.I32, (70,)), b.created(DType.I32, (70,))
    places, mask = b.temp(DType.I32, (70,)), b.temp(DType.BOOL, (70,))
    b.emit("iota", places, [b.const(0, DType.I32), b.const(3, DType.I32)], (0,))
    b.emit("lt", mask, [places, x])
    b.emit("where", y, [mask, x, b.const(-1, DType.I32)])
    return b


PROGRAMS = {"scaled_sigmoid": scaled_sigmoid, "half_bias": half_bias, "masked_integers": masked_integers}


@pytest.mark.parametrize("name", PROGRAMS)
def test_golden_source(name: str) -> None:
    """To accept a change on purpose: delete the file, run the test once (it fails and writes the new one), read the difference."""
    path = FOLDER / f"{name}.c"
    text = c_source(kernel_of(PROGRAMS[name]()), name)
    assert text is not None
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        pytest.fail(f"{path.name} did not exist; it holds the current text now")
    assert text == path.read_text()


def test_reductions_have_no_c_source_yet() -> None:
    b = Builder()
    b.emit("sum", b.created(DType.F32, (4, 1)), [b.external(DType.F32, (4, 100))])
    assert c_source(kernel_of(b), "rows") is None
