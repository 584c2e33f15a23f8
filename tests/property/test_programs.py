"""Random torch programs give on the device what they give on the CPU (tests/programs; ``make fuzz-programs`` for many more, and new ones).

A failure prints its seed and a stand-alone script.
"""

from __future__ import annotations

import pytest
import torch

from tests.programs import execute
from tests.programs.execute import leaves_of
from tests.programs.script import Fields, Line, Program, Script, execute_line, namespace
from tests.support.programs import run
from tests.support.rounding import RoundsOtherwise


@pytest.mark.slow
@pytest.mark.parametrize(
    ("programs", "seed"), [(75, 0), *(pytest.param(538, seed, marks=pytest.mark.variant) for seed in (0, 1_000, 2_000))]
)
def test_programs_through_bus_and_node_agree_with_the_cpu(programs: int, seed: int) -> None:
    run(programs, seed, "--backend", "reference")


def judge_gradient(error: float) -> str:
    """The verdict on a device whose layer norm's gradient, which cancels to 3.5e-5, is off by ``error``."""
    program = Program(0, [Line(text) for text in NORM_OF_TWO], {"t0", "t1"})
    names = namespace("cpu")
    for line in program.lines:
        assert execute_line(line.text, names) is None
    want = leaves_of(names)
    got = {path: execute._Copy(value, value.detach() + (error if path.endswith(".grad") else 0.0)) for path, value in want.items()}
    return execute._compare(program, want, got, "cpu").kind


NORM_OF_TWO = ["t0 = rand(34, (2,), 'float32', dev).requires_grad_()", "t1 = F.layer_norm(t0, t0.shape[-1:])", "t1.pow(2).sum().backward()"]


def test_what_cancels_inside_one_operation_may_differ_by_its_roundings_only() -> None:
    assert judge_gradient(2.4e-7) == ""
    assert judge_gradient(2e-4) == "wrong"


@pytest.mark.parametrize(
    ("cpu", "device", "kind"),
    [
        ("0., -0., -0.", "0., 0., 0.", ""),
        ("-0.0000, 1.0000", " 0.0000, 1.0000", ""),
        ("-0.5", "0.5", "wrong"),
        ("-0.05", "0.05", "wrong"),
        ("1., 2.", "1.,  2.", "wrong"),
    ],
)
def test_the_sign_of_a_zero_in_a_text_is_not_compared(cpu: str, device: str, kind: str) -> None:
    program = Program(0, [], set())
    assert execute._compare(program, {"v1": f"tensor([{cpu}])"}, {"v1": f"tensor([{device}])"}, "cpu").kind == kind


def test_distinct_values_are_distinct_in_their_type() -> None:
    """Seed 373021108 drew 4,913 of bfloat16, so that an extremum had several places."""
    drawn = [eval(Fields(Script(seed), exact=True)["u"], namespace("cpu")) for seed in range(3_000)]
    assert any(values.dtype == torch.bfloat16 for values in drawn)
    assert [values.shape for values in drawn if values.unique().numel() != values.numel()] == []


def test_perturbed_runs_leave_tensors_without_values_alone() -> None:
    a = torch.tensor([1.0, 2.0])
    with RoundsOtherwise(1):  # works on zero tensors and on meta tensors inside
        hessian = torch.func.hessian(lambda a: (a**3).sum())(a)
    assert torch.allclose(hessian, torch.diag(6 * a)) and bool((hessian.diagonal() != 6 * a).any())
