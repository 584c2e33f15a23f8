"""The projection: the principal of a key, in every state of the key and of its user."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import pytest

from bus_schemas.events import ActionTaken, Event, KeyIssued, KeyRevoked, TenantChanged, UserChanged
from services.kit.access import AccessView, Identity

KEY: Final = "a" * 16
NOW: Final = 1_000


def folded(*events: Event) -> AccessView:
    view = AccessView()
    for position, event in enumerate(events, start=1):
        view.apply(position, event)
    return view


def issued(role: str = "member", tenant: str = "acme", user: str = "", **more: object) -> KeyIssued:
    return KeyIssued(1, KEY, tenant, user, role, "hash", **more)  # type: ignore[arg-type]


def user(role: str = "member", tenant: str = "acme", password: str = "", disabled: bool = False) -> UserChanged:
    return UserChanged(1, "anna", tenant, role, password, disabled=disabled)


@pytest.mark.parametrize(
    ("events", "why"),
    [
        ((), "unknown"),
        ((issued(),), ""),
        ((issued(), KeyRevoked(2, KEY)), "revoked"),
        ((issued(), KeyRevoked(2, KEY), issued("admin")), "revoked"),
        ((KeyRevoked(2, KEY), issued()), ""),
        ((issued(expires_ns=NOW),), "expired"),
        ((issued(expires_ns=NOW + 1),), ""),
        ((issued(), TenantChanged(2, "acme", disabled=True)), "disabled"),
        ((issued(), TenantChanged(2, "acme", disabled=True), TenantChanged(3, "acme")), ""),
        ((issued(), TenantChanged(2, "ACME", disabled=True)), ""),
        ((issued(user="anna"),), "disabled"),
        ((user(), issued(user="anna")), ""),
        ((user(), issued(user="anna"), user(disabled=True)), "disabled"),
        ((user(), issued(user="anna"), user(tenant="other")), "disabled"),
        ((user(), issued(user="anna"), user(tenant="")), ""),
        ((user("admin", ""), TenantChanged(2, "", disabled=True), issued("admin", "", "anna")), "disabled"),
    ],
)
def test_why_a_key_opens_nothing(events: tuple[Event, ...], why: str) -> None:
    view = folded(*events)
    assert view.why_not(KEY, NOW) == why
    assert (view.principal(KEY, NOW) is None) == bool(why)


@pytest.mark.parametrize(
    ("of_key", "of_user", "is_now"),
    [
        ("admin", "admin", "admin"),
        ("admin", "viewer", "viewer"),
        ("operator", "member", "member"),
        ("viewer", "admin", "viewer"),
        ("member", "operator", "member"),
    ],
)
def test_a_key_is_never_more_than_its_user_is_today(of_key: str, of_user: str, is_now: str) -> None:
    view = folded(user("admin"), issued(of_key, user="anna", scopes=("read",)), user(of_user))
    assert view.principal(KEY, NOW) == Identity("anna", "acme", is_now, ("read",), KEY)


def test_ways_in_count_only_what_lasts() -> None:
    assert folded(issued("admin", "")).ways_in(NOW) == 1
    for event in (
        issued("admin"),
        issued("operator", ""),
        issued("service", ""),
        issued("admin", "", expires_ns=NOW + 9),
        issued("admin", "", scopes=("read",)),
        user("admin", ""),
        user("admin", "acme", "hash"),
        user("admin", "", "hash", disabled=True),
    ):
        assert folded(event).ways_in(NOW) == 0, event
    assert folded(user("admin", "", "hash")).ways_in(NOW) == 1
    assert folded(user("admin", "", "hash"), issued("admin", "", "anna")).ways_in(NOW) == 2


def test_a_session_ends_and_is_forgotten_a_day_later() -> None:
    day_ns = 24 * 3_600 * 10**9
    view = folded(ActionTaken(1, "anna", "", "session.end", "s1"))
    assert view.session_ended("s1") and not view.session_ended("s2")
    view.apply(2, ActionTaken(day_ns + 2, "anna", "", "session.end", "s2"))
    assert view.session_ended("s2") and not view.session_ended("s1")


def test_the_stamp_changes_with_the_password_only() -> None:
    old, renamed, changed = folded(user(password="one")), folded(user("viewer", password="one")), folded(user(password="two"))
    assert old.users["anna"].stamp == renamed.users["anna"].stamp != changed.users["anna"].stamp


def test_personal_fields_are_read_again_for_their_owner_alone() -> None:
    """Their keys come late, or are destroyed: tenants, users, and keys by their tenant or user."""
    shown: dict[str, str] = {}

    def opened(event: Any) -> Any:
        owner = f"user.{event.user}" if getattr(event, "user", "") else f"tenant.{event.tenant}"
        return msgspec.structs.replace(event, title=shown.get(owner, ""))

    view = AccessView(opened)
    events = (
        TenantChanged(1, "acme", "sealed"), TenantChanged(1, "other", "sealed"), UserChanged(1, "anna", "acme", "member", "", "sealed"),
        UserChanged(1, "bert", "acme", "member", "", "sealed"), KeyIssued(1, KEY, "acme", "", "member", "hash", title="sealed"),
        KeyIssued(1, "b" * 16, "acme", "anna", "member", "hash", title="sealed"), KeyIssued(1, "c" * 16, "other", "", "member", "hash"),
    )  # fmt: skip
    for position, event in enumerate(events, start=1):
        view.apply(position, event)

    def titles() -> tuple[list[str], list[str], list[str]]:
        return tuple([held[name].fact.title for name in sorted(held)] for held in (view.tenants, view.users, view.keys))  # type: ignore[return-value]  # three

    assert titles() == (["", ""], ["", ""], ["", "", ""])
    shown |= {"tenant.acme": "Acme", "tenant.other": "Other", "user.anna": "Anna", "user.bert": "Bert"}
    view.reopen("tenant.acme")
    assert titles() == (["Acme", ""], ["", ""], ["Acme", "Anna", ""])
    view.reopen("user.bert")
    assert titles() == (["Acme", ""], ["", "Bert"], ["Acme", "Anna", ""])
    shown.clear()
    view.reopen("user.anna")
    assert titles() == (["Acme", ""], ["", "Bert"], ["Acme", "", ""]), "of a destroyed key nothing is left"
