"""Which run a runner gets, what it must stop, and which runs are over without a report."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from bus_schemas.events import BudgetCrossed, DeviceFact, Event, NodeRegistered, TaskPlaced, TaskStateChanged, TaskSubmitted
from bus_schemas.runs import ENDED, PENDING, TAKEN, RunnerSync, RunState
from scheduler.placement import ClusterView
from services.controller.run_book import SILENT_S, BudgetCrossings, RunBook

S = 10**9


def view_of(*tasks: tuple[str, int, bool]) -> ClusterView:
    """(task, priority, placed)."""
    view = ClusterView()
    view.apply(1, NodeRegistered(0, "n", "n", "here", 1, (DeviceFact(0, "d", "host", 1, 1 << 40),), (), "0"))
    for at, (task, priority, placed) in enumerate(tasks):
        view.apply(10 + 2 * at, TaskSubmitted(0, task, "t", priority, 1 << 20, queue=True))
        if placed:
            view.apply(11 + 2 * at, TaskPlaced(0, task, "n", (0,), (), (), 1))
    return view


def book_of(*states: RunState) -> RunBook:
    book = RunBook(since_s=0.0)
    for at, state in enumerate(states, 1):
        book.note(at, state)
    return book


def run(task: str, state: str = PENDING, **more: Any) -> RunState:
    return RunState(task, "t", "a.py", state, 0, 60, **more)


def sync(runner: str = "r", instance: str = "i", *running: str, free: bool = True, tenants: tuple[str, ...] = ()) -> RunnerSync:
    return RunnerSync(runner, instance, 2, running, tenants, free)


def test_the_most_urgent_run_with_a_place_comes_first() -> None:
    view = view_of(("low", 3, True), ("waits", 0, False), ("first", 1, True), ("second", 1, True))
    book = book_of(run("second"), run("low"), run("waits"), run("first"), run("unknown"))
    assert [state.task for state in book.to_take(view, sync())] == ["first", "second", "low"]


def test_a_runner_gets_what_is_meant_for_it() -> None:
    view = view_of(("a", 0, True), ("b", 0, True))
    book = book_of(run("a", wanted="other"), run("b"))
    assert [state.task for state in book.to_take(view, sync("r"))] == ["b"]
    assert [state.task for state in book.to_take(view, sync("other"))] == ["a", "b"]
    assert book.to_take(view, sync(tenants=("u",))) == []


def test_an_older_state_changes_nothing() -> None:
    book = book_of()
    book.note(5, run("a", ENDED))
    book.note(4, run("a", TAKEN))
    assert book.unfinished() == [] and book.get("a") == run("a", ENDED)


def test_what_a_runner_must_stop() -> None:
    view = view_of(("mine", 0, True), ("cancelled", 0, True), ("ended", 0, True), ("taken", 0, True))
    view.apply(90, TaskStateChanged(1, "cancelled", "cancelled", "cancelled by me"))
    mine = {"runner": "r", "instance": "i"}
    book = book_of(
        run("mine", TAKEN, **mine), run("cancelled", TAKEN, **mine), run("ended", ENDED, **mine), run("taken", TAKEN, instance="x")
    )
    said = sync("r", "i", "mine", "cancelled", "ended", "taken", "not heard of")
    assert book.to_stop(view, said) == ("cancelled", "ended", "taken")


def test_a_run_whose_order_was_lost_is_handed_over_again_to_the_same_process_only() -> None:
    book = book_of(run("a", TAKEN, runner="r", instance="i"))
    assert book.handed_over(sync("r", "i")) == book.get("a")
    assert book.handed_over(sync("r", "i", "a")) is None
    assert book.handed_over(sync("r", "another start")) is None


def test_runs_that_are_over_without_a_report() -> None:
    view = view_of(("a", 0, True), ("b", 0, False))
    view.apply(90, TaskStateChanged(1, "b", "failed", "no room came"))
    taken = run("a", TAKEN, runner="r", instance="i", taken_ns=0)
    book = book_of(taken, run("b"))

    def over(now_s: float, *heard: RunnerSync) -> list[tuple[str, str]]:
        for one in heard:
            book.heard(one, now_s)
        return [(state.task, reason) for state, reason in book.over(view, now_s, int(now_s * S))]

    assert over(SILENT_S - 1) == [("b", "no room came")]
    assert ("a", "runner r stopped answering") in over(SILENT_S + 1)
    assert over(40.0, sync("r", "i", "a")) == [("b", "no room came")]
    assert over(41.0, sync("r", "i")) == [("b", "no room came")], "it will be handed over again"
    assert ("a", "runner r did not start it") in over(42.0, sync("r", "i", free=False))
    assert ("a", "runner r was restarted") in over(43.0, sync("r", "j"))
    assert ("a", "runner r stopped answering") in over(44.0 + SILENT_S)


def test_the_silence_of_runners_while_the_bus_was_away_says_nothing() -> None:
    view, book = view_of(("a", 0, True)), book_of(run("a", TAKEN, runner="r", instance="i"))
    book.heard(sync("r", "i", "a"), 100.0)
    book.listen(100.0 + 2 * SILENT_S)
    assert not list(book.over(view, 101.0 + 2 * SILENT_S, 0))
    assert list(book.over(view, 101.0 + 3 * SILENT_S, 0))


def test_what_a_runner_said_before_the_bus_was_away_says_nothing_of_a_run_that_it_took_meanwhile() -> None:
    view, book = view_of(("a", 0, True)), book_of(run("a", TAKEN, runner="r", instance="two", taken_ns=110 * S))
    for before in (sync("r", "one"), sync("r", "two", "b", free=False)):
        book.heard(before, 100.0)
        book.listen(125.0)
        assert not list(book.over(view, 126.0, 126 * S))
    book.heard(sync("r", "three"), 126.0)
    assert [reason for _, reason in book.over(view, 126.0, 126 * S)] == ["runner r was restarted"]


def test_a_run_that_lasts_is_written_again_every_day() -> None:
    book, day_ns = book_of(run("a"), run("b", ENDED)), 86_400 * S
    assert not book.to_renew(day_ns)
    assert [state.task for state in book.to_renew(day_ns + 1)] == ["a"]
    book.renewed["a"] = day_ns + 1
    assert not book.to_renew(2 * day_ns)
    assert book.to_renew(2 * day_ns + 2)
    book.note(9, run("a", ENDED))
    book.forget(2 * day_ns)
    assert not book.to_renew(9 * day_ns) and not book.renewed


def test_who_takes_scripts_of_a_tenant() -> None:
    book = book_of()
    book.heard(sync("any"), 10.0)
    book.heard(sync("some", tenants=("t",)), 10.0)
    book.heard(sync("old"), -SILENT_S)
    assert book.takers("t", "", 11.0) == ["any", "some"] and book.takers("u", "", 11.0) == ["any"]
    assert book.takers("t", "some", 11.0) == ["some"] and book.takers("u", "some", 11.0) == []


def test_a_placed_task_awaits_its_run_while_a_runner_has_it_or_may_take_it() -> None:
    lease_s = 120.0
    book = book_of(run("any"), run("other", wanted="o"), run("taken", TAKEN), run("over", ENDED))

    def awaited(now_s: float) -> list[str]:
        return [task for task in ("any", "other", "taken", "over", "no run") if book.awaited(task, now_s, lease_s)]

    book.heard(sync("r"), 10.0)
    assert awaited(119.0) == ["any", "other", "taken"], "a controller that has just started waits for runners"
    assert awaited(129.0) == ["any", "taken"], "none of that name was heard"
    assert awaited(130.0) == ["taken"]
    book.heard(sync("r", tenants=("u",)), 130.0)
    assert awaited(131.0) == ["taken"]
    book.heard(sync("o"), 132.0)
    assert awaited(133.0) == ["any", "other", "taken"]
    book.listen(900.0)
    assert awaited(1019.0) == ["any", "other", "taken"] and awaited(1020.0) == ["taken"]
    lease_s = 1.0
    assert awaited(900.0 + SILENT_S - 1) == ["any", "other", "taken"] and awaited(900.0 + SILENT_S) == ["taken"]


def test_an_ended_run_is_notified_once_and_forgotten_after_a_week() -> None:
    ended = run("a", ENDED, webhook="http://x", ended_ns=0)
    book = book_of(ended)
    assert book.to_notify() == [ended]
    book.note(2, replace(ended, notified="delivered"))
    assert book.to_notify() == []
    book.forget(8 * 86_400 * S)
    assert book.get("a") is None


def crossings(*events: Event) -> BudgetCrossings:
    found = BudgetCrossings()
    for position, event in enumerate(events, 100):
        found.apply(position, event)
    return found


def crossed(at_ns: int, threshold: str, period: str = "month", tenant: str = "t") -> BudgetCrossed:
    return BudgetCrossed(at_ns, tenant, threshold, 0, 80, 100, 1, period)


def test_a_webhook_hears_of_each_budget_once_and_only_of_what_happened_during_its_run() -> None:
    book = book_of(run("a", TAKEN, webhook="http://h"), run("silent", TAKEN), run("over", ENDED, ended_ns=5, webhook="http://h"))
    assert book.to_warn(crossings(crossed(-1, "warning"), crossed(9, "warning", tenant="u"), crossed(9, "open"))) == []
    seen = crossings(crossed(7, "warning"), crossed(8, "stopped", "day"), crossed(9, "stopped"))
    (first,) = book.to_warn(seen)
    assert (first[0].task, first[1], first[2].period) == ("a", 101, "day"), "the warning was overtaken by the stop"
    book.note(10, replace(first[0], budget_position=101))
    (second,) = book.to_warn(seen)
    assert (second[1], second[2].threshold) == (102, "stopped")
    book.note(11, replace(second[0], budget_position=102))
    assert book.to_warn(seen) == []
    assert [state.task for state, *_ in book.to_warn(crossings(crossed(4, "warning")))] == ["over"]
