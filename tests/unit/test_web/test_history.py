"""An hour in bounded memory: sums, gaps, what falls out; rates of credits from prices of the log."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest

from bus_schemas.events import GrantRecorded, TariffSet
from bus_schemas.telemetry import RunningSession, Telemetry
from services.controller.web.charts import (
    Chart,
    Line,
    chart_data,
    chart_points,
    chart_table,
    cluster_charts,
    credits_chart,
    credits_per_hour,
)
from services.controller.web.history import ALL_TENANTS, History, PriceBook, Ring
from services.controller.web.scope import CLUSTER, Scope

GIB = 1 << 30
NOW_S = 1_000_000_000


def ring(**keys: int) -> Ring:
    return Ring(("x",), **({"step_s": 10, "slots": 6, "rows_max": 4} | keys))


def values(numbers: Any) -> list[float | None]:
    return [None if math.isnan(float(number)) else float(number) for number in numbers]


def test_what_is_in_one_slot_is_added_up() -> None:
    kept = ring()
    for at_s, value in ((100, 1.0), (109, 2.0), (110, 5.0), (130, 7.0)):
        kept.add("a", at_s, (value,))
    assert kept.times(131) == [80, 90, 100, 110, 120, 130]
    assert values(kept.series("a", 131)["x"]) == [None, None, 3.0, 5.0, None, 7.0]
    assert values(kept.series("nobody", 131)["x"]) == [None] * 6


def test_the_old_falls_out_and_what_comes_late_is_in_its_place() -> None:
    kept = ring()
    kept.add("a", 100, (1.0,))
    kept.add("a", 160, (2.0,))  # the slot of 100
    kept.add("a", 100, (9.0,))  # older than the ring
    kept.add("a", 120, (3.0,))
    assert values(kept.series("a", 165)["x"]) == [None, 3.0, None, None, None, 2.0]
    assert values(kept.series("a", 1_000)["x"]) == [None] * 6


def test_means_are_added_over_keys() -> None:
    kept = ring()
    for key, at_s, value in (("a", 100, 2.0), ("a", 101, 4.0), ("b", 100, 10.0), ("b", 110, 20.0)):
        kept.add(key, at_s, (value,))
    sums = kept.means(119)
    assert values(sums["x"][-2:]) == [13.0, 20.0] and values(sums["count"][-2:]) == [2.0, 1.0]
    assert values(kept.means(119, ["a"])["x"][-2:]) == [3.0, None]
    assert values(kept.means(119, ["nobody"])["x"]) == [None] * 6


def test_what_is_kept_of_the_sums_is_what_a_fresh_look_gives() -> None:
    dice = random.Random(7)
    kept, now_s = ring(slots=12, rows_max=6), 1_000
    for _ in range(3_000):
        now_s += dice.choice((0, 0, 1, 3, 9, 40, 300, -25))
        kept.add(dice.randrange(9), now_s - dice.choice((0, 0, 1, 15, 60)), (float(dice.randrange(5)),))
        sums, fresh = kept.means(now_s), kept.means(now_s, list(range(9)))
        assert {name: values(sums[name]) for name in sums} == {name: values(fresh[name]) for name in fresh}


def test_keys_are_bounded_and_the_longest_silent_gives_way() -> None:
    kept = ring(rows_max=40)
    for number in range(100):
        kept.add(number, 100 + number, (1.0,))
    before = kept.nbytes
    for number in range(100, 1_000):
        kept.add(number, 100 + number, (1.0,))
    assert len(kept) == 40 and kept.nbytes == before
    assert values(kept.series(999, 1_099)["x"])[-1] == 1.0
    assert values(kept.series(3, 1_099)["x"]) == [None] * 6


def telemetry(at_s: int, node: str = "n", utilization: int = 50, *, running: tuple[RunningSession, ...] = ()) -> Telemetry:
    return Telemetry(at_s * 10**9, node, 1, 0, 1000, utilization, 10, 8 * GIB, 3 * GIB, 0, GIB, running, 4, 2 * GIB)


def test_the_cluster_is_the_mean_of_its_devices_and_the_sum_of_their_memory() -> None:
    history = History(PriceBook)
    for at_s in range(NOW_S - 60, NOW_S):
        history.take(telemetry(at_s, "a", 20))
        history.take(telemetry(at_s, "b", 60))
    load, vram = cluster_charts(history, NOW_S - 1)
    assert [values for _, *values in chart_points(load)] == [[40.0, 10.0]] * 2
    assert [values for _, *values in chart_points(vram)] == [[2 * GIB, 4 * GIB, 2 * GIB]] * 2
    assert load.lines[0].values[0] != load.lines[0].values[0]  # an hour ago nothing was measured


def test_memory_of_a_device_is_as_promised() -> None:
    history = History(PriceBook)
    for number in range(64):
        for at_s in range(NOW_S - 20, NOW_S):
            history.take(telemetry(at_s, f"n{number}"))
    assert len(history.devices) == 64
    assert history.devices.nbytes / 64 < 12 << 10


def test_rates_follow_the_prices_of_the_log() -> None:
    book = PriceBook()
    run = RunningSession("s", "t", 1, GIB // 2, "acme", core_ns=250_000_000)
    seen = telemetry(NOW_S, running=(run, RunningSession("s2", "", 1, 0, "globex", core_ns=10**9)))
    assert book.spent(seen) == {"acme": 250.0 + 500.0, "globex": 1000.0}  # 1,000 credits a core-second and a GiB-second
    book.apply(1, GrantRecorded(1, "g", "acme", 1, "premium"))
    book.apply(2, TariffSet(1, "premium", 0, 4_000_000, 2_000_000))
    assert book.spent(seen)["acme"] == pytest.approx(1.0 + 1.0)


def test_a_tenant_sees_its_own_credits_only() -> None:
    history = History(PriceBook)
    for at_s in range(NOW_S - 300, NOW_S):
        one = RunningSession("s", "t", 1, 0, "acme", core_ns=10**6)
        two = RunningSession("s2", "t2", 1, 0, "globex", core_ns=3 * 10**6)
        history.take(telemetry(at_s, running=(one, two)))
    rates = {who: credits_per_hour(credits_chart(history, Scope(who, frozenset()), NOW_S)) for who in ("acme", "globex", "other")}
    everybody = credits_per_hour(credits_chart(history, CLUSTER, NOW_S))
    assert rates == {"acme": pytest.approx(3600), "globex": pytest.approx(3 * 3600), "other": 0.0}
    assert everybody == pytest.approx(4 * 3600)
    assert ALL_TENANTS == ""  # no tenant's name is empty


def test_a_chart_says_the_same_as_its_table() -> None:
    line = Line("Load", "k1", "%", np.array([10.0, 20.0, np.nan, 40.0] * 6, np.float32))
    chart = Chart([at * 10 for at in range(24)], (line,), top=100)
    data = chart_data(chart)
    assert data["series"][0]["values"][:4] == [10.0, 20.0, None, 40.0] and data["t"][-1] == 230
    head, rows = chart_table(chart)
    assert head == ["From", "Load"] and len(rows) == 12
    assert rows[0] == ["00:03 UTC", "40 %"] and rows[-1] == ["00:00 UTC", "15 %"]
