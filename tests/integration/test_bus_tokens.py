"""Short-lived tokens of keys, narrowed to scopes, over REST and as passwords on the bus."""

from __future__ import annotations

import asyncio
import time
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import nats.errors
import pytest

from services.kit.access.access import BUCKET
from services.kit.access.tokens import Token, write_token
from services.kit.credentials import Credentials
from tests.support.node import DEADLINE_S, floats, increment
from tests.support.secure import SecureStack, line
from tests.support.world import World
from wooly.config import load
from wooly.errors import ConfigError
from wooly.link import Flush
from wooly.session import open_session


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("stack")
    with SecureStack(folder) as stack:
        yield World(stack)


def token_of(world: World, key: str, *scopes: str) -> str:
    made = world.stack.ask("POST", "/api/v1/tokens", {"scopes": list(scopes)}, key=key)
    return str(made["token"])


def status_of(world: World, method: str, path: str, key: str, body: object = None, service: str = "controller") -> int:
    try:
        world.stack.ask(method, path, body, key=key, service=service)
    except urllib.error.HTTPError as error:
        return error.code
    return 200


def let_in(world: World, principal: str, password: str) -> bool:
    """Whether the bus admits this user with this password."""

    async def once() -> bool:
        try:
            async with line(world.stack, f"wk_{principal}_{password}"):
                return True
        except (nats.errors.Error, OSError):  # nats-py writes to a connection that the bus has ended
            return False

    return asyncio.run(once())


def test_a_token_has_the_scopes_that_it_was_asked_for(world: World) -> None:
    admin, task = world.stack.admin, {"tenant": "acme", "priority": 2, "required_vram_mb": 1}
    reads = token_of(world, admin, "read")
    assert status_of(world, "GET", "/api/v1/nodes", reads) == 200
    assert status_of(world, "POST", "/api/v1/tasks", reads, task) == 403
    assert status_of(world, "POST", "/api/v1/tasks", token_of(world, admin), task) == 200
    grant = {"tenant": "acme", "micro": 1, "id": "by-token"}
    for at in ("controller", "billing"):  # relayed, and direct
        assert status_of(world, "GET", "/api/v1/billing/credits?by=tenant", reads, service=at) == 200
        assert status_of(world, "POST", "/api/v1/billing/grants", reads, grant, at) == 403, at
    narrow = world.stack.key(scopes=["submit"], tenant="acme", role="member")
    assert status_of(world, "POST", "/api/v1/tokens", narrow, {"scopes": ["admin"]}) == 403
    assert status_of(world, "POST", "/api/v1/tokens", narrow, {"scopes": ["everything"]}) == 400
    assert status_of(world, "GET", "/api/v1/audit", token_of(world, narrow)) == 403
    records = world.stack.ask("GET", "/api/v1/audit?action=token.issue")["items"]
    assert any(record["detail"].endswith("only read") for record in records)


def test_a_script_runs_with_a_token_alone(world: World) -> None:
    said = {
        "WOOLY_API_KEY": token_of(world, world.a, "submit"),
        "WOOLY_TLS_CA": str(world.stack.ring.ca),
        "WOOLY_NATS_URL": world.stack.addresses["nats"],
        "CONTROLLER_URL": world.stack.addresses["controller"],
    }
    session = open_session(load(said, environ={}), title="with a token")
    session.submit(Flush(uploads=[(1, memoryview(bytes(128)))]))
    (found,) = session.wait(session.submit(increment().flush([1], reads=[(1, 0, 128)])))
    assert floats(found).tolist() == [1.0] * 16
    session.close()


def test_the_bus_ends_the_connection_of_a_token_that_expires(world: World) -> None:
    key = world.a.split("_")[1]
    kept = world.log(lambda bus: bus.message(f"KV_{BUCKET}", last_by_subj=f"$KV.{BUCKET}.session_secret"))
    seal = Credentials.from_environment(world.stack.ring.environment("controller"), world.stack.addresses["nats"]).seal
    assert kept is not None and seal is not None
    now_s = int(time.time())
    text = write_token(seal.secrets(kept[1])[0], Token("access", "t", key, key, "", now_s, now_s, now_s + 4))

    async def ends() -> None:
        async with line(world.stack, f"wk_{key}_{text}") as connection:
            await asyncio.wait_for(connection.ended.wait(), DEADLINE_S)

    asyncio.run(ends())
    assert not let_in(world, key, text)


def test_a_token_opens_the_bus_for_its_own_key_alone_and_while_that_is_good(world: World) -> None:
    mine, other = world.a.split("_")[1], world.b.split("_")[1]
    token = token_of(world, world.a)
    assert let_in(world, mine, token)
    assert not let_in(world, other, token)
    assert not let_in(world, mine, token[:-1] + ("A" if token[-1] != "A" else "B"))
    assert not let_in(world, mine, token_of(world, world.a, "read")), "its scope has no business on the bus"
    key = world.stack.key(tenant="acme", role="member")
    ended = token_of(world, key)
    assert let_in(world, key.split("_")[1], ended)
    world.stack.ask("DELETE", f"/api/v1/keys/{key.split('_')[1]}")
    assert not let_in(world, key.split("_")[1], ended)


@pytest.mark.parametrize("text", ["wt_", "wt_abc.def", "wt_" + "A" * 40 + "." + "A" * 43, "wk_short"])
def test_texts_that_are_no_tokens(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="WOOLY_API_KEY"):
        load({"WOOLY_API_KEY": text}, environ={})
