"""May this session be opened? What its request says about itself, what no device of the node could ever give, and the dispatch core's
reasons in words. Pure.

Every refusal names the field of the request (bus_schemas.session.OpenSession) and the reason. What depends on the moment (a device that is
taken or being restarted) is node.py's, what a latency target may be the dispatch core's.
"""

from __future__ import annotations

import re
from typing import Final

from bus_schemas import faults, subjects
from bus_schemas.batch import Fault
from bus_schemas.events import OUTCOME_ERROR_CHARS_MAX, Outcome
from bus_schemas.limits import SEQ_MAX
from bus_schemas.quotas import QUOTAS
from bus_schemas.session import OpenSession
from scheduler.buckets import Buckets
from scheduler.dispatch import PRIORITIES
from scheduler.dispatch import decisions as why
from scheduler.quotas import Asked, answer, asked_of
from scheduler.vram.overcommit import schedulable_bytes

WEIGHT_MAX: Final = 10_000
SLA_MS_MAX: Final = 3_600_000
VRAM_WAIT_MS_MAX: Final = 3_600_000
_CLASS: Final = re.compile(rf"[\w.<>]{{0,{OUTCOME_ERROR_CHARS_MAX}}}")


def check_request(request: OpenSession) -> Fault | None:
    """What is wrong with the request whatever the node looks like, or None."""
    try:
        subjects.token(request.session)
    except ValueError as error:
        return _bad("session", str(error))
    for field, low, high, meaning in (
        ("priority", 0, PRIORITIES - 1, "0 is the highest"),
        ("weight", 1, WEIGHT_MAX, "100 is what a session has that says nothing"),
        ("sla_ms_p99", 0, SLA_MS_MAX, "milliseconds, 0: no latency target"),
        ("pace_percent", 0, 100, "percent of the device's core time, 0: no bound"),
        ("vram_wait_ms", 0, VRAM_WAIT_MS_MAX, "milliseconds, 0: fail at once"),
        ("repeats", 0, SEQ_MAX - 1, "the number of a batch"),
        ("shared", 0, SEQ_MAX - 1, "the number of a batch"),
        ("image", 0, SEQ_MAX - 1, "the number of the batch before it"),
    ):
        value = getattr(request, field)
        if not low <= value <= high:
            return _bad(field, f"{value} is not allowed: {low} to {high} ({meaning})")
    if request.vram_bytes < 0:
        return _bad("vram_bytes", f"{request.vram_bytes} is negative")
    if request.sla_ms_p99 and request.priority:
        return _bad(
            "sla_ms_p99", f"a latency target of {request.sla_ms_p99} ms needs priority 0: at priority {request.priority} others go first"
        )
    if request.sla_ms_p99 and request.pace_percent:
        return _bad(
            "sla_ms_p99",
            f"a latency target of {request.sla_ms_p99} ms contradicts pace_percent {request.pace_percent}: a paced session waits by "
            "its own wish",
        )
    return None


def check_quota(request: OpenSession, gpu: int, vram_bytes: int, overcommit_percent: int) -> Fault | None:
    """Could device ``gpu`` ever give this quota? Overcommit counts for sessions that may be swapped out."""
    most = schedulable_bytes(vram_bytes, overcommit_percent) if request.swap else vram_bytes
    if request.vram_bytes <= most:
        return None
    text = f"vram_bytes: REQUIRED_VRAM asks for {request.vram_bytes >> 20} MB, device {gpu} has {vram_bytes >> 20} MB"
    if overcommit_percent and request.swap:
        text += f" and gives {most >> 20} MB to sessions that may be swapped out (overcommit {overcommit_percent} %)"
    elif overcommit_percent:
        text += " and a session that may not be swapped out must fit into them"
    return Fault(faults.QUOTA_EXCEEDED, text, (f"most @ vram_bytes: {most}",))


def sound_outcome(outcome: Outcome | None) -> Outcome | None:
    """What a client reports of its script's end, None when it reports what cannot be. That a client is lost only the node says."""
    if outcome is None or outcome.lost:
        return None
    sound = 0 <= outcome.exit_code <= 255 and 0 <= outcome.signal <= 64 and _CLASS.fullmatch(outcome.error)
    return outcome if sound else None


def _bad(field: str, reason: str) -> Fault:
    return Fault(faults.MALFORMED, f"{field}: {reason}", (f"value @ {field}: {reason}",))


EXECUTOR_LOST: Final = Fault(faults.MEMORY_LOST, "the process that held this session's device memory ended; start the script again")
EXECUTOR_OUT_OF_MEMORY: Final = Fault(
    faults.MEMORY_LOST,
    "the process that held this session's device memory took more of the node's memory than it may, and was ended; start the script again",
)

REFUSALS: Final = {
    why.SESSION_UNKNOWN: Fault(faults.SESSION_UNKNOWN, "this node does not know the session: its lease ran out, or the node started anew"),
    why.SESSION_CLOSING: Fault(faults.SESSION_LOST, "the session is closed"),
    why.SESSION_FAULTED: Fault(faults.SESSION_LOST, "the session ended with an earlier fault"),
    why.EPOCH_UNKNOWN: Fault(faults.OUT_OF_ORDER, "the batch names an epoch that this node has not had"),
    why.PARKED_BATCHES_FULL: Fault(faults.OUT_OF_ORDER, "too many batches wait for an earlier one that has not come", fatal=False),
    why.PARKED_BYTES_FULL: Fault(faults.OUT_OF_ORDER, "too many bytes wait for an earlier batch that has not come", fatal=False),
}


_SESSION_REFUSALS: Final = {
    why.PRIORITY_INVALID: "priority: it is an integer from 0 (highest) to 4",
    why.SESSION_EXISTS: "session: it exists already",
    why.WEIGHT_INVALID: "weight: it is out of range",
    why.PACE_INVALID: "pace_percent: it is out of range",
    why.SLA_INVALID: "sla_ms_p99: a latency target is positive and needs priority 0",
    why.SLA_CONTRADICTORY: "sla_ms_p99: a latency target contradicts pace_percent, a paced session waits by its own wish",
    why.SLA_UNREACHABLE: "sla_ms_p99: what a batch may have to wait for on this device is longer than that; ask for a longer one",
}


def refusal(reason: str) -> Fault:
    """Of a batch."""
    return REFUSALS.get(reason) or Fault(faults.OUT_OF_ORDER, reason)


def not_taken(reason: str) -> Fault:
    """Of a session."""
    text = _SESSION_REFUSALS.get(reason, f"session: the device does not take it ({reason})")
    return Fault(faults.MALFORMED, text, (f"{reason} @ {text.partition(':')[0]}",))


class OpenRefused(Exception):
    """The dispatch core does not take the session; ``fault`` says why."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


def quota_fault(refused: Asked) -> Fault:
    """The refusal of an open at a quota; of a rate not fatal, so the client tries again at once."""
    excess, quota = answer(refused), QUOTAS[refused.quota]
    assert excess is not None, "it was refused"
    whose = f"{quota.scope.partition(',')[0]} {refused.who}"
    return Fault(faults.QUOTA_REACHED, excess.sentence(whose), fatal=not quota.regained, excess=excess)


_ASKS_NS: Final = 5 * 10**9
"""A domain that has asked for no session for so long does not wait for one. Clients ask more often, and a process starts sooner."""


class DomainTurns:
    """Queue of the trust domains that want a device which serves one at a time: the one that has waited longest is next. Else a
    domain that asks without a pause would have the device whenever it is free, also without opening a session."""

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[int, int]] = {}
        """By domain: when it asked first since its last turn, and last."""

    def ask(self, domain: str, now_ns: int) -> None:
        """A client of the domain wants a session."""
        self._waiting = {name: asked for name, asked in self._waiting.items() if now_ns - asked[1] <= _ASKS_NS}
        self._waiting[domain] = self._waiting.get(domain, (now_ns, 0))[0], now_ns

    @property
    def next(self) -> str:
        """The first domain of the queue. At least one has asked."""
        return min(self._waiting, key=lambda name: self._waiting[name][0])

    def taken(self, domain: str) -> None:
        """A session of the domain is opened."""
        self._waiting.pop(domain, None)


class OpenQuotas:
    """How many sessions a tenant may have open on the node, and how often it and each of its keys may open one (each leaves facts in the
    log for ever)."""

    def __init__(self, sessions_max: int, *, keys: bool) -> None:
        """``keys``: whether principals are keys; otherwise all clients are the same one."""
        self.sessions_max = sessions_max
        self._keys = keys
        self.tenants: Buckets[str] = Buckets(QUOTAS["opens"].rate(sessions_max))
        self.principals: Buckets[str] = Buckets(QUOTAS["key_opens"].rate(max(1, sessions_max // 2)))

    def refuse(self, tenant: str, principal: str, sessions: int, now_ns: int) -> Asked | None:
        """The question that is refused when the tenant, which has so many ``sessions`` open, opens one more with the key ``principal``; or
        None."""
        by_key = (asked_of("key_opens", self.principals, principal, now_ns),) if self._keys else ()
        by_tenant = asked_of("opens", self.tenants, tenant, now_ns), Asked(now_ns, "sessions", tenant, self.sessions_max, sessions)
        return next((asked for asked in (*by_key, *by_tenant) if answer(asked) is not None), None)

    def opened(self, tenant: str, principal: str, now_ns: int) -> None:
        """Count an open."""
        self.tenants.take(tenant, now_ns)
        self.principals.take(principal, now_ns)
