"""The states of devices from the log: known waste, to the unit; states that sum to the wall time, whatever the log; whose time is whose."""

from __future__ import annotations

import csv
import io
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.errors import BillingRequestError
from billing.projection import MINUTE_NS, BillingView
from billing.report import BUCKETS_MAX
from billing.utilization_report import GROUPINGS, report_csv, utilization_report, utilization_series
from bus_schemas.events import (
    BudgetSet,
    ConfigChanged,
    DeviceAccounted,
    DeviceFact,
    Event,
    GroupChanged,
    KeyIssued,
    NodeRegistered,
    SessionOpenedFact,
    TariffSet,
    TaskDisplaced,
    TaskPlaced,
    TaskStateChanged,
    TaskSubmitted,
    UsageRecorded,
    decode_events,
    encode_events,
)
from bus_schemas.utilization import STATES, Interval, UtilizationLine, percent_of, states_of

S, MS = 10**9, 10**6
CORES, MEMORY = 4, 1 << 30


class Log:
    """Writes the events of one device in order, a second an interval, and folds them."""

    def __init__(self, *first: Event, cores: int = CORES, groups: tuple[str, ...] = ()) -> None:
        self.at_ns = 0
        self.serial = self.interval = self.position = 0
        self.cores = cores
        self.view = BillingView()
        self.add(NodeRegistered(0, "n", "n", "", 1, (DeviceFact(0, "gpu", "cuda", cores, MEMORY),), groups), *first)

    def add(self, *events: Event) -> None:
        self.position += 1
        self.view.apply(self.position, decode_events(encode_events(events)))

    def second(self, *uses: dict[str, Any], launch_ms: int = 0, scheduler_core_ns: int = 0, wall_ns: int = S) -> None:
        first = self.serial + 1
        end_ns = self.at_ns + wall_ns
        used = 0
        for use in uses:
            self.serial += 1
            fields = {"session": "s", "tenant": "acme", "task": "t", "core_ns": 0, "byte_ms": 0, "launches": 1, **use}
            used += fields["core_ns"]
            self.add(
                UsageRecorded(
                    node="n", epoch=1, gpu=0, serial=self.serial, priority=0, from_ns=self.at_ns, to_ns=end_ns, instructions=0, **fields
                )
            )
        self.interval += 1
        idle = wall_ns * self.cores - used - scheduler_core_ns
        names = (self.interval, self.at_ns, wall_ns, self.cores, used, scheduler_core_ns, idle, first, self.serial, launch_ms * MS)
        self.add(DeviceAccounted("n", 1, 0, *names))
        self.at_ns = end_ns

    def lines(self, by: str = "device", **more: Any) -> dict[str, UtilizationLine]:
        report = utilization_report(self.view, by, **more)
        return {line.key: line for line in (*report.items, report.total)}


def times(line: UtilizationLine) -> dict[str, int]:
    """The states that took time, in ms."""
    found = {state: getattr(line, f"{state}_ns") for state in STATES}
    assert sum(found.values()) == line.wall_ns
    return {state: time_ns // MS for state, time_ns in found.items() if time_ns}


def submitted(task: str, at_ns: int, **more: Any) -> TaskSubmitted:
    return TaskSubmitted(at_ns, task, "globex", 2, **{"vram_bytes": MEMORY, "queue": True, **more})


def placed(task: str, at_ns: int) -> TaskPlaced:
    return TaskPlaced(at_ns, task, "n", (0,), (), (), 0)


HALF, FULL = MEMORY // 2 * 1000, MEMORY * 95 // 100 * 1000


def test_known_waste_is_reported_to_the_unit() -> None:
    """One second of each kind, at a price that changes in the middle."""
    log = Log(TariffSet(0, "standard", 2 * S, 2_000_000, 0))
    log.second({"core_ns": 2 * S, "byte_ms": HALF}, launch_ms=800, scheduler_core_ns=400 * MS)
    log.second({"core_ns": 2 * S, "byte_ms": FULL}, launch_ms=500)
    log.second({"byte_ms": HALF, "launches": 0})
    log.second()
    log.add(submitted("waits", 4 * S + 250 * MS))
    log.second()
    log.add(placed("waits", 5 * S))
    line = log.lines()["n/0"]
    assert times(line) == {"busy": 1000, "underused": 300, "blocked": 100, "cpu_bound": 100, "memory_bound": 500, "fragmented": 750,
                           "idle": 1000 + 1000 + 250}  # fmt: skip
    assert (line.used_core_ns, line.waste_core_ns) == (4 * S, 16 * S)
    held, free = (2 + 2) * 1_000_000_000 + 4 * 2_000_000, (4 + 4) * 2_000_000
    assert line.waste_micro == held + free and line.waste_credits == "4024.000000"
    assert line.waste_percent == 80.0
    assert log.lines("task")["t"].waste_micro == held and log.lines("task")[""].waste_micro == free
    assert log.view.findings == []


def test_work_belongs_to_whom_it_is_of_and_the_rest_to_whom_holds_memory() -> None:
    log = Log(SessionOpenedFact(0, "s1", "acme", "t1", "n", 0, 0, 0, title="train"))
    log.second(
        {"session": "s1", "task": "t1", "core_ns": 3 * S, "byte_ms": HALF // 2},
        {"session": "s2", "tenant": "globex", "task": "t2", "core_ns": 0, "byte_ms": HALF, "launches": 0},
        launch_ms=800,
        scheduler_core_ns=CORES * 50 * MS,
    )
    lines = log.lines("tenant")
    assert times(lines["acme"]) == {"busy": 750, "underused": 50, "cpu_bound": 50, "blocked": 50}
    assert times(lines["globex"]) == {"cpu_bound": 100}
    assert lines["acme"].used_core_ns == 3 * S and lines["globex"].used_core_ns == 0
    assert lines["acme"].waste_core_ns == 600 * MS and lines["globex"].waste_core_ns == 400 * MS
    assert lines["total"].wall_ns == S and set(log.lines("model")) == {"train", "", "total"}
    log.at_ns = MINUTE_NS
    log.second()
    own = log.lines("device", tenant="globex")
    assert own["total"] == msgspec.structs.replace(lines["globex"], key="total") and own["n/0"].used_core_ns == 0
    assert log.lines("task", task="t1")["total"].busy_ns == 750 * MS
    log.at_ns = 2 * MINUTE_NS
    log.second({"task": "t2", "core_ns": S, "byte_ms": HALF})
    assert log.lines("task", to_ns=MINUTE_NS)["total"].wall_ns == log.lines("task", from_ns=2 * MINUTE_NS)["total"].wall_ns == S


def test_a_tenant_whose_budget_is_used_up_is_blocked_and_no_other() -> None:
    log = Log(BudgetSet(0, "acme", "total", 1))
    log.second({"core_ns": S, "byte_ms": HALF}, launch_ms=250)
    log.second({"byte_ms": HALF, "launches": 0}, {"session": "s2", "tenant": "globex", "byte_ms": HALF, "launches": 0})
    lines = log.lines("tenant")
    assert times(lines["acme"]) == {"busy": 250, "cpu_bound": 750, "blocked": 500}
    assert times(lines["globex"]) == {"idle": 500}


@pytest.mark.parametrize(
    ("task", "node_groups", "fragmented_ms"),
    [
        ({}, (), 1000),
        ({"vram_bytes": MEMORY + 1}, (), 0),
        ({"gpu_count": 2}, (), 0),
        ({"groups": ("night",)}, (), 0),
        ({"groups": ("night",)}, ("night",), 1000),
        ({}, ("night",), 0),
        ({"queue": False}, (), 0),
    ],
)
def test_a_device_is_fragmented_only_for_a_task_that_it_could_hold_whole(
    task: dict[str, Any], node_groups: tuple[str, ...], fragmented_ms: int
) -> None:
    log = Log(submitted("waits", 0, **task), groups=node_groups)
    log.second()
    assert times(log.lines()["n/0"]).get("fragmented", 0) == fragmented_ms


def test_waits_begin_and_end_with_what_happens_to_tasks_and_nodes() -> None:
    log = Log(submitted("a", 100 * MS), submitted("b", 150 * MS), placed("b", 200 * MS), placed("a", 300 * MS))
    log.second()  # one wait lies within the other
    log.add(TaskStateChanged(S, "a", "failed", "node lost"), TaskDisplaced(1100 * MS, "a", "n", True))
    log.second()
    log.add(ConfigChanged(2 * S, "n", "drained", 1))
    log.second()
    log.add(ConfigChanged(3 * S, "n", "drained", None), GroupChanged(3 * S, "g", nodes=("n",)))
    log.second()
    log.add(GroupChanged(4 * S, "g", nodes=("n",), deleted=True))
    log.second()
    log.add(TaskStateChanged(5 * S, "a", "cancelled"), TaskDisplaced(5 * S, "a", "n", True))
    log.second()
    assert times(log.lines()["n/0"]) == {"fragmented": 200 + 900 + 1000, "idle": 800 + 100 + 1000 + 1000 + 1000}
    series = utilization_series(log.view, 0, 60 * S, "minute")
    assert series.devices[0].times_ns[STATES.index("fragmented")] == (2100 * MS,)


def test_waits_that_overlap_count_once_and_those_apart_each() -> None:
    log = Log(
        submitted("a", 100 * MS), submitted("b", 200 * MS), placed("a", 300 * MS), placed("b", 400 * MS),
        submitted("c", 600 * MS), placed("c", 700 * MS), submitted("d", 900 * MS), placed("d", 950 * MS),
    )  # fmt: skip
    log.second()
    assert times(log.lines()["n/0"]) == {"fragmented": 300 + 100 + 50, "idle": 550}


def test_a_series_has_as_many_buckets_as_are_allowed() -> None:
    log = Log()
    log.second()
    assert len(utilization_series(log.view, 0, BUCKETS_MAX * MINUTE_NS, "minute").times_ns) == BUCKETS_MAX
    with pytest.raises(BillingRequestError, match="too many"):
        utilization_series(log.view, 0, (BUCKETS_MAX + 1) * MINUTE_NS, "minute")


def test_a_task_that_holds_a_device_keeps_its_part_of_a_wait() -> None:
    """Nothing ran while another waited: the time is that of the task that holds the memory. What ran is no fragment."""
    log = Log(submitted("waits", 0))
    log.second({"byte_ms": HALF, "launches": 0})
    log.second({"byte_ms": HALF, "core_ns": S}, launch_ms=250)
    assert times(log.lines("task")["t"]) == {"fragmented": 1000, "busy": 250, "cpu_bound": 750}
    assert states_of(Interval(S, active=True, waited_ns=S)) == (0, 0, 0, S, 0, 0, 0)


def test_work_of_the_executor_for_no_task_is_blocked_and_of_none() -> None:
    log = Log()
    log.second(scheduler_core_ns=CORES * 10 * MS)
    assert times(log.lines("task")[""]) == {"blocked": 10, "idle": 990}


def test_events_of_before_have_no_launch_time_and_count_as_cpu_bound() -> None:
    old = msgspec.msgpack.encode([["device.accounted.v1", "n", 1, 0, 1, 0, S, CORES, S, 0, 3 * S, 1, 1]])
    log = Log()
    log.add(UsageRecorded("n", 1, 0, 1, "s", "acme", "t", 0, 0, S, S, HALF, 0, 1))
    log.add(*decode_events(old))
    assert times(log.lines()["n/0"]) == {"busy": 250, "cpu_bound": 750}


def test_usage_that_is_not_believed_gives_its_tenant_no_time() -> None:
    """Of another length than the interval: a node cannot pin a year of waste on a tenant by one second of usage."""
    log = Log()
    log.add(UsageRecorded("n", 1, 0, 1, "s", "acme", "t", 0, 0, S, S, HALF, 0, 1))
    year = 31_536_000 * S
    log.add(DeviceAccounted("n", 1, 0, 1, 0, year, CORES, S, 0, year * CORES - S, 1, 1))
    assert "acme" not in log.lines("tenant") and log.lines("tenant")[""].wall_ns == year


def test_usage_of_a_session_that_does_not_count_gives_its_tenant_no_time() -> None:
    """The node has a key, so what it says is checked: no session of acme was ever placed there."""
    log = Log(KeyIssued(0, "k", "", "", "node", "", node="n"))
    log.second({"core_ns": S, "byte_ms": HALF}, launch_ms=250)
    assert times(log.lines("tenant")[""]) == {"busy": 250, "cpu_bound": 750} and "acme" not in log.lines("tenant")


def test_accounts_that_do_not_add_up_are_a_finding_and_no_time() -> None:
    log = Log()
    log.add(DeviceAccounted("n", 1, 0, 1, 0, S, CORES, 0, 0, S, 1, 0))
    log.add(DeviceAccounted("n", 1, 0, 2, 0, -S, CORES, 0, 0, -S * CORES, 1, 0))
    assert log.lines()["total"].wall_ns == 0 and len(log.view.findings) == 2


def test_a_device_without_tasks_is_one_entry_however_long_and_periods_cut_it_exactly() -> None:
    log = Log()
    for _ in range(120):
        log.second(wall_ns=MINUTE_NS)
    ((span,),) = log.view.utilization.spans.values()
    assert (span.from_ns, span.to_ns) == (0, 120 * MINUTE_NS)
    assert log.lines(from_ns=90 * MINUTE_NS, to_ns=100 * MINUTE_NS)["n/0"].idle_ns == 10 * MINUTE_NS
    series = utilization_series(log.view, 30 * MINUTE_NS, 90 * MINUTE_NS, "hour")
    assert series.devices[0].times_ns[STATES.index("idle")] == (60 * MINUTE_NS, 60 * MINUTE_NS)
    assert utilization_series(log.view, 0, MINUTE_NS, "hour", tenant="acme").devices == ()


def test_csv_has_every_line_and_runs_no_formula() -> None:
    log = Log()
    log.second({"task": "=1+1", "core_ns": S, "byte_ms": HALF})
    rows = list(csv.reader(io.StringIO(report_csv(utilization_report(log.view, "task")))))
    assert rows[0][:2] == ["task", "busy_ns"] and [row[0] for row in rows[1:]] == ["'=1+1", "total"]


@pytest.mark.parametrize(
    ("asked", "field"),
    [({"by": "colour"}, "by"), ({"by": "node", "from_ns": -1}, "from"), ({"by": "node", "from_ns": 9, "to_ns": 3}, "to")],
)
def test_a_wrong_report_is_refused_by_field(asked: dict[str, Any], field: str) -> None:
    with pytest.raises(BillingRequestError) as raised:
        utilization_report(BillingView(), **asked)
    assert raised.value.field == field


@pytest.mark.parametrize(("asked", "field"), [((0, 9, "week"), "step"), ((9, 3, "hour"), "to"), ((0, 10**18, "minute"), "step")])
def test_a_wrong_series_is_refused_by_field(asked: Any, field: str) -> None:
    with pytest.raises(BillingRequestError) as raised:
        utilization_series(BillingView(), *asked)
    assert raised.value.field == field


def test_percent_is_rounded_down() -> None:
    assert (percent_of(2, 3), percent_of(0, 0), percent_of(3, 3)) == (66.66, 0.0, 100.0)


@given(
    st.builds(
        Interval,
        wall_ns=st.integers(0, 1000),
        busy_ns=st.integers(-10, 2000),
        launch_ns=st.integers(0, 2000),
        blocked_ns=st.integers(0, 2000),
        active=st.booleans(),
        held_percent=st.integers(0, 200),
        bandwidth_percent=st.integers(0, 100),
        waited_ns=st.integers(0, 2000),
    )
)
def test_states_sum_to_the_wall_time_whatever_was_measured(seen: Interval) -> None:
    found = states_of(seen)
    assert len(found) == len(STATES) and sum(found) == seen.wall_ns and min(found) >= 0


_use = st.fixed_dictionaries(
    {
        "tenant": st.sampled_from(["", "acme", "globex"]),
        "task": st.sampled_from(["t1", "t2"]),
        "core_ns": st.integers(0, S),
        "byte_ms": st.integers(0, FULL),
        "launches": st.integers(0, 1),
    }
)
_second = st.tuples(
    st.lists(_use, max_size=3), st.integers(0, 1000), st.integers(0, S // 2), st.sampled_from([1, 7, S, 30 * S]), st.integers(0, 3)
)


@given(st.lists(_second, max_size=8), st.sampled_from([3, 4]), st.integers(1, 4))
def test_every_log_adds_up_in_every_grouping(seconds: list[Any], cores: int, minutes: int) -> None:
    """Whatever tasks, holes and waits: wall time and core time are divided without remainder, by any key, and the same over time."""
    log = Log(BudgetSet(0, "acme", "day", S), cores=cores)
    for number, (uses, launch_ms, scheduler, wall_ns, wait) in enumerate(seconds):
        if wait == 1:
            log.add(submitted(f"w{number}", log.at_ns + wall_ns // 2))
        if wait == 2 and number:
            log.add(placed(f"w{number - 1}", log.at_ns + 1))
        if wait == 3:
            log.at_ns += 5 * S  # the node was away
        scaled = [{**use, "core_ns": use["core_ns"] * wall_ns // S // 2 if wall_ns >= S else 0} for use in uses]
        log.second(*scaled, launch_ms=launch_ms * wall_ns // S, scheduler_core_ns=scheduler * wall_ns // S, wall_ns=wall_ns)
    assert log.view.findings == []
    wall = sum(second[3] for second in seconds)
    totals = []
    for by in GROUPINGS:
        report = utilization_report(log.view, by)
        totals.append(report.total)
        for line in report.items:
            parts = [getattr(line, f"{state}_ns") for state in STATES]
            assert sum(parts) == line.wall_ns and min(parts) >= 0 and min(line.used_core_ns, line.waste_core_ns, line.waste_micro) >= 0
        for name in UtilizationLine.__struct_fields__[1:-2]:
            assert sum(getattr(line, name) for line in report.items) == getattr(report.total, name)
    assert all(total == totals[0] for total in totals) and totals[0].wall_ns == wall
    assert totals[0].used_core_ns + totals[0].waste_core_ns == wall * cores
    series = utilization_series(log.view, 0, log.at_ns + minutes * MINUTE_NS, "minute")
    assert sum(sum(line) for device in series.devices for line in device.times_ns) == wall
    again = BillingView.decode(log.view.encode())
    assert again.digest() == log.view.digest() and utilization_report(again, "task") == utilization_report(log.view, "task")
