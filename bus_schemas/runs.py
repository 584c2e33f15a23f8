"""Runs: scripts that a runner executes for tasks. Subjects, records and messages. Pure: data types.

A run has the id of its task. Its script and its state are the last messages on two subjects of the stream WOOLY_RUNS, which only
controllers write. Its output is the sequence of messages on its subject of WOOLY_RUN_LOGS, each UTF-8 text, which its runner writes. A
runner asks the controllers for work (``RunnerSync``) and reports ends (``RunReport``); both may be repeated without harm.
"""

from __future__ import annotations

from typing import Final

import msgspec

from bus_schemas.limits import Name, Recorded, TenantName
from bus_schemas.subjects import token

RUNS_STREAM: Final = "WOOLY_RUNS"
LOGS_STREAM: Final = "WOOLY_RUN_LOGS"
STATES_ALL: Final = "wooly.run.state.*"
LOG_ALL: Final = "wooly.run.log.*"
SYNCS: Final = "wooly.run.req.sync.*"
BEATS: Final = "wooly.run.beat.*"
"""Every request of a runner is also published here: one controller answers it, all must know of it."""
REPORTS: Final = "wooly.run.req.report.*"
SCRIPT_BYTES_MAX: Final = 256 << 10
SYNC_S: Final = 0.5
"""A runner asks this often."""

PENDING: Final = "pending"
"""No runner has it yet: its task waits for a place, or every runner is busy."""
TAKEN: Final = "taken"
ENDED: Final = "ended"


class RunScript(msgspec.Struct, frozen=True):
    """What to run. ``name``: the file's. ``wall_s``: how long it may run. ``ram_mb``: bound of its address space in MiB, 0: none."""

    task: str
    tenant: str
    script: str
    name: str
    arguments: tuple[str, ...]
    environment: dict[str, str]
    wall_s: int
    ram_mb: int = 0


class RunState(msgspec.Struct, frozen=True):
    """``wanted``: the only runner that may take it, empty: any. ``runner``, ``instance``: the runner that took it, and which process
    of that name. ``key``: id of the API key its script has, empty: none. ``exit_code``: None while it runs, and where it was never known.
    ``signal``: what killed it, 0: none. ``reason``: why it ended, where the exit code does not say. ``user``: who submitted it, where that
    is a user. ``webhook``: the URL to notify at the end, empty: none; ``notified``: how that went, empty: it is still due.
    ``digest``: of the script message, which is removed at the end."""

    task: str
    tenant: str
    name: str
    state: str
    submitted_ns: int
    wall_s: int
    wanted: str = ""
    user: str = ""
    webhook: str = ""
    runner: str = ""
    instance: str = ""
    key: str = ""
    taken_ns: int = 0
    ended_ns: int = 0
    exit_code: int | None = None
    signal: int = 0
    reason: str = ""
    notified: str = ""
    digest: str = ""
    budget_position: int = 0
    """Log position of the last BudgetCrossed that the webhook was notified of."""


class RunnerSync(msgspec.Struct, frozen=True):
    """A runner's request. ``running``: its runs, until the report of their end is acknowledged. ``tenants``: whose scripts it takes, empty:
    of all tenants. ``free``: it can start another one now."""

    runner: Name
    instance: Name
    slots: int
    running: tuple[Name, ...] = ()
    tenants: tuple[TenantName, ...] = ()
    free: bool = False


class RunOrder(msgspec.Struct, frozen=True):
    """Start this. ``api_key``: for the script, empty on a bus without authentication."""

    script: RunScript
    api_key: str = ""


class RunOrders(msgspec.Struct, frozen=True):
    """The answer to a RunnerSync. ``stop``: tasks whose scripts are to be killed."""

    stop: tuple[str, ...] = ()
    start: RunOrder | None = None


class RunReport(msgspec.Struct, frozen=True):
    """``ended`` False: the runner is about to kill it, because of ``reason``. ``exit_code`` None: it could not be started, or a signal
    killed it."""

    runner: Name
    instance: Name
    task: Name
    ended: bool
    exit_code: int | None = None
    signal: int = 0
    reason: Recorded = ""


def run_script(task: str) -> str:
    return f"wooly.run.script.{token(task)}"


def run_state(task: str) -> str:
    return f"wooly.run.state.{token(task)}"


def run_log(task: str) -> str:
    return f"wooly.run.log.{token(task)}"


def run_sync(runner: str) -> str:
    return f"wooly.run.req.sync.{token(runner)}"


def run_beat(runner: str) -> str:
    return f"wooly.run.beat.{token(runner)}"


def run_report(runner: str) -> str:
    return f"wooly.run.req.report.{token(runner)}"
