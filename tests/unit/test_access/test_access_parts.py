"""Keys, tokens, limits, modes and headers: the parts of access that need no service."""

from __future__ import annotations

import contextlib
import ipaddress
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus_schemas.quotas import Excess, Rate
from services.kit.access.access import Access, authentication_on, hosts_of
from services.kit.access.checker import FailureLimits
from services.kit.access.errors import CrossSite, Forbidden, Unauthenticated
from services.kit.access.headers import SESSION, address_of, bearer, check_local_host, check_same_site, is_secure, read_cookie
from services.kit.access.rules import ROLES, SCOPES, Action, Identity, allowed, check_grant, check_over, may_at_all, rights
from services.kit.access.tokens import (
    SESSION_S,
    Token,
    is_key_id,
    make_key,
    make_login_flow,
    parse_key,
    read_login_flow,
    read_token,
    write_login_flow,
    write_token,
)
from services.kit.addresses import address_group
from services.kit.errors import SettingError
from tests.support.access_table import MAY, ONLY_CLUSTER, SCOPED
from wooly.shared.tls import is_loopback

SECRET = b"s" * 32
S = 1_000_000_000


# -- rules -------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ROLES)
def test_rights_are_those_of_the_hand_written_table(role: str) -> None:
    whole = {action for action, roles in MAY.items() if role in roles}
    assert rights(role) == whole
    assert rights(role, tenant="acme") == whole - ONLY_CLUSTER
    for scope in SCOPES:
        assert rights(role, (scope,)) == whole & SCOPED[scope]
    assert rights(role, SCOPES) == whole and rights(role, ("no such scope",)) == frozenset()


@pytest.mark.parametrize("action", sorted(MAY))
def test_no_identity_reaches_into_another_tenant(action: Any) -> None:
    for role in ROLES:
        who = Identity("x", "acme", role)
        assert not allowed(who, action, "zebra") and not allowed(who, action, "") and not allowed(who, action, "ACME")
    assert not allowed(Identity("", "", ""), action) and not allowed(Identity("x", "", "Admin"), action)


@given(st.sampled_from(ROLES), st.sets(st.sampled_from(SCOPES)), st.sampled_from(["", "acme"]), st.sampled_from(ROLES),
       st.sets(st.sampled_from(SCOPES)), st.sampled_from(["", "acme", "zebra"]))  # fmt: skip
def test_what_is_granted_is_no_more_than_the_granter_has(
    role: str, scopes: set[str], tenant: str, given_role: str, given_scopes: set[str], given_tenant: str
) -> None:
    who, made = Identity("x", tenant, role, tuple(scopes)), Identity("y", given_tenant, given_role, tuple(given_scopes))
    try:
        check_grant(who, given_role, given_tenant, given_scopes)
    except Forbidden:
        return
    for action in MAY:
        for of in (None, "", "acme", "zebra"):
            assert not allowed(made, action, of) or allowed(who, action, of), (action, of)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("who", "role", "tenant", "scopes", "field"),
    [
        (Identity("root", "", "admin"), "admin", "", (), None), (Identity("root", "", "admin"), "member", "acme", ("read",), None),
        (Identity("op", "", "operator"), "viewer", "acme", (), None), (Identity("op", "", "operator"), "admin", "", (), "role"),
        (Identity("anna", "acme", "member"), "member", "acme", (), None),
        (Identity("anna", "acme", "member"), "viewer", "shop", (), "tenant"),
        (Identity("anna", "acme", "member", ("read",)), "member", "acme", ("submit",), "scopes"),
        (Identity("anna", "acme", "admin"), "service", "acme", (), "role"),
    ],
)  # fmt: skip
def test_what_is_given_is_what_the_giver_has(who: Identity, role: str, tenant: str, scopes: tuple[str, ...], field: str | None) -> None:
    if field is None:
        check_grant(who, role, tenant, scopes)
        return
    with pytest.raises(Forbidden) as refused:
        check_grant(who, role, tenant, scopes)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("who", "role", "tenant", "may"),
    [
        (Identity("root", "", "admin"), "admin", "acme", True),
        (Identity("ops", "", "operator"), "member", "acme", True),
        (Identity("ops", "", "operator"), "admin", "acme", False),
        (Identity("boss", "acme", "admin"), "member", "acme", True),
        (Identity("boss", "acme", "admin"), "member", "other", False),
        (Identity("boss", "acme", "admin"), "member", "", False),
        (Identity("anna", "acme", "member", ("read",)), "member", "acme", False),
    ],
)
def test_only_identities_without_further_rights_are_changed(who: Identity, role: str, tenant: str, may: bool) -> None:
    with contextlib.nullcontext() if may else pytest.raises(Forbidden, match=f"{who.name} may not change a user or key with more rights"):
        check_over(who, role, tenant)


def test_what_may_be_done_to_anything_at_all() -> None:
    anna = Identity("anna", "acme", "viewer")
    assert may_at_all(anna, "task.read") and may_at_all(anna, "node.read")
    assert not may_at_all(anna, "task.submit") and not may_at_all(anna, "config.write")
    assert may_at_all(Identity("op", "", "operator"), "config.write")
    of_no_tenant: tuple[Action, ...] = ("cluster.read", "node.read", "group.read", "config.read")
    assert all(allowed(anna, action) for action in of_no_tenant)
    assert not allowed(anna, "task.read")


# -- keys and tokens ---------------------------------------------------------------------------------------------------------------------


def test_a_key_is_read_back_and_nothing_else_is() -> None:
    key = make_key()
    assert parse_key(key.text) == key and key.secret not in repr(key)
    text = key.text
    for wrong in ("", text[:-1], text + "a", text.upper(), text.replace("_", "-"), " " + text, text + "\n", text.replace("wk_", "wt_"),
                  text[:-1] + "1", text[:-1] + "ａ", "wk_" + "a" * 16 + "_" + "a" * 51 + "\u0661", text * 1000):  # fmt: skip
        assert parse_key(wrong) is None, wrong


def test_an_id_of_a_key_is_told_from_other_names() -> None:
    assert is_key_id("a2" * 8)
    assert not any(map(is_key_id, ("a" * 15, "a" * 17, "A" * 16, "a1" * 8, "\N{KELVIN SIGN}" * 16, "")))


def test_a_login_is_read_back_in_its_time_under_a_secret_that_is_known() -> None:
    old, new = b"o" * 32, b"n" * 32
    flow = make_login_flow("/tasks", 1_000)
    text = write_login_flow(old, flow)
    assert read_login_flow(old, text, 1_000) == flow and flow.target == "/tasks"
    assert read_login_flow(old, text, flow.expires_s - 1) == flow and read_login_flow(old, text, flow.expires_s) is None
    assert read_login_flow(new, text, 1_000) is None and read_token(old, text, "session", 1_000) is None
    now = make_login_flow("/", int(time.time()))
    rotated = Access(on=True, secrets=lambda: (new, old))
    assert rotated.read_login_flow(write_login_flow(old, now)) == now
    assert rotated.read_login_flow(rotated.write_login_flow(now)) == now
    assert rotated.read_login_flow("") is None


def token(kind: Any = "session", expires_s: int = 1_000 + SESSION_S) -> Token:
    return Token(kind, "id", "anna", "", "stamp", 1_000, 1_000, expires_s)


def test_a_token_is_good_in_its_time_for_its_kind_under_its_secret() -> None:
    text = write_token(SECRET, token())
    assert read_token(SECRET, text, 1_000, "session") == token()
    assert read_token(SECRET, text, 1_000 + SESSION_S, "session") is None
    assert read_token(SECRET, text, 900, "session") is None
    assert read_token(SECRET, text, 1_000, "relay") is None
    assert read_token(b"t" * 32, text, 1_000, "session") is None


@given(st.data())
def test_no_change_of_a_token_opens_anything(data: st.DataObject) -> None:
    text = write_token(SECRET, token())
    at = data.draw(st.integers(0, len(text) - 1))
    letter = data.draw(st.characters())
    for changed in (text[:at] + letter + text[at + 1 :], text[:at] + text[at + 1 :], text[:at] + letter + text[at:]):
        assert changed == text or read_token(SECRET, changed, 1_000, "session") is None


@given(st.text(max_size=200))
def test_no_text_is_a_token(text: str) -> None:
    assert read_token(SECRET, text, 1_000, "session") is None and read_token(SECRET, "wt_" + text, 1_000, "session") is None


# -- limits ------------------------------------------------------------------------------------------------------------------------------


def test_failures_use_up_the_burst_and_come_back_with_time() -> None:
    limits = FailureLimits(address=Rate(1, 3, 10 * S), name=Rate(1, 100))
    assert [limits.take(f"n{index}", "1.2.3.4", 0) for index in range(4)] == [None] * 3 + [Excess("address_failed_logins", 3, 3, 10_000)]
    assert limits.take("n", "1.2.3.5", 0) is None
    assert limits.take("n", "1.2.3.4", 9 * S) == Excess("address_failed_logins", 3, 3, 1_000)
    assert limits.take("n", "1.2.3.4", 10 * S) is None
    assert limits.take("n", "1.2.3.4", 10 * S) == Excess("address_failed_logins", 3, 3, 10_000)


def test_a_name_is_limited_wherever_it_is_tried_from_but_where_it_was_good_before() -> None:
    limits = FailureLimits(address=Rate(1, 100), name=Rate(1, 2, 10 * S))
    assert limits.take("anna", "10.0.0.1", 0) is None
    limits.good("anna", "10.0.0.1")
    assert [limits.take("anna", f"9.9.9.{index}", 0) for index in range(3)] == [None, None, Excess("failed_logins", 2, 2, 10_000)]
    assert limits.take("anna", "10.0.0.1", 0) is None
    assert limits.take("bert", "9.9.9.9", 0) is None


def test_a_name_made_of_another_name_and_an_address_is_limited_for_itself() -> None:
    limits = FailureLimits(address=Rate(1, 100), name=Rate(1, 2, 10 * S))
    limits.good("anna", "10.0.0.1")
    for name in ("anna 10.0.0.1", "10.0.0.1 anna", " anna"):
        assert [limits.take(name, f"9.9.9.{index}", 0) for index in range(2)] == [None, None]
    assert limits.take("anna", "10.0.0.1", 0) is None


def test_good_tries_cost_nothing() -> None:
    limits = FailureLimits(address=Rate(1, 2, 10 * S), name=Rate(1, 2, 10 * S))
    for _ in range(50):
        assert limits.take("anna", "1.2.3.4", 0) is None
        limits.good("anna", "1.2.3.4")


def test_memory_is_bounded() -> None:
    limits = FailureLimits()
    for index in range(30_000):
        limits.take(f"n{index}", str(ipaddress.IPv4Address(index)), 0)
        limits.good(f"n{index}", str(ipaddress.IPv4Address(index)))
    kept = [len(limits._addresses._full_ns), len(limits._names._full_ns), len(limits._known)]
    assert max(kept) <= 20_000


@pytest.mark.parametrize(
    ("address", "group"),
    [
        ("1.2.3.4", "1.2.3.4"),
        ("::ffff:1.2.3.4", "1.2.3.4"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8::ffff:ffff:ffff:ffff", "2001:db8::/64"),
        ("2001:db8:0:1::1", "2001:db8:0:1::/64"),
        ("", ""),
        ("x" * 5_000, "x" * 64),
    ],
)
def test_addresses_of_one_network_count_as_one(address: str, group: str) -> None:
    assert address_group(address) == group


# -- mode --------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "hosts", "on"),
    [
        ("", ["127.0.0.1", "localhost"], False),
        ("", ["127.0.0.1", "::1", "[::1]", "127.9.9.9"], False),
        ("on", ["127.0.0.1"], True),
        ("off", ["127.0.0.1"], False),
        ("", ["0.0.0.0"], True),
        ("", ["127.0.0.1", "bus"], True),
        ("ON ", ["10.0.0.1"], True),
        ("", ["localhost.example.org"], True),
        ("", [""], True),
    ],
)
def test_authentication_is_off_on_loopback_only(said: str, hosts: list[str], on: bool) -> None:
    assert authentication_on({"WOOLY_AUTH": said}, hosts) is on


@pytest.mark.parametrize(
    ("said", "host", "says"), [("off", "0.0.0.0", "WOOLY_AUTH=on"), ("off", "::", "127.0.0.1"), ("no", "::1", "on or off")]
)
def test_switching_it_off_elsewhere_is_refused(said: str, host: str, says: str) -> None:
    with pytest.raises(SettingError, match=says):
        authentication_on({"WOOLY_AUTH": said}, [host])


def test_hosts_of_a_list_of_urls() -> None:
    assert hosts_of("nats://a:4222, tls://u:p@b ,127.0.0.1:1,nats://[::1]:4222") == ["a", "b", "127.0.0.1", "::1"]
    assert is_loopback("[::1]") and not is_loopback("127.0.0.1.example.org") and not is_loopback("2130706433")


# -- headers -----------------------------------------------------------------------------------------------------------------------------


def scope(*headers: tuple[str, str], client: str = "10.0.0.1", scheme: str = "http") -> dict[str, Any]:
    return {"headers": [(name.encode(), value.encode("latin-1")) for name, value in headers], "client": (client, 1), "scheme": scheme}


PROXIES = [ipaddress.ip_network("10.0.0.0/8")]


@pytest.mark.parametrize(
    ("client", "forwarded", "address"),
    [
        ("1.1.1.1", ["9.9.9.9"], "1.1.1.1"),
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", ["9.9.9.9"], "9.9.9.9"),
        ("10.0.0.1", ["6.6.6.6, 9.9.9.9"], "9.9.9.9"),
        ("10.0.0.1", ["6.6.6.6, 9.9.9.9, 10.0.0.2"], "9.9.9.9"),
        ("10.0.0.1", ["6.6.6.6", "9.9.9.9"], "9.9.9.9"),
        ("10.0.0.1", ["6.6.6.6, junk"], "10.0.0.1"),
        ("10.0.0.1", ["6.6.6.6, 9.9.9.9:80"], "10.0.0.1"),
    ],
)
def test_only_trusted_proxies_say_where_a_request_is_from(client: str, forwarded: list[str], address: str) -> None:
    asked = scope(*(("x-forwarded-for", value) for value in forwarded), client=client)
    assert address_of(asked, PROXIES) == address
    assert address_of(asked, []) == client


def test_only_trusted_proxies_say_that_there_is_tls() -> None:
    said = ("x-forwarded-proto", "https")
    assert is_secure(scope(said), PROXIES) and is_secure(scope(scheme="https"), [])
    assert not is_secure(scope(said), []) and not is_secure(scope(said, client="1.1.1.1"), PROXIES) and not is_secure(scope(), PROXIES)


def test_one_bearer_token_and_nothing_else() -> None:
    assert bearer(scope()) == "" and bearer(scope(("authorization", "bearer  x "))) == "x"
    for headers in ([("authorization", "Basic eDp5")], [("authorization", "Bearer")], [("authorization", "")],
                    [("authorization", "Bearer a"), ("authorization", "Bearer b")]):  # fmt: skip
        with pytest.raises(Unauthenticated):
            bearer(scope(*headers))


def test_two_session_cookies_are_none() -> None:
    assert read_cookie(scope(("cookie", "a=b; wooly_session=x")), SESSION, False) == "x"
    assert read_cookie(scope(("cookie", "wooly_session=x; wooly_session=y")), SESSION, False) == ""
    assert read_cookie(scope(("cookie", "wooly_session=x"), ("cookie", "wooly_session=y")), SESSION, False) == ""
    assert read_cookie(scope(("cookie", "wooly_session=x")), SESSION, True) == ""
    assert read_cookie(scope(("cookie", "__Host-wooly_session=x; wooly_session=planted")), SESSION, True) == "x"


@pytest.mark.parametrize(
    ("headers", "ours"),
    [
        ([], True),
        ([("sec-fetch-site", "same-origin")], True),
        ([("sec-fetch-site", "none")], True),
        ([("sec-fetch-site", "cross-site")], False),
        ([("sec-fetch-site", "same-site")], False),
        ([("sec-fetch-site", "same-origin"), ("sec-fetch-site", "cross-site")], False),
        ([("origin", "http://wooly:8080"), ("host", "wooly:8080")], True),
        ([("origin", "https://WOOLY:8080"), ("host", "wooly:8080")], True),
        ([("origin", "http://evil"), ("host", "wooly:8080")], False),
        ([("origin", "http://wooly:8080.evil"), ("host", "wooly:8080")], False),
        ([("origin", "null"), ("host", "wooly:8080")], False),
        ([("origin", "http://["), ("host", "wooly:8080")], False),
        ([("origin", "http://wooly:8080")], False),
        ([("origin", "http://wooly:8080"), ("host", "wooly:8080"), ("host", "evil")], False),
    ],
)
def test_pages_of_other_sites_are_told_apart(headers: list[tuple[str, str]], ours: bool) -> None:
    if ours:
        check_same_site(scope(*headers))
    else:
        with pytest.raises(CrossSite):
            check_same_site(scope(*headers))


@pytest.mark.parametrize(
    ("host", "here"),
    [("127.0.0.1:8080", True), ("localhost", True), ("LOCALHOST:1", True), ("[::1]:8080", True), ("evil.example", False),
     ("127.0.0.1.evil.example", False), ("localhost.evil.example:8080", False), ("0.0.0.0:8080", False), ("", False), ("[", False)],
)  # fmt: skip
def test_without_authentication_only_names_of_this_machine_are_answered(host: str, here: bool) -> None:
    if here:
        check_local_host(scope(("host", host)))
    else:
        with pytest.raises(CrossSite):
            check_local_host(scope(("host", host)))
