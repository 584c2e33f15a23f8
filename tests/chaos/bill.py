"""The verdict on the bill of a run, beside that of an undisturbed run."""

from __future__ import annotations

import time
from collections.abc import Callable

from bus_schemas.events import TaskDisplaced
from tests.chaos.stack import Stack
from tests.support.node import until

__all__ = ["Verdict", "Work", "as_undisturbed", "at_least_undisturbed", "bill", "findings"]

_SETTLED_S = 60
Work = tuple[int, int]
"""(launches, instructions): what does not depend on how fast the machine is."""
Verdict = Callable[[Stack, Work], list[str]]
"""What is wrong with the bill of a run, which is to come to that of an undisturbed one."""


def bill(stack: Stack) -> Work:
    """Of all tasks so far."""
    total = stack.ask("billing", "/api/v1/billing/credits?by=tenant")["total"]
    return total["launches"], total["instructions"]


def findings(stack: Stack) -> list[str]:
    """What `wooly billing verify` finds."""
    found = stack.ask("billing", "/api/v1/billing/verify")
    return [] if found["ok"] else [str(found["first_difference"]), *found["findings"]]


def as_undisturbed(displaced: int = 0) -> Verdict:
    """Launches and instructions come to those of an undisturbed run exactly, whatever was repeated and where; and the task was displaced so
    often."""

    def verdict(stack: Stack, wanted: Work) -> list[str]:
        found: Work = (0, 0)
        deadline = time.monotonic() + _SETTLED_S
        while time.monotonic() < deadline:
            try:
                found = bill(stack)
                if found == wanted:
                    moves = sum(isinstance(event, TaskDisplaced) for event in stack.log())
                    return findings(stack) + ([] if moves == displaced else [f"it was displaced {moves} times"])
            except OSError:
                pass  # it is being started
            time.sleep(0.5)  # the log reaches billing a moment later
        return [f"the bill is {found}, that of an undisturbed run {wanted}"]

    return verdict


def at_least_undisturbed(stack: Stack, wanted: Work) -> list[str]:
    """For a script that was killed, and run again: what it used before is charged as well."""

    def over() -> bool:
        return not {"queued", "started"} & {task["state"] for task in stack.ask("controller", "/api/v1/tasks")["items"]}

    until(over, "no task is under way", _SETTLED_S)
    found = bill(stack)
    right = all(least <= this <= 2 * least for this, least in zip(found, wanted, strict=True))
    return findings(stack) + ([] if right else [f"the bill is {found}, that of an undisturbed run {wanted}"])
