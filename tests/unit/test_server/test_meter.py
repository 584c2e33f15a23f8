"""The meter: whatever the timeline, every core-nanosecond is charged, scheduler or idle, and nothing is counted twice."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus_schemas.events import DeviceAccounted, Event, UsageRecorded
from services.server.meter import INTERVAL_NS, TOTAL_MAX, Account, Meter

SECOND = 10**9


def meter(cores: int = 2, start_ns: int = 0) -> Meter:
    made = Meter("node", 1, 0, cores, start_ns, 0)
    made.open(Account("s", "tenant", "task", 0))
    return made


def usage(events: list[Event]) -> list[UsageRecorded]:
    return [event for event in events if isinstance(event, UsageRecorded)]


def devices(events: list[Event]) -> list[DeviceAccounted]:
    return [event for event in events if isinstance(event, DeviceAccounted)]


def test_one_launch_in_one_interval() -> None:
    """100 ns of work around a launch of 60 ns that occupied one and a half of two cores."""
    m = meter()
    m.work("s", begin_ns=100, start_ns=120, end_ns=180, finish_ns=200, core_ns=90, instructions=7, launches=1, resident_bytes=0)
    (used,), (device,) = usage(events := m.cut(1000)), devices(events)
    assert (used.core_ns, used.instructions, used.launches) == (90, 7, 1)
    assert (device.charged_core_ns, device.scheduler_core_ns, device.idle_core_ns) == (90, 80, 2000 - 90 - 80)
    assert device.launch_ns == 60


def test_a_long_launch_is_split_in_proportion_and_adds_up() -> None:
    m = meter(cores=3)
    end = 2 * SECOND + 333_333_334
    m.work("s", begin_ns=0, start_ns=1, end_ns=end, finish_ns=end, core_ns=3 * end - 7, instructions=11, launches=1, resident_bytes=0)
    events = m.cut(end)
    parts = [event.core_ns for event in usage(events)]
    assert len(parts) == 3
    assert sum(parts) == 3 * end - 7
    assert [event.instructions for event in usage(events)] == [0, 0, 11]
    assert [event.launch_ns for event in devices(events)] == [SECOND - 1, SECOND, end - 2 * SECOND]
    assert all(event.to_ns - event.from_ns <= INTERVAL_NS for event in usage(events))


def test_an_image_is_in_the_fact_with_the_last_of_what_it_holds() -> None:
    """Although nothing was used since the fact before, and for its session alone."""
    m = meter()
    m.open(Account("other", "tenant", "task", 0))
    end = SECOND + SECOND // 2
    m.work("s", begin_ns=0, start_ns=0, end_ns=end, finish_ns=end, core_ns=end, instructions=11, launches=1, resident_bytes=0)
    m.images["s"] = 7
    assert [(event.session, event.launches, event.image) for event in usage(m.cut(2 * SECOND))] == [("s", 0, 0), ("s", 1, 7)]
    m.images["s"] = 9
    assert not m.cut(2 * SECOND), "there is no time to account for"
    m.resident("other", 5000, 2 * SECOND)
    facts = usage(m.cut(3 * SECOND))
    assert [(event.session, event.core_ns, event.image) for event in facts] == [("other", 0, 0), ("s", 0, 9)] and not m.images
    m.images["s"] = 10
    m.close("s")
    assert [event.session for event in usage(m.cut(4 * SECOND))] == ["other"], "it ended before there was time to account for"


def test_memory_is_the_integral_of_what_is_held() -> None:
    """1001 bytes from 0.5 s, 3000 from 1.25 s, 1 from 2 s: floored to byte-milliseconds, the rest carried on."""
    m = meter()
    m.resident("s", 1001, SECOND // 2)
    m.resident("s", 3000, SECOND * 5 // 4)
    events = m.cut(SECOND * 2)
    assert [event.byte_ms for event in usage(events)] == [1001 * 500, 1001 * 250 + 3000 * 750]
    m.resident("s", 1, 2 * SECOND)
    tails = [usage(m.cut(2 * SECOND + part)) for part in (400_000, 1_100_000)]
    assert [[event.byte_ms for event in tail] for tail in tails] == [[], [1]]


def test_repeated_work_is_in_the_timeline_and_recovered_up_to_what_was_charged_before() -> None:
    m = meter()
    m.open(Account("again", "tenant", "task", 0, recover_ns=100, recover_ns_max=100))
    for at, repeats in enumerate((True, True, False)):
        begin = at * 100
        m.work(
            "again", begin_ns=begin, start_ns=begin + 10, end_ns=begin + 80, finish_ns=begin + 80, core_ns=70, instructions=7, launches=1,
            resident_bytes=0, repeats=repeats,
        )  # fmt: skip
    (used,), (device,) = usage(events := m.cut(1000)), devices(events)
    assert (used.core_ns, used.recovered_ns, used.charged_core_ns) == (210, 100, 110)
    assert (used.instructions, used.launches) == (7, 1), "each batch counts once"
    assert device.charged_core_ns == 210
    account = m.close("again")
    assert account is not None and (account.recover_ns, account.recover_ns_max, account.launches) == (0, 100, 1)


def test_repeated_work_that_spans_intervals_is_recovered_in_each() -> None:
    m = meter()
    m.open(Account("again", "tenant", "task", 0, recover_ns=3 * SECOND))
    m.work(
        "again", begin_ns=0, start_ns=0, end_ns=2 * SECOND, finish_ns=2 * SECOND, core_ns=4 * SECOND, instructions=7, launches=1,
        resident_bytes=0, repeats=True,
    )  # fmt: skip
    assert [(event.core_ns, event.recovered_ns, event.launches) for event in usage(m.cut(2 * SECOND))] == [
        (2 * SECOND, 2 * SECOND, 0),
        (2 * SECOND, SECOND, 0),
    ]


def test_slices_that_a_lost_session_was_charged_for_are_recovered_and_their_batch_counts() -> None:
    """Over two intervals: the batch is new, but three seconds of its core time are not."""
    m = meter()
    m.open(Account("again", "tenant", "task", 0, recover_ns=5 * SECOND, resume_ns=3 * SECOND, resume_ns_max=3 * SECOND))
    m.work(
        "again", begin_ns=0, start_ns=0, end_ns=2 * SECOND, finish_ns=2 * SECOND, core_ns=4 * SECOND, instructions=7, launches=1,
        resident_bytes=0, resumes=True,
    )  # fmt: skip
    assert [(event.core_ns, event.recovered_ns, event.launches) for event in usage(m.cut(2 * SECOND))] == [
        (2 * SECOND, 2 * SECOND, 0),
        (2 * SECOND, SECOND, 1),
    ]


@pytest.mark.parametrize(
    ("elsewhere", "recover_ns", "recovered_ns", "displaced", "counted"),
    [
        (False, 0, 0, (0, 0, 0), (7, 1)),
        (False, 100, 100, (0, 0, 0), (7, 1)),
        (True, 0, 0, (140, 14, 2), (21, 3)),
        (True, 100, 100, (40, 0, 0), (7, 1)),  # another session here repeated a part of it, and was lost
        (True, 200, 140, (0, 0, 0), (7, 1)),
    ],
)
def test_what_repeats_the_work_of_another_node_counts_and_is_named(
    elsewhere: bool, recover_ns: int, recovered_ns: int, displaced: tuple[int, ...], counted: tuple[int, ...]
) -> None:
    """Three batches, two of which repeat something."""
    m = meter()
    m.open(Account("again", "tenant", "task", 0, recover_ns=recover_ns, recover_ns_max=recover_ns, elsewhere=elsewhere))
    for at, repeats in enumerate((True, True, False)):
        begin = at * 100
        m.work(
            "again", begin_ns=begin, start_ns=begin, end_ns=begin + 80, finish_ns=begin + 80, core_ns=70, instructions=7, launches=1,
            resident_bytes=0, repeats=repeats,
        )  # fmt: skip
    (used,) = usage(m.cut(1000))
    assert (used.core_ns, used.recovered_ns) == (210, recovered_ns)
    assert (used.displaced_ns, used.displaced_instructions, used.displaced_launches) == displaced
    account = m.close("again")
    assert account is not None
    assert (used.instructions, used.launches) == counted == (account.instructions, account.launches)
    assert (account.displaced_ns, account.displaced_instructions, account.displaced_launches) == displaced
    assert account.recover_ns == recover_ns - recovered_ns


def test_compiling_is_charged_beside_the_timeline() -> None:
    """Of a session that is open, once, in the next interval; the device's own identity holds without it."""
    m = meter()
    m.compiled("s", 3 * SECOND)
    m.compiled("s", SECOND)
    m.compiled("gone", SECOND)
    m.work("s", begin_ns=100, start_ns=120, end_ns=180, finish_ns=200, core_ns=90, instructions=7, launches=1, resident_bytes=0)
    (used,), (device,) = usage(events := m.cut(1000)), devices(events)
    assert (used.core_ns, used.compile_ns, used.session) == (90, 4 * SECOND, "s")
    assert device.charged_core_ns == 90
    assert usage(m.cut(2000)) == []
    m.compiled("s", 5)
    assert [event.compile_ns for event in usage(m.cut(3000))] == [5]
    account = m.close("s")
    assert account is not None and account.compile_ns == 4 * SECOND + 5
    m.compiled("s", 7)
    assert usage(m.cut(4000)) == []


def test_an_idle_device_leaves_few_facts() -> None:
    m = Meter("node", 1, 0, 2, 0, 0)
    assert m.cut(30 * SECOND, whole=False) == []
    assert [fact.wall_ns for fact in devices(m.cut(90 * SECOND, whole=False))] == [60 * SECOND, 30 * SECOND]
    assert [fact.wall_ns for fact in devices(m.cut(91 * SECOND))] == [SECOND]


def test_a_clock_that_was_set_dates_what_follows_and_one_that_was_not_leaves_no_hole() -> None:
    m = Meter("node", 1, 0, 1, 0, 100 * SECOND)
    begins = []
    for at, offset in ((1, 100 * SECOND + 999), (2, 100 * SECOND - 999), (3, 3_700 * SECOND), (4, 3_700 * SECOND + 5), (5, 40 * SECOND)):
        m.dated(offset)
        (fact,) = devices(m.cut(at * SECOND))
        begins.append(fact.from_ns)
        assert fact.wall_ns == SECOND
    assert begins == [100 * SECOND, 101 * SECOND, 3_702 * SECOND, 3_703 * SECOND, 44 * SECOND]


def test_work_of_a_closed_session_is_scheduler_time() -> None:
    m = meter()
    m.work("gone", begin_ns=0, start_ns=10, end_ns=20, finish_ns=30, core_ns=20, instructions=5, launches=1, resident_bytes=100)
    (device,) = devices(m.cut(100))
    assert (device.charged_core_ns, device.scheduler_core_ns, device.idle_core_ns) == (0, 40, 160)


@dataclass(frozen=True)
class Step:
    """Idle, then work before, in and after a launch, then maybe a cut."""

    idle: int
    before: int
    launch: int
    after: int
    share: float
    resident: int
    session: str
    cut: bool


steps = st.lists(
    st.builds(
        Step,
        idle=st.integers(0, 3 * SECOND),
        before=st.integers(0, 10**7),
        launch=st.integers(0, 3 * SECOND),
        after=st.integers(0, 10**7),
        share=st.floats(0, 1.2),
        resident=st.integers(0, 1 << 35),
        session=st.sampled_from(["a", "b", "gone"]),
        cut=st.booleans(),
    ),
    max_size=20,
)


@given(steps, st.integers(1, 7))
def test_the_identity_holds_for_every_timeline(timeline: list[Step], cores: int) -> None:
    m = Meter("node", 1, 0, cores, 0, 5)
    for session in ("a", "b"):
        m.open(Account(session, "tenant", "task", 0))
    events: list[Event] = []
    at = 0
    launches = {"a": 0, "b": 0}
    for step in timeline:
        begin = at + step.idle
        start = begin + step.before
        end = start + step.launch
        at = end + step.after
        m.work(
            step.session,
            begin_ns=begin,
            start_ns=start,
            end_ns=end,
            finish_ns=at,
            core_ns=int(step.launch * cores * step.share),
            instructions=3,
            launches=1,
            resident_bytes=step.resident,
        )
        if step.session in launches:
            launches[step.session] += 1
        if step.cut:
            events += m.cut(at)
    events += m.cut(at + SECOND)
    position = 0
    used = {event.serial: event for event in usage(events)}
    assert sorted(used) == list(range(1, len(used) + 1))
    for number, fact in enumerate(devices(events), 1):
        assert fact.serial == number
        assert fact.from_ns == position + 5
        position += fact.wall_ns
        assert fact.charged_core_ns + fact.scheduler_core_ns + fact.idle_core_ns == fact.wall_ns * cores
        assert min(fact.charged_core_ns, fact.scheduler_core_ns, fact.idle_core_ns) >= 0
        named = [used[serial] for serial in range(fact.serial_first, fact.serial_last + 1)]
        assert sum(event.core_ns for event in named) == fact.charged_core_ns
        assert all(event.from_ns == fact.from_ns and event.to_ns == fact.from_ns + fact.wall_ns for event in named)
    assert position == at + SECOND
    for session, count in launches.items():
        account = m.accounts[session]
        mine = [event for event in used.values() if event.session == session]
        assert account.launches == count == sum(event.launches for event in mine)
        assert account.instructions == 3 * count == sum(event.instructions for event in mine)
        assert account.core_ns == sum(event.core_ns for event in mine)
        assert account.byte_ms == sum(event.byte_ms for event in mine)
        assert account.byte_ns < 10**6


def test_a_session_that_holds_much_for_long_stays_within_what_the_journal_can_write() -> None:
    """1 TiB for an hour and 80 GB for a week: nothing of it is lost to the bill, and every account can be written."""
    for held, seconds in ((1 << 40, 3_600), (80 << 30, 7 * 86_400)):
        m = meter()
        m.resident("s", held, 0)
        said = 0
        for at in (1, seconds // 2, seconds):
            said += sum(event.byte_ms for event in usage(m.cut(at * SECOND)))
            msgspec.msgpack.encode(tuple(m.accounts.values()))
        assert said == held * seconds * 1000
        assert m.accounts["s"].byte_ms == min(said, TOTAL_MAX)


def test_an_account_of_an_old_journal_goes_on_where_it_was() -> None:
    """There, byte_ns held the total of the session."""
    m = meter()
    m.open(Account("s", "tenant", "task", 0, resident_bytes=1, byte_ns=5_000_000_000_400_000, byte_ms=5_000_000_000))
    (used,) = usage(m.cut(1_600_000))
    assert used.byte_ms == 2
