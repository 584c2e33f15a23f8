"""Trust domains: a tenant's own unless declared, and a declaration that is not clear is an error."""

from __future__ import annotations

import pytest

from services.kit.errors import SettingError
from services.server.settings import read_trust


def test_tenants_share_with_themselves_alone_unless_declared() -> None:
    trust = read_trust("")
    assert trust.domain("a") == trust.domain("a")
    assert len({trust.domain(tenant) for tenant in ("a", "b", "default", "tenant")}) == 4


def test_declared_tenants_have_one_domain() -> None:
    trust = read_trust(" a, b;c,d,c ;")
    assert trust.domain("a") == trust.domain("b")
    assert trust.domain("c") == trust.domain("d")
    assert len({trust.domain(tenant) for tenant in ("a", "c", "e")}) == 3


def test_who_joins_a_group_finds_nothing_of_the_old_one() -> None:
    assert read_trust("a,b").domain("a") == read_trust("b,a").domain("a")
    assert read_trust("a,b").domain("a") != read_trust("a,b,c").domain("a")
    assert read_trust("a,b").domain("a") != read_trust("").domain("a")


@pytest.mark.parametrize(
    ("text", "reason"),
    [("a", "one tenant"), ("a,a", "one tenant"), ("a,b;b,c", "b is in two groups"), ("a,b c", "'b c'"), ("a,b;c.d,e", "'c.d'")],
)
def test_an_unclear_declaration_is_refused(text: str, reason: str) -> None:
    with pytest.raises(SettingError, match="WOOLY_DEDUP_TRUST=") as caught:
        read_trust(text)
    assert reason in str(caught.value)
