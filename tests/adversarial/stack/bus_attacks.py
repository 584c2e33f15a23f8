"""What a member of another tenant says on the bus and to the data port."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import time
import zlib
from typing import Any, Final

import msgspec
import pytest
from blake3 import blake3
from nats.aio.msg import Msg

from bus_schemas import faults, subjects
from bus_schemas.batch import LIMITS, Batch, Done, Read, Upload, decode_done, encode_batch
from bus_schemas.dataport import (
    MODELS_VERB,
    Forget,
    Had,
    Have,
    Hello,
    Keep,
    Kept,
    Listed,
    ModelCacheOpened,
    ModelManifest,
    Models,
    ModelTensor,
    OpenModelCache,
    Put,
    encode_manifest,
)
from bus_schemas.events import Outcome
from bus_schemas.frames import HEAD, frame
from bus_schemas.session import CloseSession, EndTask, OpenSession, Ping, Pong, SessionClosed, SetPriority
from tests.adversarial.stack.field import Attacker, Attacks, encode
from tests.support.builder import Builder
from tests.support.node import Program
from tests.support.secure import Line, line
from tests.support.world import DEADLINE_S, END, refused, settled
from wis.dtypes import DType
from wooly.errors import WoolyError
from wooly.transport.batches import pack_handles
from wooly.transport.data_port import DataPort

ATTACKS: Final = Attacks()


def batch(session: str, seq: int = 1, *, epoch: int = 1, **fields: Any) -> bytes:
    return encode_batch(Batch(session, epoch, seq, **fields))


async def dones(of: Attacker, session: str) -> asyncio.Queue[Done]:
    """What the node answers to a session of the attacker's."""
    queue: asyncio.Queue[Done] = asyncio.Queue()

    async def heard(message: Msg) -> None:
        queue.put_nowait(decode_done(message.data))

    await of.bus.client.subscribe(subjects.session_done(session, of.me), cb=heard)
    await of.bus.client.flush()
    return queue


@ATTACKS
async def garbage_in_the_batch_stream(by: Attacker) -> None:
    session = (await by.opened()).session
    await by.send(session, *(secrets.token_bytes(size) for size in range(0, 4000, 40)), b"", b"\x78\x9c", b"\xc1", b"\xdd\xff\xff\xff\xff")
    await by.close(session)


@ATTACKS
async def messages_that_inflate_to_millions_of_elements(by: Attacker) -> None:
    session = (await by.opened()).session
    bomb = zlib.compress(batch(session, uploads=(Upload(1, 0, b"", (b"",) * 2_000_000),)))
    await by.send(session, *[bomb] * 200)
    await by.close(session)


@ATTACKS
async def messages_that_inflate_without_end(by: Attacker) -> None:
    session = (await by.opened()).session
    await by.send(session, *[zlib.compress(bytes(64 << 20))] * 20)
    await by.close(session)


@ATTACKS
async def nests_of_a_hundred_thousand_arrays(by: Attacker) -> None:
    session = (await by.opened()).session
    await by.send(session, *(head * 100_000 for head in (b"\x91", b"\x81\xa1x", b"\x9f", b"\xc7\xff\x01")))
    assert msgspec.msgpack.decode(await by.request("open", b"\x91" * 100_000))["fault"] is not None
    await by.close(session)


@ATTACKS
async def batches_in_the_name_of_the_victims_session(by: Attacker) -> None:
    """On its own subject: the session is that of the subject. On the victim's: the bus refuses it."""
    handle = pack_handles([1])
    forged = batch(by.victim.name, 1000, frees=(1,), handles=handle)
    session = (await by.opened()).session
    await by.send(session, forged)
    subject = subjects.batch_subject(by.node, by.victim.name, by.world.names.b)
    await by.bus.client.publish(subject, forged)
    await by.send(by.victim.name, forged)
    await by.bus.client.publish(END, b"")
    await settled(by.bus, "publish")
    assert refused(by.bus.refused, "publish", subject)
    await by.close(session)


@ATTACKS
async def headers_that_streams_obey(by: Attacker) -> None:
    session = (await by.opened()).session
    for headers in (
        {"Nats-Rollup": "all"},
        {"Nats-Rollup": "sub"},
        {"Nats-Msg-Id": "1"},
        {"Nats-Expected-Last-Sequence": "0"},
        {"Nats-TTL": "1s"},
        {"Nats-Schedule": "@every 1s", "Nats-Schedule-Target": "wooly.evt.access.x"},
        {"Nats-Incr": "1"},
        {"Nats-Batch-Id": "x"},
        {"Nats-Trace-Dest": f"wooly.session.{by.node}.x.y.done"},
        {"traceparent": "00-" + "f" * 5000},
        {"X": "y" * 60_000},
    ):
        await by.send(session, b"garbage", headers=headers)
    await by.close(session)


@ATTACKS
async def replies_aimed_at_the_log_and_at_others(by: Attacker) -> None:
    for reply in ("wooly.evt.access.x", f"{subjects.inbox_prefix(by.world.names.b)}.x", "$JS.API.STREAM.PURGE.WOOLY_EVENTS", "_R_.x"):
        for verb in ("ping", "open", "close"):
            await by.bus.client.publish(subjects.node_request(by.node, verb, by.me), b"", reply=reply)
    await by.bus.client.flush()


@ATTACKS
async def sessions_that_stay_silent(by: Attacker) -> None:
    for _ in range(40):
        await by.opened()


@ATTACKS
async def texts_of_three_megabytes(by: Attacker) -> None:
    long = "x" * (3 << 20)
    for field in ("title", "task", "tenant", "client_version", "traceparent", "session"):
        assert (await by.open(**{field: long})).fault is not None, field
    session = (await by.opened()).session
    assert not msgspec.msgpack.decode(await by.request("close", encode(CloseSession(session, long, -1))))["session"]
    await by.close(session)


@ATTACKS
async def numbers_that_no_session_may_have(by: Attacker) -> None:
    for fields in (
        {"priority": -1},
        {"priority": 5},
        {"priority": 2**63 - 1},
        {"weight": 0},
        {"weight": 10_001},
        {"vram_bytes": -1},
        {"vram_bytes": 2**62},
        {"gpus": (-1,)},
        {"gpus": (64,)},
        {"gpus": (0,) * 1000},
        {"pace_percent": 101},
        {"pace_percent": -1},
        {"sla_ms_p99": -1},
        {"sla_ms_p99": 2**62},
        {"sla_ms_p99": 1},
        {"vram_wait_ms": -1},
        {"vram_wait_ms": 2**62},
        {"exclusive": True},
    ):
        assert (await by.open(**fields)).fault is not None, fields


@ATTACKS
async def names_of_sessions(by: Attacker) -> None:
    """The victim's, and such as would be another subject or file."""
    for name in (
        by.victim.name,
        by.world.names.b,
        f"{by.world.names.b}-x",
        "*",
        ">",
        f"{by.me}-*",
        f"{by.me}->",
        f"{by.me}-a.b",
        f"{by.me}- ",
        f"{by.me}-\x00",
        f"{by.me}-\n",
        f"{by.me}-../x",
        f"{by.me}-" + "x" * 100_000,
        "x",
    ):
        assert (await by.open(session=name)).fault is not None, name


@ATTACKS
async def the_victims_session_closed_and_asked_for(by: Attacker) -> None:
    assert (await by.close(by.victim.name)).launches == 0
    pong = msgspec.msgpack.decode(await by.request("ping", encode(Ping(by.victim.name))), type=Pong)
    assert not pong.session_known and pong.seq_done <= 0


@ATTACKS
async def the_victims_task_taken(by: Attacker) -> None:
    assert (await by.open(task=by.victim.task)).fault is not None
    assert (await by.opened(tenant="best")).tenant == by.tenant


@ATTACKS
async def orders_to_the_node(by: Attacker) -> None:
    orders = (("end_task", encode(EndTask(by.victim.task, "x"))), ("set_priority", encode(SetPriority(by.victim.task, 4))), ("stats", b""))
    for verb, data in orders:
        for principal in (by.me, "controller", "local", by.world.names.b):
            assert await by.silent(subjects.node_request(by.node, verb, principal), data), (verb, principal)


@ATTACKS
async def the_victims_answers_and_everything_listened_to(by: Attacker) -> None:
    subjects_ = (
        subjects.session_done(by.victim.name, by.world.names.b),
        "wooly.>",
        ">",
        "wooly.evt.>",
        "wooly.telemetry.>",
        "$JS.>",
        "_INBOX.>",
        f"{subjects.inbox_prefix(by.world.names.b)}.>",
        "$KV.>",
        "$SYS.>",
        f"wooly.node.{by.node}.batch.>",
    )
    heard = [await by.bus.client.subscribe(subject) for subject in (*subjects_, END)]
    await settled(by.bus, "subscription")
    assert all(refused(by.bus.refused, "subscription", subject) for subject in subjects_)
    assert not any(box.pending_msgs for box in heard)


@ATTACKS
async def jetstream(by: Attacker) -> None:
    for verb in (
        "INFO",
        "STREAM.NAMES",
        "STREAM.INFO.WOOLY_EVENTS",
        "STREAM.PURGE.WOOLY_EVENTS",
        "STREAM.MSG.GET.WOOLY_EVENTS",
        "DIRECT.GET.KV_wooly_access.x",
        "CONSUMER.CREATE.WOOLY_EVENTS.x",
        "STREAM.DELETE.WOOLY_JOURNAL",
    ):
        assert await by.silent(f"$JS.API.{verb}", b"{}"), verb
    assert await by.silent("$SYS.REQ.SERVER.PING.CONNZ", b"{}")


@ATTACKS
async def programs_asked_for_by_digest(by: Attacker) -> None:
    """Whether the victim runs them must not show."""
    opened = await by.opened()
    answers = await dones(by, opened.session)
    program, dims = by.victim.digests
    found = set()
    for names in ((program, dims), (secrets.token_bytes(32), dims), (program, secrets.token_bytes(32))):
        data = batch(opened.session, epoch=opened.epoch, program=names[0], dims=names[1], handles=pack_handles([1]))
        await by.send(opened.session, data)
        done = await asyncio.wait_for(answers.get(), DEADLINE_S)
        found.add((done.fault, done.needs == names))
    assert found == {(None, True)}
    await by.close(opened.session)


@ATTACKS
async def memory_that_is_not_there(by: Attacker) -> None:
    """Handles of nothing, places outside, sizes beyond all: refused, and no byte comes back."""
    opened = await by.opened()
    answers = await dones(by, opened.session)
    cases = (
        {"reads": (Read(0, 1, 0, 8),)},
        {"reads": (Read(0, 1, 2**62, 8),)},
        {"frees": (1,)},
        {"allocs": ((1, 2**62),)},
        {"allocs": ((1, -1),)},
        {"allocs": ((2**63 - 1, 8), (2**63 - 1, 8))},
        {"allocs": ((1, 64),), "reads": (Read(0, 1, -8, 8),)},
        {"allocs": ((2, 64),), "reads": (Read(0, 2, 0, 2**40),)},
        {"uploads": (Upload(1, 2**50, b"x"),)},
    )
    for seq, fields in enumerate(cases, 1):
        await by.send(opened.session, batch(opened.session, seq, epoch=opened.epoch, **fields))
        done = await asyncio.wait_for(answers.get(), DEADLINE_S)
        assert done.fault is not None and not any(read.inline for read in done.reads), fields
    await by.close(opened.session)


@ATTACKS
async def memory_left_by_others(by: Attacker) -> None:
    """What is allocated is zero, however often."""
    opened = await by.opened(vram_bytes=32 << 20)
    answers = await dones(by, opened.session)
    for seq in range(1, 9):
        fields = {"allocs": ((seq, 1 << 20),), "reads": (Read(0, seq, 0, 4096),), "frees": (seq,) if seq % 2 else ()}
        await by.send(opened.session, batch(opened.session, seq, epoch=opened.epoch, **fields))
        done = await asyncio.wait_for(answers.get(), DEADLINE_S)
        assert done.fault is None and not any(bytes(read.inline).strip(b"\0") for read in done.reads)
    await by.close(opened.session)


@ATTACKS
async def a_hundred_thousand_buffers(by: Attacker) -> None:
    opened = await by.opened(vram_bytes=64 << 20)
    answers = await dones(by, opened.session)
    await by.send(opened.session, batch(opened.session, 1, epoch=opened.epoch, allocs=tuple((at, 8) for at in range(1, 100_001))))
    await asyncio.wait_for(answers.get(), DEADLINE_S)
    await by.close(opened.session)


@ATTACKS
async def batches_out_of_all_order(by: Attacker) -> None:
    opened = await by.opened()
    numbers = (0, -1, 2, 70, 10**6, 2**63 - 1)
    await by.send(opened.session, *(batch(opened.session, seq, epoch=opened.epoch) for seq in numbers for _ in range(20)))
    await by.send(opened.session, *(batch(opened.session, 1, epoch=epoch) for epoch in (-1, 0, 2**62)))
    await by.close(opened.session)


@ATTACKS
async def waiting_batches_of_a_megabyte(by: Attacker) -> None:
    opened = await by.opened()
    big = [
        batch(opened.session, seq, epoch=opened.epoch, uploads=(Upload(1, 1 << 20, secrets.token_bytes(1 << 20)),)) for seq in range(2, 40)
    ]
    await by.send(opened.session, *big)
    await by.close(opened.session)


@ATTACKS
async def a_message_larger_than_any_batch(by: Attacker) -> None:
    opened = await by.opened()
    await by.send(opened.session, bytes(LIMITS.batch_bytes_max + 1))
    await by.close(opened.session)


@ATTACKS
async def bodies_under_names_of_others(by: Attacker) -> None:
    """A program under the victim's digest: neither is it used, nor does the victim's change."""
    opened = await by.opened()
    answers = await dones(by, opened.session)
    program, dims = by.victim.digests
    fields = {"program": program, "dims": dims, "program_body": b"another", "dims_body": bytes(8), "kernels": (b"garbage",)}
    await by.send(opened.session, batch(opened.session, 1, epoch=opened.epoch, **fields))
    done = await asyncio.wait_for(answers.get(), DEADLINE_S)
    assert done.fault is not None and "digest" in done.fault.message
    await by.close(opened.session)


@ATTACKS
async def thousands_of_pings_and_discoveries(by: Attacker) -> None:
    opened = await by.opened()
    data = encode(Ping(opened.session, -1))
    for _ in range(3000):
        await by.bus.client.publish(subjects.node_request(by.node, "ping", by.me), data, reply=f"{subjects.inbox_prefix(by.me)}.x.y")
        await by.bus.client.publish(subjects.discover(by.me), b"", reply=f"{subjects.inbox_prefix(by.me)}.x.y")
    await by.bus.client.flush()
    await by.close(opened.session)


@ATTACKS
async def requests_of_garbage(by: Attacker) -> None:
    for verb in ("open", "close", "ping", "model-cache"):
        for data in (b"", b"\xc1", secrets.token_bytes(5000), b"\x91" * 50_000, bytes(1 << 20), encode({"session": 1}), encode([1] * 1000)):
            await by.bus.client.publish(subjects.node_request(by.node, verb, by.me), data, reply=f"{subjects.inbox_prefix(by.me)}.x.y")
    await by.bus.client.flush()


@ATTACKS
async def sixty_connections(by: Attacker) -> None:
    async def stay(connected: asyncio.Event) -> None:
        async with line(by.world.stack, by.key):
            await connected.wait()

    done = asyncio.Event()
    connections = [asyncio.create_task(stay(done)) for _ in range(60)]
    await asyncio.wait(connections, timeout=3)
    done.set()
    await asyncio.gather(*connections, return_exceptions=True)


async def port_of(by: Attacker) -> tuple[str, int, str, str]:
    opened = await by.opened()
    assert opened.node is not None
    kind, host, port = next(address for address in opened.node.data_port if not address.startswith("unix:")).split(":")
    assert kind == "tls"
    return host, int(port), opened.session, opened.token


@ATTACKS
async def silence_and_garbage_at_the_data_port(by: Attacker) -> None:
    host, port, session, token = await port_of(by)
    sockets = [socket.create_connection((host, port), DEADLINE_S) for _ in range(100)]
    for at, connection in enumerate(sockets):
        connection.sendall((b"", b"\x00" * 64, b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff", secrets.token_bytes(512))[at % 5])
    for connection in sockets:
        connection.close()
    await by.close(session)
    assert token


@ATTACKS
async def tokens_and_frames_at_the_data_port(by: Attacker) -> None:
    """The victim's session with the attacker's token, no token, and frames that say they are endless."""
    host, port, session, token = await port_of(by)
    for hello in (
        Hello(by.victim.name, token),
        Hello(session, ""),
        Hello("", ""),
        Hello(by.victim.name, "0" * 32),
        Hello(session, "x" * 4000),
    ):
        assert not await _heard(by, host, port, frame(hello)), hello
    for junk in (HEAD.pack(2**32 - 1), HEAD.pack(2**31), frame(Put(blake3(b"x").digest(), 1)) + b"x", b"\xff" * 5000):
        assert not await _heard(by, host, port, junk), junk[:10]
    await by.close(session)


async def _heard(by: Attacker, host: str, port: int, data: bytes) -> bytes:
    """What is answered, but for a refusal."""
    reader, writer = await asyncio.open_connection(host, port, ssl=by.world.stack.context)
    writer.write(data)
    try:
        async with asyncio.timeout(DEADLINE_S):
            answer = await reader.read(1 << 16)
    except (ConnectionError, TimeoutError):
        answer = b""
    writer.close()
    return b"" if b"denied" in answer else answer


@ATTACKS
async def a_name_made_for_the_operators_terminal(by: Attacker) -> None:
    for title in ("\x1b]0;owned\x07\x1b[2J", "[link=https://evil.example]session expired[/link]", "my run [/]", "\u202egnp.exe", "a\nb\rc"):
        opened = await by.opened(title=title)
        await by.close(opened.session)
    stack = by.world.stack
    status, text = by.rest("GET", "/api/v1/tasks?limit=100", key=stack.admin)
    assert status == 200 and b"\\u001b" not in text and b"\x1b" not in text and "\u202e".encode() not in text


@ATTACKS
async def an_exclusive_device_beside_others(by: Attacker) -> None:
    asked = OpenSession(f"{by.me}-alone", by.tenant, "", 0, (0,), 1 << 20, exclusive=True)
    assert msgspec.msgpack.decode(await by.request("open", encode(asked)))["fault"] is not None


@ATTACKS
async def an_exclusive_device_without_the_right(by: Attacker) -> None:
    """Of a tier whose tasks share devices: neither by a task, nor by a session that names none."""
    tier = f"/api/v1/billing/tenants/{by.tenant}/tier"
    by.world.stack.ask("PUT", tier, {"tier": "basic"}, service="billing")
    by.refused("POST", "/api/v1/tasks", {"required_vram_mb": 1, "title": "x", "gpu_mode": "Exclusive", "priority": 3})
    until_s = time.monotonic() + DEADLINE_S
    while (fault := (await by.open(exclusive=True)).fault) is None or fault.name != faults.ACCESS_DENIED:
        assert time.monotonic() < until_s, fault
        await asyncio.sleep(0.2)  # until the node has heard of the tier
    by.world.stack.ask("PUT", tier, {"tier": "standard"}, service="billing")


@ATTACKS
async def the_victims_session_named_as_the_one_replaced(by: Attacker) -> None:
    """A client says whose place its session takes and what it repeats. Of another's session nothing follows from that."""
    assert (await by.open(replaces=by.victim.name, exclusive=True)).fault is not None
    claims: tuple[dict[str, Any], ...] = (
        {"replaces": by.victim.name, "origin": by.victim.name, "repeats": 2**61, "skips": -(2**61)},
        {"replaces": by.victim.name, "origin": "*", "repeats": 2**61, "skips": 2**61},
        {"replaces": "../x", "origin": ">", "skips": 1},
    )
    for fields in claims:
        opened = await by.opened(**fields)
        await by.send(opened.session, batch(opened.session, 1, epoch=opened.epoch, allocs=((1, 64),)))
        await by.close(opened.session)
    claims = (
        {"repeats": -1},
        {"repeats": 2**62},
        {"shared": -1},
        {"shared": 2**62},
        {"origin": "x" * 65},
        {"replaces": "x" * 65},
        {"replaces": by.victim.name, "task": "x"},
    )
    for fields in claims:
        assert (await by.open(**fields)).fault is not None, fields


@ATTACKS
async def ends_and_outcomes_of_the_victims_session(by: Attacker) -> None:
    """Said to be displaced, lost or failed: the node asks whose it is."""
    for reason in ("displaced", "lease", "cancelled", "executor_lost"):
        for outcome in (None, Outcome(1, "RuntimeError"), Outcome(0, "", 9), Outcome(lost=True)):
            asked = encode(CloseSession(by.victim.name, reason, -1, outcome))
            assert msgspec.msgpack.decode(await by.request("close", asked), type=SessionClosed).launches == 0


@ATTACKS
async def weights_claimed_by_their_digest(by: Attacker) -> None:
    """Bytes that only the victim's tenant has: neither a session that shares content nor the model cache gives them for their name."""
    weights = secrets.token_bytes(100_000)
    digest = blake3(weights).digest()
    mine, theirs = await _door(by, by.bus, by.me, by.tenant), None
    async with line(by.world.stack, by.world.b) as bus:
        theirs = await _door(by, bus, by.world.names.b, "best")

    def claim() -> None:
        tensors = (ModelTensor("w", "U8", (len(weights),), len(weights), (digest,)),)
        manifest = encode_manifest(ModelManifest("base", "", tensors))
        theirs.put([memoryview(weights), memoryview(manifest)])
        assert theirs.ask(Keep(blake3(manifest).digest())) == Kept()
        assert mine.ask(Have((digest, blake3(manifest).digest()))) == Had(b"\0\0")
        mine.put([memoryview(manifest)])
        with pytest.raises(WoolyError, match="a chunk is not there"):
            mine.ask(Keep(blake3(manifest).digest()))
        for request in (Models(), Forget("base")):
            with contextlib.suppress(WoolyError):
                listed = mine.ask(request)
                assert isinstance(listed, Listed) and not listed.models
        assert theirs.ask(Have((digest,))) == Had(b"\1")
        theirs.ask(Forget("base"))
        mine.close()
        theirs.close()

    await asyncio.to_thread(claim)
    opened = await by.opened(dedup=True)
    answers = await dones(by, opened.session)
    await by.send(opened.session, batch(opened.session, epoch=opened.epoch, uploads=(Upload(1, len(weights), b"", (digest,)),)))
    done = await asyncio.wait_for(answers.get(), DEADLINE_S)
    assert digest in done.needs or done.fault is not None, done
    await by.close(opened.session)


async def _door(by: Attacker, bus: Line, principal: str, tenant: str) -> DataPort:
    """A connection to the model cache of ``tenant``."""
    subject = subjects.node_request(by.node, MODELS_VERB, principal)
    answer = await bus.client.request(subject, encode(OpenModelCache(tenant, 0)), timeout=DEADLINE_S)
    opened = msgspec.msgpack.decode(answer.data, type=ModelCacheOpened)
    assert opened.fault is None, opened.fault
    return DataPort([one for one in opened.data_port if one.startswith("tls:")], opened.name, opened.token, by.world.stack.context)


@ATTACKS
async def doors_of_other_tenants_and_times(by: Attacker) -> None:
    """The name of a door says for whom and until when it is: with another one in it its token opens nothing."""
    asked = encode(OpenModelCache("best", 0))  # of a tenant that the key is not of: the node takes its own
    opened = msgspec.msgpack.decode(await by.request(MODELS_VERB, asked), type=ModelCacheOpened)
    assert opened.fault is None and opened.name.endswith(f" {by.tenant}"), opened
    kind, until_s, salt, domain = opened.name.split(" ", 3)
    host, port, _, _ = await port_of(by)
    for name in (
        f"{kind} {until_s} {salt} best",
        f"{kind} {int(until_s) + 1} {salt} {domain}",
        f"{kind} {until_s} {salt} {domain} best",
        f"{kind} x {salt} {domain}",
        f"{kind} {'9' * 3000} {salt} {domain}",
        by.victim.name,
    ):
        assert not await _heard(by, host, port, frame(Hello(name, opened.token))), name[:80]


@ATTACKS
async def inboxes_by_wildcard_and_by_queue(by: Attacker) -> None:
    """A queue group takes part of what others hear, so it needs the same permission."""
    inbox, done = subjects.inbox_prefix(by.world.names.b), subjects.session_done("*", by.world.names.b)
    subjects_ = ("*.>", "*.*", f"{inbox}.*", done, "wooly.session.*.*.*.done", "wooly.run.>", "_R_.>", "$JS.ACK.>")
    for queue in ("", "wooly-controllers", "x"):
        for subject in subjects_:
            await by.bus.client.subscribe(subject, queue=queue)
    await by.bus.client.subscribe(END)
    await settled(by.bus, "subscription")
    for subject in subjects_:
        assert any(f'"{subject.lower()}"' in text.lower() for text in by.bus.refused), subject


@ATTACKS
async def runs_and_their_logs_on_the_bus(by: Attacker) -> None:
    """Scripts, their states, their output and the runners' requests, which carry keys in the answers."""
    task = by.victim.task
    subjects_ = (
        *(f"wooly.run.{kind}.{task}" for kind in ("log", "script", "state")),
        *(f"wooly.run.{kind}.local" for kind in ("beat", "req.sync", "req.report")),
        "wooly.access.gone",
        f"wooly.access.who.{by.node}",
        f"wooly.access.read.{by.world.names.key1}",
        "wooly.lease.best",
        f"wooly.billing.req.allow.{by.node}",
    )
    asked = encode({"runner": "local", "instance": "x", "slots": 1, "free": True})
    for subject in (*subjects_, END):
        await by.bus.client.publish(subject, asked, reply=by.bus.client.new_inbox())
    await settled(by.bus, "publish")
    assert all(refused(by.bus.refused, "publish", subject) for subject in subjects_), by.bus.refused


@ATTACKS
async def numbers_that_no_program_takes(by: Attacker) -> None:
    """Scalars, dims and handles, too many, too few and without sense, for a program that is right."""
    opened = await by.opened(vram_bytes=8 << 20)
    answers = await dones(by, opened.session)
    builder = Builder()
    x = builder.external(DType.F64, (8,))
    builder.emit("add", x, (x, builder.const(1.0, DType.F64)))
    flush = Program(builder).flush([1])
    right: dict[str, Any] = {
        "program": flush.program,
        "program_body": flush.program_body,
        "dims": flush.dims_digest,
        "dims_body": flush.dims,
    }
    cases: tuple[dict[str, Any], ...] = (
        {"scalars": (float("nan"), float("inf"), -0.0) * 1000},
        {"scalars": (2**63 - 1,) * 50_000},
        {"handles": b""},
        {"handles": pack_handles([1, 2, 3])},
        {"handles": pack_handles([-1])},
        {"handles": zlib.compress(bytes(1 << 20))},
        {"handles": b"\x78"},
        {"dims_body": flush.dims + bytes(8)},
        {"dims_body": bytes(len(flush.dims))},
        {"dims_body": b"", "dims_delta": (flush.dims_digest, b"\xff" * 400, b"\xff" * 800)},
        {"kernels": (b"", b"\x91" * 1000)},
        {"program_body": flush.program_body[:-3]},
    )
    for seq, fields in enumerate(cases, 1):
        said = right | {"handles": pack_handles([1])} | fields
        await by.send(opened.session, batch(opened.session, seq, epoch=opened.epoch, allocs=((seq, 64),), **said))
        done = await asyncio.wait_for(answers.get(), DEADLINE_S)
        assert done.fault is not None or done.needs, (seq, done)
    await by.close(opened.session)
