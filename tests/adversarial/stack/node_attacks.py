"""What an attacker says who has stolen the key of a node that runs nothing."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import msgspec

from bus_schemas import subjects
from bus_schemas.access import Principal, WhoIs, who_subject
from bus_schemas.events import (
    DeviceAccounted,
    DeviceFact,
    Event,
    NodeLeaving,
    NodeLost,
    NodeRecovered,
    NodeRegistered,
    SessionClosedFact,
    SessionOpenedFact,
    SessionPriorityChanged,
    TaskDisplaced,
    TaskStateChanged,
    UsageRecorded,
    encode_events,
)
from tests.adversarial.stack.field import Attacker, Attacks, encode
from tests.support.secure import Line, line
from tests.support.world import END, refused, settled

ATTACKS: Final = Attacks()

_DEVICE = DeviceFact(0, "d", "host", 1 << 18, 1 << 40)


@asynccontextmanager
async def stolen(by: Attacker) -> AsyncIterator[Line]:
    async with line(by.world.stack, **by.world.way_in("node 2")) as bus:
        yield bus


async def state(bus: Line, subject: str, *events: Event) -> None:
    await bus.client.publish(f"wooly.evt.{subject}", encode_events(list(events)))
    await bus.client.flush()


@ATTACKS
async def facts_of_another_node(by: Attacker) -> None:
    now_ns = time.time_ns()
    subjects_ = (
        f"wooly.evt.node.{by.node}",
        f"wooly.evt.usage.{by.node}",
        f"wooly.telemetry.{by.node}",
        f"wooly.journal.{by.node}.0.dispatch",
        f"wooly.evt.session.{by.victim.name}.{by.node}",
        "wooly.evt.task.x",
        "wooly.evt.access.x",
        "wooly.evt.tier.basic",
    )
    async with stolen(by) as bus:
        for subject in (*subjects_, END):
            await bus.client.publish(subject, encode_events([NodeLost(now_ns, by.node, 1, "stopped")]))
        await settled(bus, "publish")
        assert all(refused(bus.refused, "publish", subject) for subject in subjects_), bus.refused
        await state(bus, "node.n2", NodeLost(now_ns, by.node, 1, "stopped"), TaskStateChanged(now_ns, by.victim.task, "failed", "x"))


@ATTACKS
async def ten_thousand_devices(by: Attacker) -> None:
    async with stolen(by) as bus:
        devices = tuple(DeviceFact(at, "d", "host", 1, 1) for at in range(10_000))
        await state(bus, "node.n2", NodeRegistered(time.time_ns(), "n2", "n2", "", 1, devices))
    status, text = by.rest("GET", "/api/v1/nodes/n2", key=by.world.stack.admin)
    assert status < 500 and len(text) < 1 << 20, status


@ATTACKS
async def a_place_in_a_group_and_under_anothers_name(by: Attacker) -> None:
    async with stolen(by) as bus:
        now_ns = time.time_ns()
        await state(bus, "node.n2", NodeRegistered(now_ns, "n2", "local", "127.0.0.1", 1, (_DEVICE,), groups=("vip", "default")))
        await state(bus, "node.n2", NodeRegistered(now_ns, by.node, "n2", "127.0.0.1", 1, (_DEVICE,)))
        status, text = by.rest("POST", "/api/v1/tasks", {"required_vram_mb": 1, "groups": ["vip"], "title": "x"}, key=by.world.b)
        assert status >= 400 or b'"n2"' not in text, text[:300]
        await state(bus, "node.n2", NodeLost(now_ns, "n2", 1, "stopped"))


@ATTACKS
async def the_end_of_the_victims_task(by: Attacker) -> None:
    now_ns = time.time_ns()
    session = by.victim.name
    async with stolen(by) as bus:
        await state(bus, f"session.{session}.n2", SessionOpenedFact(now_ns, session, "best", by.victim.task, "n2", 0, 2, 1 << 20))
        await state(bus, f"session.{session}.n2", SessionClosedFact(now_ns, session, "n2", "failed", 10**15, 0, 0, 0, "", failed=True))
    status, text = by.rest("GET", f"/api/v1/tasks/{by.victim.task}", key=by.world.stack.admin)
    assert status == 200 and msgspec.json.decode(text)["state"] in ("placed", "running", "started"), text[:300]


@ATTACKS
async def usage_of_the_victims_tenant(by: Attacker) -> None:
    now_ns = time.time_ns()
    async with stolen(by) as bus:
        for serial, (session, task, core_ns) in enumerate(
            (
                (by.victim.name, by.victim.task, 10**15),
                ("unknown", "", 10**18),
                (by.victim.name, "", -(10**15)),
                ("x", by.victim.task, 2**62),
            ),
            1,
        ):
            usage = UsageRecorded("n2", 1, 0, serial, session, "best", task, 0, now_ns - 10**9, now_ns, core_ns, 0, 1, 1)
            await state(bus, "usage.n2", usage)


@ATTACKS
async def measurements_without_sense(by: Attacker) -> None:
    async with stolen(by) as bus:
        for data in (b"", b"\xc1", b"\x91" * 100_000, encode({"node": "n2", "x": float("nan")}), encode({"node": by.node}), bytes(1 << 20)):
            await bus.client.publish("wooly.telemetry.n2", data)
            await bus.client.publish("wooly.evt.node.n2", data)
            await bus.client.publish("wooly.evt.usage.n2", data)
        await bus.client.flush()


@ATTACKS
async def the_buss_own_interfaces_with_a_nodes_key(by: Attacker) -> None:
    async with stolen(by) as bus:
        subjects_ = (
            "$JS.API.STREAM.PURGE.WOOLY_EVENTS",
            "$JS.API.STREAM.DELETE.WOOLY_EVENTS",
            "$KV.wooly_access.x",
            "$SYS.REQ.SERVER.PING",
            f"wooly.node.{by.node}.req.end_task.controller",
            "$JS.API.STREAM.UPDATE.WOOLY_EVENTS",
        )
        for subject in (*subjects_, END):
            await bus.client.publish(subject, b"{}")
        await settled(bus, "publish")
        assert all(refused(bus.refused, "publish", subject) for subject in subjects_), bus.refused


@ATTACKS
async def principals_asked_about(by: Attacker) -> None:
    """A node may ask who opens a session on it: about a task of another node it hears nothing good."""
    async with stolen(by) as bus:
        for principal, task in ((by.world.names.b, by.victim.task), ("unknown", by.victim.task), ("", ""), ("*", "*")):
            answer = await bus.client.request(who_subject("n2"), encode(WhoIs(principal, task)), timeout=30)
            said = msgspec.msgpack.decode(answer.data, type=Principal)
            assert not (said.good and said.task_good), said
        await bus.client.publish(
            who_subject(by.node), encode(WhoIs(by.world.names.b, by.victim.task)), reply=f"{subjects.inbox_prefix('x')}.y"
        )


@ATTACKS
async def time_of_a_compiler_that_did_not_compile(by: Attacker) -> None:
    now_ns = time.time_ns()
    async with stolen(by) as bus:
        for serial, compile_ns in enumerate((10**18, -(10**15), 2**62), 100):
            usage = UsageRecorded(
                "n2", 2, 0, serial, by.victim.name, "best", by.victim.task, 0, now_ns - 10**9, now_ns, 0, 0, 0, 0, compile_ns
            )
            await state(bus, "usage.n2", usage)


@ATTACKS
async def accounts_that_do_not_add_up(by: Attacker) -> None:
    now_ns = time.time_ns()
    async with stolen(by) as bus:
        for serial, numbers in enumerate(((1, 1, 0, 0, 0), (10**18, 2**31, -1, -1, 2**62), (0, 0, 0, 0, 0), (-1, -1, -1, -1, -1)), 1):
            await state(bus, "usage.n2", DeviceAccounted("n2", 3, 0, serial, now_ns, *numbers, 1, 2**62))
            await state(bus, "usage.n2", DeviceAccounted("n2", 2**62, -1, serial, -now_ns, *numbers, -5, 5))


@ATTACKS
async def accounts_that_give_a_tenant_credits(by: Attacker) -> None:
    """A task of the attacker's holds a device of the stolen node, of which less than nothing was idle. It adds up."""
    async with stolen(by) as bus:
        await state(bus, "node.n2", NodeRegistered(time.time_ns(), "n2", "n2", "", 4, (DeviceFact(0, "d", "host", 4, 1 << 45),)))
        asked = {"required_vram_mb": 1 << 24, "gpu_mode": "Exclusive", "queue": True, "title": "x"}
        status, text = by.rest("POST", "/api/v1/tasks", asked)
        assert status < 300 and msgspec.json.decode(text)["placement"]["node"] == "n2", text[:300]
        began_ns = time.time_ns()
        by.rest("POST", f"/api/v1/tasks/{msgspec.json.decode(text)['id']}/cancel")
        credit = 10**18
        for serial, wall_ns in ((1, 10**9), (2, 10**10)):
            accounts = DeviceAccounted("n2", 4, 0, serial, began_ns, wall_ns, 4, 0, 4 * wall_ns + credit, -credit, 1, 0)
            await state(bus, "usage.n2", accounts)
        await state(bus, "node.n2", NodeLost(time.time_ns(), "n2", 4, "stopped"))
    account = by.world.stack.ask("GET", f"/api/v1/billing/accounts/{by.tenant}", service="billing")
    assert account["balance_micro"] <= 0, account


@ATTACKS
async def a_thousand_sessions_that_never_were(by: Attacker) -> None:
    """Facts about sessions of tenants that it has never seen: pages stay small, and the victim's tasks are what they were."""
    now_ns = time.time_ns()
    async with stolen(by) as bus:
        for number in range(1_000):
            name = f"{by.world.names.b}-ghost{number}"
            await bus.client.publish(
                f"wooly.evt.session.{name}.n2",
                encode_events([SessionOpenedFact(now_ns, name, "best", by.victim.task, "n2", 0, 2, 1 << 20, title="\x1b[2J<script>")]),
            )
        await bus.client.flush()
    status, text = by.rest("GET", f"/api/v1/tasks/{by.victim.task}", key=by.world.stack.admin)
    assert status == 200 and len(text) < 1 << 20 and b"ghost" not in text, text[:300]


@ATTACKS
async def a_thousand_beginnings(by: Attacker) -> None:
    """Epochs up and down: in the end the node is shown once."""
    now_ns = time.time_ns()
    async with stolen(by) as bus:
        for epoch in (*range(1, 200), -1, 0, 2**62, 1):
            await bus.client.publish("wooly.evt.node.n2", encode_events([NodeRegistered(now_ns, "n2", "n2", "", epoch, (_DEVICE,))]))
        await bus.client.flush()
        await state(bus, "node.n2", NodeLost(now_ns, "n2", 2**62, "stopped"))
    status, text = by.rest("GET", "/api/v1/nodes", key=by.world.stack.admin)
    assert status == 200 and text.count(b'"id":"n2"') <= 1, text[:300]


@ATTACKS
async def journals_of_garbage(by: Attacker) -> None:
    """What it writes as its own journal stops no reader of another node's."""
    async with stolen(by) as bus:
        for data in (b"", b"\xc1" * 1000, b"\x91" * 100_000, bytes(1 << 20), encode({"x": float("nan")})):
            for part in ("dispatch", "memory"):
                await bus.client.publish(f"wooly.journal.n2.0.{part}", data)
        await bus.client.flush()


@ATTACKS
async def leases_asked_for_without_end(by: Attacker) -> None:
    """It may ask for the budgets of tenants that it serves: answers are small, and nothing of them is the victim's bill."""
    async with stolen(by) as bus:
        for data in (b"", b"\xc1", encode({"tenant": "best"}), encode(["best", 2**62]), b"\x91" * 100_000):
            for _ in range(20):
                await bus.client.publish("wooly.billing.req.allow.n2", data, reply=f"{subjects.inbox_prefix(by.world.names.key2)}.x.y")
            await bus.client.publish(f"wooly.billing.req.allow.{by.node}", data)
        await bus.client.flush()


@ATTACKS
async def departures_and_returns_of_another_node(by: Attacker) -> None:
    """And priorities of the victim's session, in messages that the bus lets through: what a node says counts for itself."""
    now_ns = time.time_ns()
    events = (
        NodeLeaving(now_ns, by.node, 1, now_ns + 10**12),
        NodeRecovered(now_ns, by.node, 2**62),
        SessionPriorityChanged(now_ns, by.victim.name, by.node, 4),
        SessionPriorityChanged(now_ns, by.victim.name, "n2", 0),
        TaskDisplaced(now_ns, by.victim.task, by.node, lost=True, to="n2"),
    )
    before = by.rest("GET", f"/api/v1/tasks/{by.victim.task}", key=by.world.b)
    async with stolen(by) as bus:
        for event in events:
            for subject in ("node.n2", f"session.{by.victim.name}.n2", "usage.n2"):
                await state(bus, subject, event)
        await state(bus, "node.n2", *events)
    node = msgspec.json.decode(by.rest("GET", f"/api/v1/nodes/{by.node}", key=by.world.stack.admin)[1])
    assert node["state"] == "ready", node
    after = by.rest("GET", f"/api/v1/tasks/{by.victim.task}", key=by.world.b)
    said = [{name: msgspec.json.decode(text)[name] for name in ("state", "priority", "node")} for _, text in (before, after)]
    assert said[0] == said[1], said


@ATTACKS
async def usage_with_numbers_that_are_none(by: Attacker) -> None:
    """Floats, NaN, numbers beyond 64 bits, the same twice, and repeats of no earlier session: nothing of it is on the victim's bill."""
    now_ns = time.time_ns()
    right: list[object] = ["n2", 1, 0, 1, by.victim.name, "best", by.victim.task, 0, now_ns - 10**9, now_ns, 10**9, 0, 1, 1, 0]
    async with stolen(by) as bus:
        for at in range(8, len(right)):
            for value in (float("nan"), float("inf"), -1, 2**63, 1e300, "9" * 1000, [1], None):
                data = encode([["usage.recorded.v1", *right[:at], value, *right[at + 1 :]]])
                await bus.client.publish("wooly.evt.usage.n2", data)
        for extra in ([10**18], [0, 10**18, 10**18, 10**18], [-(10**18)] * 6):
            await bus.client.publish("wooly.evt.usage.n2", encode([["usage.recorded.v1", *right, *extra]]))
            await bus.client.publish("wooly.evt.usage.n2", encode([["usage.recorded.v1", *right, *extra]] * 50))
        await bus.client.flush()
