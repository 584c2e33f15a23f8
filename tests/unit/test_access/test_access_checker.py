"""Checking secrets: what runs argon2 and what does not, counted; and who is let in at which moment."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from bus_schemas.events import KeyIssued, KeyRevoked, UserChanged
from services.kit.access import AccessView, Identity
from services.kit.access.access import Access
from services.kit.access.checker import Hasher
from services.kit.access.errors import Unauthenticated, Unsure
from services.kit.access.tokens import KeyText, make_key
from services.kit.errors import QuotaReached

SECRET = b"s" * 32
PASSWORD = "correct horse battery"


class House:
    """An access over a view that the test writes, with the runs of argon2 counted."""

    def __init__(self) -> None:
        self.view = AccessView()
        self.heard = True
        self.access = Access(on=True, view=lambda: self.view, follows_log=lambda: self.heard, secrets=lambda: [SECRET])
        self.runs: list[str] = []
        self.checking = asyncio.Event()
        matches: Callable[[str, str], Coroutine[Any, Any, bool]] = self.access.checker.hasher.matches

        async def counted(phc: str, secret: str) -> bool:
            self.runs.append(phc.rpartition("$")[0].rpartition("$")[0])  # the parameters: what it costs
            self.checking.set()
            return await matches(phc, secret)

        self.access.checker.hasher.matches = counted  # type: ignore[method-assign]

    def tell(self, event: Any) -> None:
        self.view.apply(self.view.position + 1, event)

    async def issue(self, **more: Any) -> KeyText:
        key = make_key()
        phc = await self.access.checker.hasher.hash_secret(key.secret)
        self.tell(KeyIssued(1, key.id, "acme", "", "member", phc, **more))
        return key

    async def add(self, name: str) -> None:
        self.tell(UserChanged(1, name, "acme", "member", await self.access.checker.hash_password(PASSWORD)))


def run(work: Callable[[House], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        house = House()
        try:
            await work(house)
        finally:
            house.access.close()

    asyncio.run(whole())


async def refused(work: Coroutine[Any, Any, Any], error: type[Exception] = Unauthenticated) -> str:
    with pytest.raises(error) as found:
        await work
    return str(found.value)


def test_argon2_runs_at_a_keys_first_use_only_and_revocation_counts_at_once() -> None:
    async def work(house: House) -> None:
        key = await house.issue()
        who = await asyncio.gather(*(house.access.identity_of_text(key.text, "1.1.1.1") for _ in range(300)))
        assert {found.key for found in who if found} == {key.id} and len(house.runs) <= 2  # there are two threads
        house.runs.clear()
        house.tell(KeyRevoked(2, key.id))
        for _ in range(50):
            await refused(house.access.identity_of_text(key.text, "1.1.1.1"))
        assert not house.runs

    run(work)


def test_many_new_keys_at_once_from_one_address_are_all_let_in() -> None:
    async def work(house: House) -> None:
        keys = [await house.issue() for _ in range(60)]
        who = await asyncio.gather(*(house.access.identity_of_text(key.text, "1.1.1.1") for key in keys))
        assert [found.key for found in who if found] == [key.id for key in keys]

    run(work)


def test_a_wrong_secret_costs_once_known_id_or_not() -> None:
    async def work(house: House) -> None:
        key = await house.issue()
        known, unknown = KeyText(key.id, make_key().secret), make_key()
        texts = {await refused(house.access.identity_of_text(wrong.text, "1.1.1.1")) for wrong in (known, unknown) for _ in range(5)}
        assert len(texts) == 1 and len(house.runs) == 2 and len(set(house.runs)) == 1

    run(work)


def test_a_key_that_came_before_its_fact_is_let_in_after_it() -> None:
    async def work(house: House) -> None:
        key = make_key()
        await refused(house.access.identity_of_text(key.text, "1.1.1.1"))
        house.tell(KeyIssued(1, key.id, "acme", "", "member", await house.access.checker.hasher.hash_secret(key.secret)))
        found = await house.access.identity_of_text(key.text, "1.1.1.1")
        assert found is not None and found.key == key.id

    run(work)


def test_an_unknown_user_costs_what_a_known_one_does() -> None:
    async def work(house: House) -> None:
        await house.add("anna")
        house.tell(UserChanged(1, "bert", "acme", "member"))
        house.tell(UserChanged(1, "cleo", "acme", "member", house.view.users["anna"].fact.password_hash, disabled=True))
        texts = set()
        for name in ("anna", "bert", "cleo", "nobody", "\u0430nna", "", "x" * 5_000):
            password = PASSWORD if name == "cleo" else "wrong"
            texts.add(await refused(house.access.checker.password(name, password, f"1.1.1.{len(house.runs)}")))
        assert len(texts) == 1 and len(house.runs) == 7 and len(set(house.runs)) == 1
        assert (await house.access.checker.password("anna", PASSWORD, "2.2.2.2")).name == "anna"

    run(work)


def test_a_password_that_changes_while_it_is_checked_opens_nothing() -> None:
    async def work(house: House) -> None:
        await house.add("anna")
        checking = asyncio.create_task(house.access.checker.password("anna", PASSWORD, "1.1.1.1"))
        await house.checking.wait()
        house.tell(UserChanged(2, "anna", "acme", "member", "another"))
        await refused(checking)

    run(work)


def test_authentication_fails_while_the_log_cannot_be_heard() -> None:
    async def work(house: House) -> None:
        key = await house.issue()
        who = await house.access.identity_of_text(key.text)
        assert who is not None
        session = house.access.write(house.access.begin_session(who))
        house.heard = False
        await refused(house.access.identity_of_text(key.text), Unsure)
        await refused(house.access.checker.password("anna", PASSWORD, ""), Unsure)
        with pytest.raises(Unsure):
            house.access.read(session, "session")
        house.heard = True
        assert house.access.read(session, "session") is not None and house.access.read(session, "relay") is None

    run(work)


def test_a_stream_ends_with_what_it_was_opened_with() -> None:
    async def work(house: House) -> None:
        await house.add("anna")
        anna = await house.access.checker.password("anna", PASSWORD, "")
        key = await house.issue()
        program = await house.access.identity_of_text(key.text)
        assert program is not None
        token = house.access.begin_session(anna)
        assert house.access.is_current(anna, token) and house.access.is_current(anna, None) and house.access.is_current(program, None)
        house.tell(UserChanged(2, "anna", "acme", "member", await house.access.checker.hash_password(f"another {PASSWORD}")))
        assert not house.access.is_current(anna, token), "a new password ends the sessions of the old one"
        assert house.access.is_current(anna, None)
        begun_with_it = house.access.begin_session(program)
        house.tell(KeyRevoked(3, key.id))
        assert not house.access.is_current(program, None) and not house.access.is_current(program, begun_with_it)

    run(work)


def test_a_session_is_renewed_within_its_life_only() -> None:
    async def work(house: House) -> None:
        key = await house.issue()
        who = await house.access.identity_of_text(key.text)
        assert who is not None
        token = house.access.begin_session(who)
        assert house.access.renewed(token).expires_s >= token.expires_s and house.access.renewed(token).id == token.id
        old = type(token)("session", "x", "", key.id, "", int(time.time()) - 12 * 3600 - 5, int(time.time()), int(time.time()) + 60)
        assert house.access.renewed(old).expires_s <= time.time()
        assert house.access.read(house.access.write(house.access.renewed(old)), "session") is None

    run(work)


def test_sessions_do_not_fill_the_log() -> None:
    async def work(house: House) -> None:
        who = Identity("anna", "acme", "member")
        for _ in range(30):
            house.access.begin_session(who)
        with pytest.raises(QuotaReached) as error:
            house.access.begin_session(who)
        assert 1 <= error.value.wait_s <= 10
        house.access.begin_session(Identity("bert", "acme", "member"))

    run(work)


def test_too_many_at_once_are_refused() -> None:
    async def work() -> None:
        hasher = Hasher()
        held = [hasher.turn() for _ in range(2)]
        for turn in held:
            await turn.__aenter__()
        waiting = [asyncio.create_task(hasher.hash_secret("x")) for _ in range(513)]
        done, pending = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert len(done) == 1 and isinstance(done.pop().exception(), QuotaReached)
        for turn in held:
            await turn.__aexit__(None, None, None)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        hasher.close()

    asyncio.run(work())


def test_passwords_up_to_the_longest_are_hashed_and_longer_ones_are_not() -> None:
    async def work(house: House) -> None:
        await house.add("anna")
        checker = house.access.checker
        for length, runs in ((256, 1), (257, 0)):
            house.runs.clear()
            assert await refused(checker.password("anna", "x" * length, "1.1.1.1")) == "user or password is not valid"
            assert len(house.runs) == runs, length

    run(work)


def test_failures_are_written_to_the_log_without_the_secret(capsys: pytest.CaptureFixture[str]) -> None:
    async def work(house: House) -> None:
        key = await house.issue()
        await house.add("anna")
        wrong = make_key()
        await refused(house.access.identity_of_key(key.id, wrong.secret, "2.2.2.2"))
        await refused(house.access.checker.password("anna", "not the password", "3.3.3.3"))
        written = "".join(capsys.readouterr())
        assert all(part in written for part in ("a key was wrong", key.id, "2.2.2.2", "a login failed", "anna", "3.3.3.3"))
        assert wrong.secret not in written and "not the password" not in written

    run(work)


def test_failed_logins_do_not_keep_an_address_from_the_identity_provider() -> None:
    async def work(house: House) -> None:
        for index in range(10):
            await refused(house.access.checker.password("oidc 192.0.2.1", "wrong", f"198.51.100.{index}"))
        with house.access.checker.attempt("oidc", "192.0.2.1"):
            pass

    run(work)


def test_a_login_that_another_party_refuses_is_counted_for_the_audit() -> None:
    async def work(house: House) -> None:
        with house.access.checker.attempt("oidc", "192.0.2.1"):
            pass
        with pytest.raises(Unauthenticated), house.access.checker.attempt("oidc", "192.0.2.1"):
            raise Unauthenticated("not you")
        ((refusal, count),) = house.access.checker.refusals.take().items()
        assert (refusal.action, refusal.reason, refusal.source, count) == ("session.fail", "refused oidc login", "192.0.2.1", 1)

    run(work)
