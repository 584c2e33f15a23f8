"""What the metrics store is asked, and how its answers are read."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from services.controller.web.history import RANGES, Unanswered, query_of, range_of, times_of, values_of
from tests.support.promql import uses


def test_points_are_whole_steps_up_to_the_step_that_has_begun() -> None:
    for chosen in RANGES:
        times = times_of(chosen, 1_800_000_123.5)
        assert len(times) == chosen.span_s // chosen.step_s <= 360 and times[-1] - times[0] == chosen.span_s - chosen.step_s
        assert all(at % chosen.step_s == 0 for at in times) and 0 < times[-1] - 1_800_000_123.5 <= chosen.step_s


def test_an_address_without_a_range_means_the_hour() -> None:
    assert range_of({}).name == range_of({"range": 'x"}'}).name == "hour" and range_of({"range": "week"}).step_s == 1_800


def test_a_name_is_a_string_of_the_query() -> None:
    evil = 'a"} or up{x="\\'
    assert f"{{node={json.dumps(evil)}}}" in query_of("used", 60, evil)
    [asked] = uses(query_of("used", 60, "n1"))
    assert asked.metric == "wooly_device_vram_used_bytes" and asked.matched == (("node", "n1"),) and "gpu" in asked.grouped


def test_values_stand_at_their_times() -> None:
    series = {"metric": {"gpu": "1"}, "values": [[60, "2.5"], [120.0, "NaN"], [999, "7"]]}
    found = values_of({"data": {"result": [series]}}, [0, 60, 120])
    assert list(found) == ["1"] and found["1"][1] == 2.5 and np.isnan(found["1"][[0, 2]]).all()
    assert values_of({"data": {"result": []}}, [0]) == {}


@pytest.mark.parametrize(
    "answer", [{}, [], None, {"data": {"result": [{}]}}, {"data": {"result": [{"metric": {}, "values": [[1]]}]}}, {"data": {"result": 3}}]
)
def test_an_answer_of_something_else_is_refused(answer: Any) -> None:
    with pytest.raises(Unanswered, match="like a Prometheus"):
        values_of(answer, [0])
