"""A sample of the operator database in the ordinary test run, through client, bus and node; ``make conformance`` runs all of it."""

from __future__ import annotations

import random
import secrets

import pytest

from tests.conformance.__main__ import main
from tests.conformance.client import Plan
from tests.conformance.harness import DTYPES, op_name
from tests.conformance.wire import run_on_wire
from tests.support.op_db import op_db

NAMES = [op_name(op) for op in op_db]


def _check(plan: Plan) -> None:
    """Computed on the device or, visibly, on this machine; never refused, never something else."""
    record = run_on_wire(plan, lambda number, name: None)
    failed = [f"{o.name} {o.dtype} {o.direction}: {o.note}" for o in record.outcomes if o.result in ("refused", "wrong")]
    assert failed == []
    assert (record.sessions, record.sessions_lost, record.crashes) == (1, 0, 0)
    assert sum(o.samples for o in record.outcomes) > len(plan["ops"])


def _plan(names: list[str], dtypes: list[str], seed: int) -> Plan:
    return {
        "ops": names, "dtypes": dtypes, "seed": seed, "forward": 2, "backward": 1, "variants": 1, "errors": True, "every": 1, "first": 0,
        "whole": [],
    }  # fmt: skip


@pytest.mark.slow
def test_fixed_sample_agrees_with_the_cpu() -> None:
    _check(_plan(NAMES[::192], ["float32", "float16", "bfloat16", "int64", "bool", "complex64"], seed=0))


@pytest.mark.slow
def test_drawn_sample_agrees_with_the_cpu() -> None:
    """Other operators, types and values in every run."""
    seed = secrets.randbelow(1 << 31)
    print(f"python -m tests.conformance: the sample of seed {seed}")  # shown by pytest when the test fails
    draw = random.Random(seed)
    _check(_plan(draw.sample(NAMES, 6), draw.sample(list(DTYPES), 3), seed))


@pytest.mark.parametrize("argument", ["--ops=add,tpyo", "--dtypes=float31"])
def test_a_misspelt_name_ends_the_command(argument: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main([argument])
    assert ended.value.code == 2
