"""The global configuration: the values in force and where they are from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from scheduler.placement import ClusterView
from scheduler.placement.states import (
    DEFAULT_VRAM_MB,
    DEFAULTS,
    DEFRAGMENT_AFTER_MS,
    ENVIRONMENT,
    GLOBAL,
    GLOBAL_LIMITS,
    OVERCOMMIT_GLOBAL,
    PACK,
    QUEUE_AGE_MS,
    QUEUE_PROTECT_MS,
    QUEUE_RESERVATIONS,
)
from services.controller.presenters import Json


@dataclass(frozen=True, slots=True)
class Setting:
    """A global value."""

    key: str
    label: str
    unit: str
    hint: str
    value: int
    stored: int | None
    default: int
    source: str  #: stored, environment or default
    most: int
    scale: int = 1  #: one unit of the form in units of the value


SETTINGS: Final = (
    (
        OVERCOMMIT_GLOBAL, "VRAM overcommit", "%", 1,
        "Memory beyond a device's own that tasks may be promised if they can be swapped out. A node's own value has precedence.",
    ),
    (QUEUE_AGE_MS, "Raise waiting tasks every", "s", 1000, "Each time by one priority level (aging). 0: never."),
    (QUEUE_PROTECT_MS, "Reserve devices after waiting", "s", 1000,
     "Later tasks can then no longer overtake it. 0: never."),
    (QUEUE_RESERVATIONS, "Most reservations", "tasks", 1, "At most so many tasks have devices reserved at one time."),
    (DEFAULT_VRAM_MB, "Default VRAM of a task", "MiB", 1,
     "For a task that requests none; it may grow beyond. At most a quarter of the largest device. 0: every task must request VRAM."),
    (PACK, "Pack tasks", "", 1,
     "1: of equally busy devices the fuller one is taken; whole devices stay free. 0: the emptier one; tasks run faster."),
    (DEFRAGMENT_AFTER_MS, "Move tasks to make room after waiting", "s", 1000,
     "A running task moves to a device of the same kind when one that waits then fits. One at a time, none of priority 0. 0: never."),
)  # fmt: skip


def settings_of(view: ClusterView) -> list[Setting]:
    """Every global value with where it is from."""
    return [_setting(view, key, label, unit, scale, hint) for key, label, unit, scale, hint in SETTINGS]


def _setting(view: ClusterView, key: str, label: str, unit: str, scale: int, hint: str) -> Setting:
    stored, given = view.number(GLOBAL, key), view.number(ENVIRONMENT, key)
    default = given if given else DEFAULTS[key]
    source = "stored" if stored is not None else "environment" if given else "default"
    return Setting(
        key=key,
        label=label,
        unit=unit,
        hint=hint,
        value=stored if stored is not None else default,
        stored=stored,
        default=default,
        source=source,
        most=GLOBAL_LIMITS[key] // scale,
        scale=scale,
    )


def config_answer(view: ClusterView, revision: int) -> Json:
    """``source``: where the overcommit is from."""
    overcommit, *others = settings_of(view)
    return {
        overcommit.key: overcommit.value,
        "source": overcommit.source,
        **{setting.key: setting.value for setting in others},
        "revision": revision,
    }
