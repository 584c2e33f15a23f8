"""The driver for Triton, with kernels that Triton compiled (tests/golden/triton). Triton itself runs in the ecosystem's cases."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from wis.kernel.model import Math
from wooly.errors import CompileError, KernelArgumentError
from wooly.kernels.triton import TritonLauncher, TritonUtilities

FOLDER = Path(__file__).parents[2] / "golden" / "triton"


def loaded(name: str) -> tuple[Any, TritonLauncher]:
    """A kernel and its launcher, as Triton makes them."""
    metadata = SimpleNamespace(**json.loads((FOLDER / f"product_{name}.json").read_text()))
    text = (FOLDER / f"product_{name}.ptx").read_bytes()
    _, function, *_, threads_max = TritonUtilities().load_binary(metadata.name, text, metadata.shared, 0)
    assert threads_max >= 32 * metadata.num_warps
    return function, TritonLauncher(SimpleNamespace(signature=metadata.signature), metadata)


def launch(name: str, a: Any, b: Any, c: Any, *, grid: tuple[int, int, int] | None = None, hooks: tuple[Any, Any] = (None, None)) -> None:
    function, launcher = loaded(name)
    (m, k), n = a.shape, b.shape[1]
    launcher(*(grid or (-(-m // 32), -(-n // 32), 1)), 0, function, None, "metadata", *hooks, a, b, c, m, n, k, 32, 32, 32, None)


@pytest.mark.parametrize(
    ("name", "dtype", "out", "limit"),
    [("f16", torch.float16, torch.float32, 1e-6), ("i8", torch.int8, torch.int32, 0), ("tf32", torch.float32, torch.float32, 1e-3)],
)
def test_a_product_of_matrices(name: str, dtype: torch.dtype, out: torch.dtype, limit: float) -> None:
    torch.manual_seed(1)
    m, n, k = 80, 48, 112
    if dtype is torch.int8:
        a, b = (torch.randint(-128, 128, shape, dtype=dtype) for shape in ((m, k), (k, n)))
    else:
        a, b = torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype)
    c = torch.full((m, n), -7, dtype=out, device="cuda")
    launch(name, a.cuda(), b.cuda(), c)
    want = a.double() @ b.double()
    assert ((c.cpu().double() - want).abs().max() / want.abs().max()).item() <= limit


def test_pointers_into_a_storage_and_wrapped_tensors() -> None:
    """``triton.reinterpret`` gives an object with the tensor as ``base``."""
    both = torch.randn(64, 32).half().cuda()
    a, c = both[32:], torch.zeros(32, 32, device="cuda")
    function, launcher = loaded("f16")
    launcher(1, 1, 1, 0, function, None, None, None, None, a, SimpleNamespace(base=both), c, 32, 32, 32, 32, 32, 32, None)
    want = both[32:].float().cpu() @ both[:32].float().cpu()
    assert torch.allclose(c.cpu(), want, atol=1e-4)


@pytest.mark.parametrize("math", list(Math))
def test_kernels_compute_as_the_setting_says(math: Math) -> None:
    text = (FOLDER / "product_f16.ptx").read_bytes()
    _, function, *_ = TritonUtilities(math).load_binary("product", text, 4096, 0)
    assert function.launcher.verified.kernel.math == math


def test_an_empty_grid_runs_nothing_and_hooks_are_called() -> None:
    a, c = torch.ones(32, 32).half().cuda(), torch.zeros(32, 32, device="cuda")
    seen: list[str] = []
    launch("f16", a, a, c, grid=(0, 1, 1), hooks=(lambda x: seen.append(f"enter {x}"), lambda x: seen.append(f"exit {x}")))
    assert c.sum().item() == 0
    assert seen == ["enter metadata", "exit metadata"]


def test_a_tensor_of_the_cpu_is_refused() -> None:
    a = torch.ones(32, 32).half()
    with pytest.raises(KernelArgumentError, match=r"a tensor on cpu; a pointer takes one on cuda"):
        launch("f16", a, a.cuda(), torch.zeros(32, 32, device="cuda"))


def test_a_cooperative_grid_is_refused() -> None:
    metadata = SimpleNamespace(name="k", num_warps=1, shared=0, launch_cooperative_grid=True)
    with pytest.raises(CompileError, match="k: grid-wide synchronisation is not portable"):
        TritonLauncher(SimpleNamespace(signature={}), metadata)


def test_printing_is_dropped_with_a_warning() -> None:
    text = """.version 8.0
.target sm_80
.address_size 64
.extern .func (.param .b32 r) vprintf(.param .b64 a, .param .b64 b);
.visible .entry k(.param .u64 out) {
    .reg .b64 to; .reg .b32 x;
    ld.param.u64 to, [out];
    { .param .b64 p0; .param .b64 p1; .param .b32 result;
    st.param.b64 [p0], 0; st.param.b64 [p1], 0;
    call.uni (result), vprintf, (p0, p1);
    ld.param.b32 x, [result]; }
    add.s32 x, x, 5;
    st.global.u32 [to], x;
    ret;
}"""
    with pytest.warns(UserWarning, match="device_print prints nothing"):
        _, function, *_ = TritonUtilities().load_binary("k", text.encode(), 0, 0)
    out = torch.zeros(1, dtype=torch.int32, device="cuda")
    function((1,), (1,), (out,))
    assert out.item() == 5


def test_numbers_of_16_bits_are_floats() -> None:
    """Triton compiles parameters annotated tl.float16 and tl.bfloat16 to arrays of two bytes, and cuts f32 off to make a bf16."""
    text = """.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 out, .param .align 2 .b8 a[2], .param .align 2 .b8 b[2]) {
    .reg .b64 to; .reg .b16 x;
    ld.param.u64 to, [out];
    ld.param.b16 x, [a];
    st.global.b16 [to], x;
    ld.param.b16 x, [b];
    st.global.b16 [to+2], x;
    ret;
}"""
    _, function, *_ = TritonUtilities().load_binary("k", text.encode(), 0, 0)
    signature = {"out": "*i16", "a": "fp16", "b": "bf16"}
    launcher = TritonLauncher(SimpleNamespace(signature=signature), SimpleNamespace(num_warps=1, shared=0))
    out = torch.zeros(2, dtype=torch.int16, device="cuda")
    launcher(1, 1, 1, 0, function, None, None, None, None, out, 0.1, 0.1)
    assert out[:1].view(torch.float16).item() == torch.tensor(0.1, dtype=torch.float16).item()
    assert out[1:].view(torch.bfloat16).item() == 0.099609375


_LATER = """
import importlib.util, sys
from wooly.device.imports import when_imported
seen = []
when_imported("email.mime.text", lambda module: seen.append(module.MIMEText.__name__))
assert importlib.util.find_spec("email.mime.text") is not None
assert not seen and "email.mime.text" not in sys.modules
before = len(sys.meta_path)
import email.mime.text
assert seen == ["MIMEText"] and len(sys.meta_path) == before - 1
when_imported("email.mime.text", lambda module: seen.append("again"))
assert seen == ["MIMEText", "again"]
"""


def test_a_module_is_changed_when_it_is_imported() -> None:
    subprocess.run([sys.executable, "-c", _LATER], check=True)
