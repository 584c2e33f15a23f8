"""The fence for placements: the generation is a function of the log, and no controller wins twice, in whatever order they see it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.controller.log_projection import GENERATION, Turns


def test_generations_follow_each_other() -> None:
    seen = Turns()
    for number in range(2 * GENERATION + 1):
        assert (seen.generation, seen.subject("a")) == (number // GENERATION, f"wooly.evt.placement.{number // GENERATION}.a")
        assert seen.last == (0 if number % GENERATION == 0 else 10 * (number - 1) + 1)
        seen.note(10 * number + 1, seen.subject(f"t{number}"))
        seen.note(10 * number + 2, f"wooly.evt.task.t{number}")
    assert seen.rivals() == "wooly.evt.placement.2.*"
    assert seen.positions["t5"] == 51
    assert seen.subjects("t5") == ("wooly.evt.placement.0.t5",)


def test_what_was_written_before_there_were_generations_is_known_and_counts_for_none() -> None:
    seen = Turns()
    seen.note(3, "wooly.evt.placement.old")
    seen.note(4, seen.subject("old"))
    assert (seen.generation, seen.last, seen.positions["old"]) == (0, 4, 4)
    assert seen.subjects("old") == ("wooly.evt.placement.old", "wooly.evt.placement.0.old")


class Broker:
    """Conditional appends as JetStream does them: by the last message on the subjects that match."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def append(self, subject: str, rivals: str, expected: int) -> bool:
        prefix = rivals.removesuffix("*")
        last = max((position for position, on in enumerate(self.log, start=1) if on.startswith(prefix)), default=0)
        if last != expected:
            return False
        self.log.append(subject)
        return True


@given(steps=st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=120))
def test_a_controller_that_has_not_seen_the_last_placement_loses(steps: list[tuple[int, bool]]) -> None:
    """Three controllers, each as far behind the log as it likes: an append is stored exactly if its writer had seen all before it."""
    broker = Broker()
    views, seen = [Turns(4), Turns(4), Turns(4)], [0, 0, 0]
    for number, (who, reads) in enumerate(steps):
        if reads:
            while seen[who] < len(broker.log):
                seen[who] += 1
                views[who].note(seen[who], broker.log[seen[who] - 1])
            continue
        knew_all = seen[who] == len(broker.log)
        view = views[who]
        assert broker.append(view.subject(f"t{number}"), view.rivals(), view.last) == knew_all
