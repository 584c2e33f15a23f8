"""One suite, every configuration store: what holds for the bucket on the bus holds for etcd."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractAsyncContextManager

import pytest

from services.controller.store import Change, ConfigStore, LeaseLost, StoreConflict, StoreUnavailable
from services.controller.store.etcd import EtcdStore
from services.controller.store.jetstream import JetStreamStore
from services.kit.bus import connect
from services.kit.errors import SettingError
from services.kit.keyring import Keyring
from services.kit.nats_server import NatsServer
from tests.support.etcd import Etcd, etcd_binary

Opener = Callable[[], AbstractAsyncContextManager[ConfigStore]]
_WAIT_S = 15.0


@pytest.fixture(scope="module")
def nats_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = NatsServer(tmp_path_factory.mktemp("nats"))
    server.start()
    yield server.url
    server.stop()


@pytest.fixture(scope="module")
def keyring(tmp_path_factory: pytest.TempPathFactory) -> Keyring:
    return Keyring.make(tmp_path_factory.mktemp("keyring"), dict.fromkeys(("bus", "controller", "billing", "etcd"), ("127.0.0.1",)), [])


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory, keyring: Keyring) -> Iterator[Etcd | str]:
    """A running etcd that requires certificates, or why there is none."""
    binary, why_not = etcd_binary()
    if not binary:
        yield why_not
        return
    with Etcd(binary, tmp_path_factory.mktemp("etcd"), keyring.folder / "etcd") as server:
        yield server


@pytest.fixture(params=["jetstream", "etcd"])
def opener(request: pytest.FixtureRequest, nats_url: str, keyring: Keyring) -> Opener:
    """Opens a connection to the store; its keys are shared by all tests, so each test uses names of its own."""
    if request.param == "jetstream":
        return lambda: _jetstream(nats_url)
    server = request.getfixturevalue("etcd")
    if isinstance(server, str):
        pytest.skip(f"etcd is not available: {server}")
    return lambda: _etcd(server.url, keyring.environment("controller"))


@contextlib.asynccontextmanager
async def _jetstream(url: str) -> AsyncIterator[ConfigStore]:
    bus = await connect(url, name="test")
    store = JetStreamStore(bus, "conformance")
    await store.open("conformance")
    yield store
    await store.close()
    await bus.close()


@contextlib.asynccontextmanager
async def _etcd(url: str, environment: Mapping[str, str]) -> AsyncIterator[ConfigStore]:
    store = EtcdStore(url, environment)
    await store.open()
    yield store
    await store.close()


def with_store(opener: Opener, body: Callable[[ConfigStore], Coroutine[None, None, None]]) -> None:
    async def run() -> None:
        async with opener() as store, asyncio.timeout(60):
            await body(store)

    asyncio.run(run())


async def take(changes: AsyncIterator[Change], count: int) -> list[Change]:
    async with asyncio.timeout(_WAIT_S):
        return [await anext(changes) for _ in range(count)]


def test_what_is_put_is_got(opener: Opener) -> None:
    async def body(store: ConfigStore) -> None:
        assert await store.get("put/a") is None
        first = await store.put("put/a", b"1")
        second = await store.put("put/a", b"\x00\xff")
        entry = await store.get("put/a")
        assert entry is not None
        assert (entry.key, entry.value, entry.revision) == ("put/a", b"\x00\xff", second)
        assert second > first

    with_store(opener, body)


def test_entries_are_those_under_the_prefix_by_key(opener: Opener) -> None:
    async def body(store: ConfigStore) -> None:
        for key in ("list/b", "list/a", "list/c/d", "listing"):
            await store.put(key, key.encode())
        await store.delete("list/b")
        assert [(entry.key, entry.value) for entry in await store.entries("list/")] == [("list/a", b"list/a"), ("list/c/d", b"list/c/d")]
        assert await store.entries("nothing/") == []

    with_store(opener, body)


def test_cas_takes_only_the_last_revision(opener: Opener) -> None:
    async def body(store: ConfigStore) -> None:
        first = await store.put("cas/a", b"1")
        second = await store.cas("cas/a", b"2", first)
        with pytest.raises(StoreConflict):
            await store.cas("cas/a", b"3", first)
        with pytest.raises(StoreConflict):
            await store.cas("cas/never", b"3", second)
        await store.delete("cas/a")
        with pytest.raises(StoreConflict):
            await store.cas("cas/a", b"3", second)
        assert await store.get("cas/a") is None

    with_store(opener, body)


def test_concurrent_counters_lose_no_increment(opener: Opener) -> None:
    """Two operators change one value at once; each reads, adds, and retries on conflict."""

    async def increment(store: ConfigStore, times: int) -> None:
        for _ in range(times):
            while True:
                entry = await store.get("count/a")
                assert entry is not None
                try:
                    await store.cas("count/a", str(int(entry.value) + 1).encode(), entry.revision)
                    break
                except StoreConflict:
                    continue

    async def body(store: ConfigStore) -> None:
        await store.put("count/a", b"0")
        await asyncio.gather(*(increment(store, 10) for _ in range(4)))
        entry = await store.get("count/a")
        assert entry is not None
        assert entry.value == b"40"

    with_store(opener, body)


def test_create_only_once_until_deleted(opener: Opener) -> None:
    async def body(store: ConfigStore) -> None:
        await store.create("create/a", b"1")
        with pytest.raises(StoreConflict):
            await store.create("create/a", b"2")
        assert await store.delete("create/a") is True
        assert await store.delete("create/a") is False
        await store.create("create/a", b"3")
        entry = await store.get("create/a")
        assert entry is not None
        assert entry.value == b"3"

    with_store(opener, body)


@pytest.mark.parametrize("key", ["", "/", "a//b", "a/", "a.b", "a b", "ключ", "a" * 65, "a/*", "a/>"])
def test_malformed_keys_are_refused_before_they_are_sent(opener: Opener, key: str) -> None:
    async def body(store: ConfigStore) -> None:
        with pytest.raises(ValueError, match="no key"):
            await store.put(key, b"1")
        with pytest.raises(ValueError, match="no key"):
            await store.get(key)
        with pytest.raises(ValueError, match="may not be empty"):
            await store.put("empty/a", b"")

    with_store(opener, body)


def test_a_watch_starts_with_what_is_there_and_misses_nothing(opener: Opener) -> None:
    async def body(store: ConfigStore) -> None:
        first = await store.put("watch/a", b"1")
        await store.put("watch/gone", b"1")
        await store.delete("watch/gone")
        async with store.watch("watch/") as changes:
            assert await take(changes, 1) == [Change("watch/a", b"1", first)]
            second = await store.put("watch/a", b"2")
            await store.put("watched", b"elsewhere")
            third = await store.put("watch/b", b"3")
            await store.delete("watch/a")
            seen = await take(changes, 3)
        assert seen[:2] == [Change("watch/a", b"2", second), Change("watch/b", b"3", third)]
        assert (seen[2].key, seen[2].value) == ("watch/a", None)

    with_store(opener, body)


def test_two_watches_see_every_change_of_a_third_party(opener: Opener) -> None:
    async def body(store: ConfigStore) -> None:
        async with opener() as other, store.watch("pair/") as here, other.watch("pair/x/") as there:
            for number in range(20):
                await store.put(f"pair/x/{number % 3}", str(number).encode())
            values = [[change.value for change in await take(changes, 20)] for changes in (here, there)]
        assert values == [[str(number).encode() for number in range(20)]] * 2

    with_store(opener, body)


def test_keys_of_a_lease_vanish_with_it_and_watchers_see_it(opener: Opener) -> None:
    async def body(store: ConfigStore) -> None:
        async with store.watch("lease/") as changes:
            lease = await store.lease(3)
            await store.create("lease/a", b"1", lease=lease)
            await store.put("lease/b", b"2", lease=lease)
            assert [(change.key, change.value) for change in await take(changes, 2)] == [("lease/a", b"1"), ("lease/b", b"2")]
            gone = await take(changes, 2)
        assert {(change.key, change.value) for change in gone} == {("lease/a", None), ("lease/b", None)}
        assert await store.get("lease/a") is None
        with pytest.raises(LeaseLost):
            await lease.keepalive()
        # The marker an expired key leaves behind must not stand in the way of the next holder.
        await store.create("lease/a", b"3")

    with_store(opener, body)


def test_a_lease_kept_alive_outlives_its_time(opener: Opener) -> None:
    async def body(store: ConfigStore) -> None:
        lease, witness = await store.lease(4), await store.lease(4)
        await store.create("alive/a", b"1", lease=lease)
        await store.create("alive/witness", b"1", lease=witness)
        async with store.watch("alive/w") as changes:
            await take(changes, 1)
            gone = asyncio.create_task(take(changes, 1))
            while not gone.done():  # the witness shows that the time has passed
                await lease.keepalive()
                await asyncio.wait([gone], timeout=0.3)
        entry = await store.get("alive/a")
        assert entry is not None
        assert entry.value == b"1"
        await lease.revoke()
        assert await store.get("alive/a") is None

    with_store(opener, body)


def test_a_lease_that_ran_out_is_lost_although_its_key_has_another_holder(opener: Opener) -> None:
    """A controller stood still for long, and another became leader: the first must learn that it is not the leader any more."""

    async def body(store: ConfigStore) -> None:
        async with store.watch("taken/") as changes:
            first, second = await store.lease(3), await store.lease(60)
            await store.create("taken/a", b"first", lease=first)
            assert [change.value for change in await take(changes, 2)] == [b"first", None]
        await store.create("taken/a", b"second", lease=second)
        with pytest.raises(LeaseLost):
            await first.keepalive()
        await second.keepalive()
        await second.revoke()

    with_store(opener, body)


def test_a_revoked_lease_frees_its_key_for_the_next(opener: Opener) -> None:
    """Leadership passes from one controller to the next."""

    async def body(store: ConfigStore) -> None:
        first, second = await store.lease(30), await store.lease(30)
        await store.create("duty/a", b"first", lease=first)
        with pytest.raises(StoreConflict):
            await store.create("duty/a", b"second", lease=second)
        await first.revoke()
        await store.create("duty/a", b"second", lease=second)
        await second.revoke()

    with_store(opener, body)


def test_a_watch_survives_a_restart_of_etcd(etcd: Etcd | str, keyring: Keyring) -> None:
    if isinstance(etcd, str):
        pytest.skip(f"etcd is not available: {etcd}")

    async def body() -> None:
        async with _etcd(etcd.url, keyring.environment("controller")) as store, asyncio.timeout(60):
            await store.put("restart/a", b"1")
            async with store.watch("restart/") as changes:
                await take(changes, 1)
                await asyncio.to_thread(etcd.stop)
                with pytest.raises(StoreUnavailable):
                    await store.get("restart/a")
                etcd.start()
                async with _etcd(etcd.url, keyring.environment("controller")) as other:
                    await other.put("restart/a", b"2")
                assert [change.value for change in await take(changes, 1)] == [b"2"]

    asyncio.run(body())


def test_etcd_that_is_back_is_found_back(etcd: Etcd | str, keyring: Keyring) -> None:
    if isinstance(etcd, str):
        pytest.skip(f"etcd is not available: {etcd}")

    async def body() -> None:
        async with _etcd(etcd.url, keyring.environment("controller")) as store, asyncio.timeout(60):
            await store.put("back/a", b"1")
            await asyncio.to_thread(etcd.stop)
            loop = asyncio.get_running_loop()
            end = loop.time() + 6  # left alone, gRPC now waits 4 s before it tries again, on every channel to the address
            while loop.time() < end:
                with pytest.raises(StoreUnavailable):
                    await store.get("back/a")
            await asyncio.to_thread(etcd.start)
            async with _etcd(etcd.url, keyring.environment("controller")) as other:
                assert await other.get("back/a") is not None

    asyncio.run(body())


@pytest.mark.parametrize("url", ["ftp://x", "http://:1", "http://etcd:port"])
def test_an_unusable_etcd_url_says_so(url: str) -> None:
    with pytest.raises(SettingError, match="WOOLY_ETCD_URL"):
        EtcdStore(url, {})


def test_etcd_refuses_all_but_the_controllers_certificate(etcd: Etcd | str, keyring: Keyring) -> None:
    """Billing's is of the same authority, but none for clients; the third trusts the authority and has no certificate."""
    if isinstance(etcd, str):
        pytest.skip(f"etcd is not available: {etcd}")

    async def body(url: str, environment: Mapping[str, str]) -> None:
        with pytest.raises(StoreUnavailable):
            async with _etcd(url, environment):
                pass

    ca_only = {"WOOLY_TLS_CA": str(keyring.ca)}
    for url, environment in (
        (etcd.url, keyring.environment("billing")),
        (etcd.url, ca_only),
        (etcd.url.replace("https", "http"), keyring.environment("controller")),
    ):
        asyncio.run(body(url, environment))


def test_etcd_in_plain_text_beyond_loopback_is_refused() -> None:
    with pytest.raises(SettingError, match=r"etcd\.example in plain text: write WOOLY_ETCD_URL as https"):
        EtcdStore("http://etcd.example:2379", {})
