"""Operations without a lowering: right, visible, and refusable."""

from __future__ import annotations

import warnings

import pytest
import torch

from wooly.device import fallback
from wooly.device.recorder import RECORDER, stats
from wooly.errors import UnsupportedOperation


def matrix() -> torch.Tensor:
    return torch.tensor([[4.0, 1.0], [1.0, 3.0]])


def test_a_fallback_is_right_and_counted_and_warns_once() -> None:
    fallback._warned.clear()
    before = stats()["fallbacks"].get("aten::linalg_eig", 0)
    with pytest.warns(UserWarning, match="aten::linalg_eig runs on the CPU"):
        ours = torch.linalg.eig(matrix().to("cuda"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.linalg.eig(matrix().to("cuda"))
    cpu = torch.linalg.eig(matrix())
    assert ours.eigenvalues.device.type == "cuda"
    torch.testing.assert_close(ours.eigenvalues.cpu(), cpu.eigenvalues)
    assert stats()["fallbacks"]["aten::linalg_eig"] == before + 2


def test_fallback_can_be_forbidden() -> None:
    fallback.allow_cpu(False)
    try:
        with pytest.raises(NotImplementedError, match=r"aten::linalg_eigvals|aten::_linalg_eigvals"):
            torch.linalg.eigvals(matrix().to("cuda"))
        with pytest.raises(UnsupportedOperation, match="WOOLY_CPU_FALLBACK=0"):
            torch.linalg.eigvals(matrix().to("cuda"))
        with pytest.raises(RuntimeError, match="reduction dim"):
            torch.ones(2, 3, device="cuda") @ torch.ones(2, 3, device="cuda")
    finally:
        fallback.allow_cpu(True)


def test_a_mutating_fallback_writes_its_arguments() -> None:
    x = matrix().to("cuda")
    out = torch.empty(0, device="cuda")
    torch.linalg.matrix_exp(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.special.airy_ai(x, out=out)
    torch.testing.assert_close(out.cpu(), torch.special.airy_ai(matrix()))


def test_float8_is_carried_and_converted() -> None:
    x = torch.tensor([1.0, 2.5, -3.0])
    ours = x.to("cuda").to(torch.float8_e4m3fn)
    assert torch.equal(ours.float().cpu(), x.to(torch.float8_e4m3fn).float())


def test_data_dependent_sizes_wait_once() -> None:
    x = torch.tensor([[0.0, 2.0], [3.0, 0.0]], device="cuda")
    waits = RECORDER.counters.waits
    found = x.nonzero()
    assert RECORDER.counters.waits == waits + 1
    assert found.tolist() == [[0, 1], [1, 0]] and x[x > 1].tolist() == [2, 3]
    waits = RECORDER.counters.waits
    x[x > 1] = 0
    assert RECORDER.counters.waits == waits, "writing by a mask needs no wait"
    assert x.unique().tolist() == [0]
