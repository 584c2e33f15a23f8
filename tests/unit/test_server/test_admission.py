"""Opening a session: every refusal names the field and the reason."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bus_schemas import faults
from bus_schemas.session import OpenSession
from services.server.admission import DomainTurns, OpenQuotas, check_quota, check_request, quota_fault

GOOD = OpenSession("s", "t", "", 0, (0,), 1 << 30)
GIB = 1 << 30


def request(**changes: Any) -> OpenSession:
    return msgspec.structs.replace(GOOD, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"priority": 4, "weight": 10_000, "pace_percent": 100, "vram_wait_ms": 0},
        {"weight": 1, "sla_ms_p99": 1},
        {"sla_ms_p99": 3_600_000, "vram_bytes": 0},
    ],
)
def test_what_may_be_asked_for(changes: dict[str, Any]) -> None:
    assert check_request(request(**changes)) is None


@pytest.mark.parametrize(
    ("changes", "field", "reason"),
    [
        ({"session": "a.b"}, "session", "may not stand in a subject"),
        ({"priority": 5}, "priority", "0 to 4"),
        ({"priority": -1}, "priority", "0 to 4"),
        ({"weight": 0}, "weight", "1 to 10000"),
        ({"weight": -3}, "weight", "1 to 10000"),
        ({"weight": 10_001}, "weight", "1 to 10000"),
        ({"sla_ms_p99": -1}, "sla_ms_p99", "0 to 3600000"),
        ({"pace_percent": 101}, "pace_percent", "0 to 100"),
        ({"pace_percent": -1}, "pace_percent", "0 to 100"),
        ({"vram_wait_ms": -1}, "vram_wait_ms", "0 to 3600000"),
        ({"vram_bytes": -1}, "vram_bytes", "negative"),
        ({"priority": 1, "sla_ms_p99": 50}, "sla_ms_p99", "needs priority 0: at priority 1 others go first"),
        ({"sla_ms_p99": 50, "pace_percent": 30}, "sla_ms_p99", "contradicts pace_percent 30"),
    ],
)
def test_refused_with_the_field_and_the_reason(changes: dict[str, Any], field: str, reason: str) -> None:
    fault = check_request(request(**changes))
    assert fault is not None
    assert (fault.name, fault.fatal) == (faults.MALFORMED, True)
    assert fault.message.startswith(f"{field}: ") and reason in fault.message
    assert fault.places[0].startswith(f"value @ {field}: ")


@pytest.mark.parametrize(
    ("asked", "swap", "percent", "fits"),
    [
        (8 * GIB, True, 0, True),
        (8 * GIB + 1, True, 0, False),
        (12 * GIB, True, 50, True),
        (12 * GIB + 1, True, 50, False),
        (8 * GIB, False, 50, True),
        (8 * GIB + 1, False, 50, False),
    ],
)
def test_a_quota_that_no_device_could_ever_give(asked: int, swap: bool, percent: int, fits: bool) -> None:
    fault = check_quota(request(vram_bytes=asked, swap=swap), 1, 8 * GIB, percent)
    assert (fault is None) is fits
    if fault is not None:
        assert fault.name == faults.QUOTA_EXCEEDED
        assert fault.message.startswith("vram_bytes: REQUIRED_VRAM asks for ") and "device 1 has 8192 MB" in fault.message
        assert ("swapped out" in fault.message) is (percent > 0)


SECOND = 10**9


def test_opens_are_limited_by_key_and_by_tenant_and_sessions_by_tenant() -> None:
    quotas = OpenQuotas(4, keys=True)

    def refused(tenant: str, key: str, sessions: int, now_ns: int) -> tuple[str, int, int, int, bool] | None:
        asked = quotas.refuse(tenant, key, sessions, now_ns)
        if asked is None:
            quotas.opened(tenant, key, now_ns)
            return None
        fault = quota_fault(asked)
        assert asked.who in fault.message
        assert fault.excess is not None and fault.name == faults.QUOTA_REACHED
        return fault.excess.quota, fault.excess.limit, fault.excess.used, fault.excess.retry_after_ms, fault.fatal

    assert [refused("a", "k1", 0, 0) for _ in range(3)] == [None, None, ("key_opens", 2, 2, 1_000, False)], "half of the tenant's"
    assert [refused("a", key, 0, 0) for key in ("k2", "k2", "k3")] == [None, None, ("opens", 4, 4, 500, False)]
    assert refused("b", "k4", 0, 0) is None, "other tenants are not affected"
    assert refused("a", "k3", 0, SECOND // 2) is None and refused("a", "k1", 0, SECOND) is None, "after the time that it names"
    assert refused("a", "k5", 4, 60 * SECOND) == ("sessions", 4, 4, 5_000, True)
    assert refused("a", "k5", 3, 60 * SECOND) is None
    local = OpenQuotas(4, keys=False)
    for _ in range(4):
        assert local.refuse("a", "local", 0, 0) is None
        local.opened("a", "local", 0)
    assert local.refuse("b", "local", 0, 0) is None, "without authentication all clients are one principal"


def test_a_domain_that_asks_without_a_pause_waits_for_its_turn() -> None:
    second, turns = 10**9, DomainTurns()
    turns.ask("hostile", second)
    assert turns.next == "hostile"
    turns.ask("best", 2 * second)
    assert turns.next == "hostile", "it asked first"
    turns.taken("hostile")
    for tenth in range(20, 60):
        turns.ask("hostile", tenth * second // 10)
        turns.ask("best", tenth * second // 10)
        assert turns.next == "best"
    turns.taken("best")
    assert turns.next == "hostile"


def test_a_domain_that_asks_no_more_has_no_turn() -> None:
    second, turns = 10**9, DomainTurns()
    turns.ask("lost", second)
    turns.ask("best", 3 * second)
    assert turns.next == "lost"
    turns.ask("best", 7 * second)
    assert turns.next == "best"
