"""``wooly backup`` of a running installation, and ``wooly restore``: everything comes back at its position, and the bill to the unit."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from bus_schemas.subjects import EVENTS_STREAM, batch_stream
from services.kit.bus import Bus, connect
from services.kit.errors import BusUnavailable, SettingError
from services.kit.nats_server import NatsCluster, NatsServer
from services.kit.streams import batch_stream_config
from services.up.backup import deliver, load, read_manifest, save
from tests.support.command import Wooly, command_in
from tests.support.node import until
from tests.support.script import Script
from tests.support.secure import SecureStack

WORK = """
import torch
x = torch.ones(64, 64, device="cuda")
for step in range(steps):
    x = (x @ x).tanh()
    print(step, x.sum().item(), flush=True)
"""


@pytest.fixture
def wooly(tmp_path: Path) -> Wooly:
    return command_in(tmp_path)


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path / "nats", sync_always=False)
    server.start()
    yield server
    server.stop()


def on(url: str, work: Callable[[Bus], Any]) -> Any:
    """What ``work(bus)`` returns."""

    async def connected() -> Any:
        bus = await connect(url, name="test")
        try:
            return await work(bus)
        finally:
            await bus.close()

    return asyncio.run(connected())


async def filled(bus: Bus) -> list[bytes]:
    """The events' stream with some megabytes in it, one message removed; and a stream of batches."""
    await bus.ensure_streams()
    await bus.ensure_stream(batch_stream_config("a"))
    bodies = [os.urandom(400_000) for _ in range(40)]
    for number, body in enumerate(bodies):
        await bus.publish_acked(f"wooly.evt.test.{number}", body)
    await bus.js_api("STREAM.CREATE.LEFT", {"name": "LEFT", "subjects": ["left"], "storage": "file", "retention": "limits"})
    for number in range(3):
        await bus.publish_acked("left", b"%d" % number)
    await bus.js_api("STREAM.MSG.DELETE.LEFT", {"seq": 2})
    await bus.js_api("STREAM.CREATE.UNUSED", {"name": "UNUSED", "subjects": ["unused"], "storage": "file", "retention": "limits"})
    return bodies


def test_a_part_is_sent_again_until_its_place_is_known(nats: NatsServer) -> None:
    async def sent(bus: Bus) -> None:
        sending = asyncio.create_task(deliver(bus, "place", b"part"))
        with pytest.raises(BusUnavailable):
            await bus.request("place", b"after it")  # on the same connection
        parts: list[bytes] = []

        async def take(subject: str, data: bytes) -> bytes:
            parts.append(data)
            return b"taken"

        await bus.serve("place", take)
        assert await sending == b"taken" and parts == [b"part"]

    on(nats.url, sent)


def test_streams_come_back_at_their_positions(nats: NatsServer, tmp_path: Path) -> None:
    bodies = on(nats.url, filled)
    copy = tmp_path / "copy"
    on(nats.url, lambda bus: save(bus, copy))
    manifest = read_manifest(copy)
    assert next(iter(manifest.streams)) == EVENTS_STREAM and batch_stream("a") not in manifest.streams
    cluster = NatsCluster(tmp_path / "cluster", 3)
    cluster.start()
    try:

        async def brought_back(bus: Bus) -> None:
            bus.copies = 3
            await load(bus, copy, manifest)
            for position, body in enumerate(bodies, start=1):
                assert await bus.message(EVENTS_STREAM, seq=position) == (position, body)
            info = await bus.js_api(f"STREAM.INFO.{EVENTS_STREAM}")
            assert info["config"]["num_replicas"] == 3 and info["config"]["deny_delete"]
            assert await bus.message("LEFT", seq=2) is None and await bus.message("LEFT", seq=3) == (3, b"2")
            with pytest.raises(SettingError, match=r"the bus holds .*LEFT.* already"):
                await load(bus, copy, manifest)

        on(cluster.url, brought_back)
    finally:
        cluster.stop()


def test_a_damaged_copy_is_refused(nats: NatsServer, tmp_path: Path, wooly: Wooly) -> None:
    on(nats.url, filled)
    assert wooly("backup", "copy", WOOLY_NATS_URL=nats.url).returncode == 0
    again = wooly("backup", "copy", WOOLY_NATS_URL=nats.url)
    assert (again.returncode, "exists; name a folder that does not" in again.stderr) == (2, True)
    file = tmp_path / "copy" / "streams" / "LEFT"
    file.write_bytes(file.read_bytes()[:-1])
    refused = wooly("restore", "copy", "--dir", "new")
    assert (refused.returncode, "LEFT is not what was saved" in refused.stderr) == (2, True) and not (tmp_path / "new").exists()
    manifest = json.loads((tmp_path / "copy" / "manifest.json").read_text())
    manifest["streams"]["LEFT"]["digest"] = blake3(file.read_bytes()).hexdigest()
    (tmp_path / "copy" / "manifest.json").write_text(json.dumps(manifest))
    halfway = wooly("restore", "copy", "--dir", "new")
    assert (halfway.returncode, "LEFT cannot be restored" in halfway.stderr) == (2, True), halfway.stderr
    assert not (tmp_path / "new").exists(), "all of it, or nothing"
    assert "holds no whole backup" in wooly("restore", str(tmp_path), "--dir", "new").stderr
    assert "whose state?" in wooly("backup", "other").stderr
    assert sorted(path.name for path in tmp_path.glob("*") if path.name[:1] in "cno") == ["copy", "nats"]


def charges(stack: SecureStack) -> dict[str, int]:
    """By task, in micro-credits."""
    items = stack.ask("GET", "/api/v1/billing/credits?by=task", service="billing")["items"]
    return {item["key"]: round(float(item["core_credits"]) * 1e6) for item in items}


def test_a_copy_of_a_working_installation_has_its_bill(tmp_path: Path, wooly: Wooly) -> None:
    """A script computes meanwhile. The keyring is in the copy."""
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    with SecureStack(first) as stack:
        with Script(stack, "over", "steps = 40" + WORK, WOOLY_API_KEY=stack.admin) as script:
            assert script.end() == 0
        before = until(lambda: charges(stack), "the script is charged")
        with Script(stack, "computes", "steps = 10**9" + WORK, WOOLY_API_KEY=stack.admin) as script:
            script.prints("1")
            bus = {"WOOLY_NATS_URL": stack.addresses["nats"], "WOOLY_TLS_CA": str(stack.ring.ca)}
            assert "give --keyring FOLDER" in wooly("backup", "copy", WOOLY_API_KEY=stack.admin, **bus).stderr
            saved = wooly("backup", "copy", "--dir", str(first / "state"))
            assert saved.returncode == 0, saved.stderr
    assert (tmp_path / "copy").stat().st_mode & 0o077 == 0
    restored = wooly("restore", "copy", "--dir", str(second / "state"))
    assert restored.returncode == 0, restored.stderr
    with SecureStack(second) as stack:
        found = charges(stack)
        assert before.items() <= found.items() and len(found) <= 2
        where = {"WOOLY_BILLING_URL": stack.addresses["billing"], "WOOLY_TLS_CA": str(stack.ring.ca)}
        verified = wooly("billing", "verify", WOOLY_API_KEY=stack.admin, **where)
        assert verified.returncode == 0, verified.stderr
        with Script(stack, "next", "steps = 2" + WORK, WOOLY_API_KEY=stack.admin) as script:
            assert script.end() == 0
