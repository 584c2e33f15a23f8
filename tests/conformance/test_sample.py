"""A sample of the operator database in the ordinary test run; ``make conformance`` runs all of it."""

from __future__ import annotations

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

from tests.conformance.harness import backward, forward, op_name
from tests.support.device import switch_on

switch_on()

EVERY = 12
SAMPLE = [op for op in op_db if torch.float32 in op.dtypes and not op.name.startswith(("sparse", "to_sparse"))][::EVERY]


@pytest.mark.parametrize("op", SAMPLE, ids=op_name)
def test_operator_agrees_with_the_cpu(op: object) -> None:
    """Computed on the device or, visibly, here; never refused, never something else."""
    outcomes = [forward(op, 2)]  # type: ignore[arg-type]  # pytest's parameter is an OpInfo
    if op.supports_autograd:  # type: ignore[attr-defined]
        outcomes.append(backward(op, 1))  # type: ignore[arg-type]
    for outcome in outcomes:
        assert outcome.result in ("native", "fallback", "skipped"), outcome.note
