"""What a decision costs, counted in executed bytecode instructions: equal on every run, hardly more for many sessions than for few."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest

from scheduler.dispatch import Stimulus
from tests.support.dispatch_load import backlog, steady

STEPS = 300


def operations(sessions: int, levels: int, **more: int) -> float:
    """Bytecode instructions for one stimulus on average, with as many batches waiting as there are sessions."""
    dispatch = backlog(sessions, levels, **more)
    steady(dispatch, sessions, dispatch.on)  # every session has run: estimates are there, heaps have seen use
    count = stimuli = 0

    def tracer(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        count += event == "opcode"
        return tracer

    def feed(stimulus: Stimulus) -> None:
        nonlocal stimuli
        stimuli += 1
        before = sys.gettrace()
        sys.settrace(tracer)
        try:
            dispatch.on(stimulus)
        finally:
            sys.settrace(before)

    steady(dispatch, STEPS, feed)
    return count / stimuli


@pytest.mark.parametrize(("levels", "more"), [(1, {}), (5, {}), (1, {"sla_ns": 10**12}), (3, {"pace_permille": 900})])
def test_a_decision_does_not_cost_more_with_a_thousand_waiting_batches(levels: int, more: dict[str, int]) -> None:
    few, many = operations(20, levels, **more), operations(1_000, levels, **more)
    assert many < 1.25 * few, f"{few:.0f} operations a stimulus with 20 waiting batches, {many:.0f} with 1000"
    assert many < 4_000


def test_heaps_do_not_keep_what_is_outdated() -> None:
    """Every slice leaves a stale heap entry (lazy deletion); they are removed before they outnumber the others by much."""
    dispatch = backlog(50, 1)
    most = 0

    def feed(stimulus: Stimulus) -> None:
        nonlocal most
        dispatch.on(stimulus)
        most = max(most, len(dispatch.state.levels[0].heap))

    steady(dispatch, 5_000, feed)
    assert most <= 2 * 50 + 65
