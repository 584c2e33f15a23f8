"""What costs the stack more than it costs a member of another tenant: requests, connections and files that are begun and never used."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import secrets
import socket
import time
import urllib.parse
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import msgspec
import nats.errors
from blake3 import blake3

from bus_schemas import faults, subjects
from bus_schemas.batch import Batch, Read, Upload, encode_batch
from bus_schemas.dataport import (
    MODELS_VERB,
    Denied,
    Forget,
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
    Welcome,
    decode_answer,
    encode_manifest,
)
from bus_schemas.frames import HEAD, frame
from bus_schemas.quotas import QUOTAS
from bus_schemas.session import CloseSession, OpenSession, Ping
from tests.adversarial.stack.bus_attacks import batch, dones, port_of
from tests.adversarial.stack.field import Attacker, Attacks, encode, program_of
from tests.support.builder import Builder
from tests.support.node import Program, beyond_its_table
from tests.support.world import DEADLINE_S
from wis.dtypes import DType
from wooly.transport.batches import pack_handles
from wooly.transport.data_port import DataPort

ATTACKS: Final = Attacks()

_TASK: Final = {"required_vram_mb": 1, "title": "costs"}


async def _greeted(by: Attacker, host: str, port: int, hello: Hello) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to the data port that was let in."""
    reader, writer = await asyncio.open_connection(host, port, ssl=by.world.stack.context)
    writer.write(frame(hello))
    async with asyncio.timeout(DEADLINE_S):
        (length,) = HEAD.unpack(await reader.readexactly(HEAD.size))
        assert decode_answer(await reader.readexactly(length)) == Welcome()
    return reader, writer


@ATTACKS
async def chunks_that_never_end(by: Attacker) -> None:
    """Over TLS, all but a byte of each: what comes counts for the tenant, and a session has eight connections."""
    held, sessions = [], []
    for _ in range(4):
        host, port, session, token = await port_of(by)
        sessions.append(session)
        for _ in range(10):
            _, writer = await _greeted(by, host, port, Hello(session, token))
            writer.write(frame(Put(secrets.token_bytes(32), 4 << 20)) + bytes((1 << 20) - 1))
            held.append(writer)
    for writer in held:
        writer.write(b"x")
    await asyncio.sleep(1)
    for writer in held:
        writer.close()
    for session in sessions:
        await by.close(session)


@ATTACKS
async def handshakes_that_never_begin(by: Attacker) -> None:
    """Silent connections to the data port, more than it lets in at a time: one that speaks is let in beside them."""
    host, port, session, token = await port_of(by)
    silent: list[socket.socket] = []

    def flood() -> None:
        with contextlib.suppress(OSError):
            silent.extend(socket.create_connection((host, port), DEADLINE_S) for _ in range(1500))

    await asyncio.to_thread(flood)
    _, writer = await _greeted(by, host, port, Hello(session, token))
    writer.close()
    for connection in silent:
        connection.close()
    await by.close(session)


@ATTACKS
async def requests_of_fifteen_megabytes(by: Attacker) -> None:
    """Of fields that no request has, and of one that is too long."""
    many = b"\xdf" + (5 << 20).to_bytes(4, "big") + b"\xa1a\xc0" * (5 << 20)
    for verb in ("ping", "open", "close", MODELS_VERB):
        for _ in range(4):
            await by.bus.client.publish(subjects.node_request(by.node, verb, by.me), many, reply=f"{subjects.inbox_prefix(by.me)}.x.y")
    opened = await by.open(title="x" * (15 << 20))
    assert opened.fault is not None and opened.fault.name == faults.MALFORMED


async def _answered(by: Attacker) -> None:
    """Return once the node answers the attacker's key again."""
    until_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < until_s:
        with contextlib.suppress(nats.errors.TimeoutError):
            await by.bus.client.request(subjects.node_request(by.node, "ping", by.me), encode(Ping()), timeout=2)
            return
    raise AssertionError("the key is not answered any more")


@ATTACKS
async def more_requests_than_a_key_may_send(by: Attacker) -> None:
    """They are not answered; later ones are."""
    heard = await by.bus.client.subscribe(inbox := by.bus.client.new_inbox())
    sent = 2 * QUOTAS["requests"].limit
    for _ in range(sent):
        await by.bus.client.publish(subjects.node_request(by.node, "ping", by.me), encode(Ping()), reply=inbox)
    await by.bus.client.flush()
    await _answered(by)
    assert heard.pending_msgs < sent


@ATTACKS
async def answers_asked_for_again_without_end(by: Attacker) -> None:
    """Thirty answers of 60 KB for each ping: they leave one after the other."""
    opened = await by.opened(vram_bytes=8 << 20)
    answers = await dones(by, opened.session)
    await by.send(opened.session, batch(opened.session, 1, epoch=opened.epoch, allocs=((1, 60_000),)))
    for seq in range(2, 31):
        await by.send(opened.session, batch(opened.session, seq, epoch=opened.epoch, reads=(Read(0, 1, 0, 60_000),)))
    for _ in range(30):
        await asyncio.wait_for(answers.get(), DEADLINE_S)
    ping = encode(Ping(opened.session, 0))
    for _ in range(2000):
        await by.bus.client.publish(subjects.node_request(by.node, "ping", by.me), ping, reply=f"{subjects.inbox_prefix(by.me)}.x.y")
    await by.bus.client.flush()
    await _answered(by)
    await by.close(opened.session)


@ATTACKS
async def long_programs_that_are_new_in_every_batch(by: Attacker) -> None:
    """Each is named in the journal, which reads all of it."""
    opened = await by.opened()
    messages = []
    for number in range(60):
        builder = Builder()
        x = builder.external(DType.F64, (16,))
        builder.emit("add", x, (x, builder.const(float(number), DType.F64)))
        for _ in range(8000):
            builder.emit("add", x, (x, x))
        flush = Program(builder).flush([1])
        named: dict[str, Any] = {"program": flush.program, "program_body": flush.program_body}
        named |= {"dims": flush.dims_digest, "dims_body": flush.dims, "handles": pack_handles([1])}
        messages.append(batch(opened.session, number + 1, epoch=opened.epoch, **named))
    await by.send(opened.session, *messages)
    await by.close(opened.session)


@ATTACKS
async def ten_thousand_uploads_in_every_message(by: Attacker) -> None:
    opened = await by.opened()
    uploads = tuple(Upload(at, 1, b"") for at in range(10_000))
    await by.send(opened.session, *(encode_batch(Batch(opened.session, opened.epoch, seq, uploads=uploads)) for seq in range(1, 120)))
    await by.close(opened.session)


async def _cache(by: Attacker) -> DataPort:
    """A connection to the model cache of the attacker's tenant."""
    opened = msgspec.msgpack.decode(await by.request(MODELS_VERB, encode(OpenModelCache(by.tenant, 0))), type=ModelCacheOpened)
    assert opened.fault is None, opened.fault
    return DataPort([one for one in opened.data_port if one.startswith("tls:")], opened.name, opened.token, by.world.stack.context)


@ATTACKS
async def models_of_nothing(by: Attacker) -> None:
    """Long lists of tensors without a byte, which no quota of bytes counts, until the cache takes no more."""

    def keep(port: DataPort) -> str:
        kept = []
        tensors = tuple(ModelTensor(f"t{at}" + "x" * 40, "U8", (0,), 0, ()) for at in range(60_000))
        try:
            for number in range(8):
                data = encode_manifest(ModelManifest(f"nothing-{number}", "", tensors))
                port.put([memoryview(data)])
                if port.ask(Keep(blake3(data).digest())) == Kept():
                    kept.append(f"nothing-{number}")
        except Exception as error:
            return str(error)
        finally:
            listed = port.ask(Models())
            assert isinstance(listed, Listed) and {model.name for model in listed.models} == set(kept)
            for name in kept:
                port.ask(Forget(name))
            port.close()
        return ""

    assert "lists of tensors" in await asyncio.to_thread(keep, await _cache(by))


@ATTACKS
async def chunks_of_a_byte_and_names_of_models(by: Attacker) -> None:
    """What is put for no model is there until the connection ends; a name is a name, and no path."""

    def put(port: DataPort) -> None:
        for at in range(0, 512, 64):
            port.put([memoryview(number.to_bytes(4, "little")) for number in range(at, at + 64)])
        for name in ("", "../../x", "/etc/passwd", "a\x00b", "\x1b[2J", "x" * 100_000, "..", "a b"):
            data = encode_manifest(ModelManifest(name, "", ()))
            with contextlib.suppress(Exception):
                port.put([memoryview(data)])
                assert port.ask(Keep(blake3(data).digest())) != Kept(), name
        listed = port.ask(Models())
        assert isinstance(listed, Listed) and not listed.models
        port.close()

    await asyncio.to_thread(put, await _cache(by))


@ATTACKS
async def reservations_for_a_day_that_never_start(by: Attacker) -> None:
    """Of the whole device and of nearly all of its memory. They are billed from their placement on."""
    made = []
    for fields in ({"gpu_mode": "Exclusive"}, {"required_vram_mb": 64}):
        for _ in range(5):
            body = _TASK | {"reservation": True, "queue": True, "start_lease_ms": 86_400_000} | fields
            status, text = by.rest("POST", "/api/v1/tasks", body)
            assert status < 500, text[:300]
            made += [json.loads(text)["id"]] if status < 300 else []
    assert made
    status, text = by.rest("POST", "/api/v1/tasks", _TASK, key=by.world.b)
    assert status < 300 and json.loads(text)["placement"]["state"] == "placed", text[:300]
    by.rest("POST", f"/api/v1/tasks/{json.loads(text)['id']}/cancel", key=by.world.b)
    for task in made:
        by.rest("POST", f"/api/v1/tasks/{task}/release")

    def billed() -> bool:
        rows = by.world.stack.ask("GET", f"/api/v1/billing/credits?by=model&tenant={by.tenant}", service="billing")["items"]
        return any(row["key"] == "(held, not started)" and row["byte_ms"] for row in rows)

    until_s = time.monotonic() + DEADLINE_S
    while not await asyncio.to_thread(billed):
        assert time.monotonic() < until_s, "nothing was charged"
        await asyncio.sleep(0.2)


@ATTACKS
async def work_that_is_said_to_be_repeated(by: Attacker) -> None:
    """A session ends with a fault of its own, and its client says that it was displaced: what the next one does is charged all the same."""
    status, text = by.rest("POST", "/api/v1/tasks", _TASK | {"required_vram_mb": 16, "queue": True})
    assert status < 300, text[:300]
    task, before = json.loads(text)["id"], ""
    flushes = [*[program_of(512).flush([1])] * 20, beyond_its_table().flush([2, 3])]
    for _ in range(2):
        claims = {"replaces": before, "origin": before, "repeats": 2**61} if before else {}
        opened = await by.opened(task=task, vram_bytes=16 << 20, **claims)
        answers = await dones(by, opened.session)
        await by.send(opened.session, batch(opened.session, 1, epoch=opened.epoch, allocs=((1, 8 * 512), (2, 8))))
        for seq, flush in enumerate(flushes, 2):
            named: dict[str, Any] = {"program": flush.program, "program_body": flush.program_body, "scalars": tuple(flush.scalars)}
            named |= {"dims": flush.dims_digest, "dims_body": flush.dims, "handles": pack_handles(flush.handles)}
            await by.send(opened.session, batch(opened.session, seq, epoch=opened.epoch, **named))
        found = [await asyncio.wait_for(answers.get(), DEADLINE_S) for _ in range(len(flushes) + 1)]
        assert [done.fault is None for done in found] == [True] * len(flushes) + [False], found
        await by.request("close", encode(CloseSession(opened.session, "displaced", -1)))
        before = opened.session

    def used() -> dict[str, Any]:
        rows = by.world.stack.ask("GET", f"/api/v1/billing/credits?by=task&task={task}", service="billing")["items"]
        return next((row for row in rows if row["launches"] == 2 * len(flushes)), {})

    until_s = time.monotonic() + DEADLINE_S
    while not (found_row := await asyncio.to_thread(used)):
        assert time.monotonic() < until_s, "it is not in the bill"
        await asyncio.sleep(0.2)
    assert not found_row["recovered_ns"], found_row


@ATTACKS
async def changes_without_end(by: Attacker) -> None:
    """A priority that goes up and down is recorded for ever, with who did it."""
    status, text = by.rest("POST", "/api/v1/tasks", _TASK | {"queue": True})
    assert status < 300, text[:300]
    task = f"/api/v1/tasks/{json.loads(text)['id']}"

    def changes(_: int) -> set[int]:
        """On one connection, until one is refused: more come in a second than are regained."""
        parts = urllib.parse.urlsplit(by.world.stack.addresses["controller"])
        connection = http.client.HTTPSConnection(parts.netloc, context=by.world.stack.context, timeout=60)
        said = {"Authorization": f"Bearer {by.key}", "Content-Type": "application/json"}
        found: set[int] = set()
        for number in range(4 * QUOTAS["changes"].limit):
            connection.request("PATCH", task if number % 50 == 0 else f"{task}-not", json.dumps({"priority": 3 + number // 50 % 2}), said)
            answer = connection.getresponse()
            answer.read()
            found.add(answer.status)
            if answer.status == 429:
                break
        connection.close()
        return found

    with ThreadPoolExecutor(8) as threads:
        found = set[int]().union(*threads.map(changes, range(8)))
    assert 429 in found and found <= {200, 404, 409, 429}, found
    until_s = time.monotonic() + DEADLINE_S
    while by.rest("POST", f"{task}/cancel")[0] == 429:
        assert time.monotonic() < until_s
        await asyncio.sleep(0.2)


@ATTACKS
async def journals_run_again_for_forty_callers(by: Attacker) -> None:
    """The story of a task costs a process: few run at a time, and others are asked to come again."""
    tasks = json.loads(by.rest("GET", "/api/v1/tasks?limit=40")[1])["items"]
    paths = [f"/api/v1/tasks/{task['id']}/{what}" for task in tasks for what in ("waits", "timeline")] * 2

    def ask(path: str) -> int:
        return by.rest("GET", path)[0]

    with ThreadPoolExecutor(20) as threads:
        asking = [threads.submit(ask, path) for path in paths[:80]]
        assert (await asyncio.to_thread(by.rest, "GET", "/health", key=""))[0] == 200
        assert {one.result() for one in asking} <= {200, 404, 409, 429, 503}


@ATTACKS
async def queries_of_every_length(by: Attacker) -> None:
    for query in (
        "title=" + "x" * 60_000,
        "tenant=" + "%00" * 1000,
        "state=" + ",".join(["queued"] * 10_000),
        "limit=1000&offset=9223372036854775807",
        "limit=1000&" * 2000,
        "q=" + "(" * 5000,
        "sort=" + "-" * 5000,
    ):
        status, text = by.rest("GET", f"/api/v1/tasks?{query}")
        assert status < 500 and b"Traceback" not in text, (query[:40], status)


@ATTACKS
async def sessions_that_are_opened_and_never_answered_for(by: Attacker) -> None:
    """Opens whose answers go nowhere, beside one that is wanted: beyond the quota none is opened, and it says so."""
    for _ in range(1200):
        asked = OpenSession(f"{by.me}-lost{by.fresh()}", by.tenant, "", 3, (0,), 1 << 20)
        await by.bus.client.publish(subjects.node_request(by.node, "open", by.me), encode(asked))
    await by.bus.client.flush()
    opened = await by.open()
    assert opened.fault is None or opened.fault.excess is not None


@ATTACKS
async def a_refusal_tells_nothing_of_others(by: Attacker) -> None:
    """Of a quota, of the device that is taken, of a task that is another's."""
    for fields in ({"exclusive": True}, {"task": by.victim.task}, {"session": by.victim.name}, {"vram_bytes": 1 << 60}):
        fault = (await by.open(**fields)).fault
        assert fault is not None
        assert "best" not in fault.message and by.victim.name not in fault.message.replace(str(fields.get("session")), ""), fault.message
    host, port, session, token = await port_of(by)
    reader, writer = await _greeted(by, host, port, Hello(session, token))
    writer.write(frame(Put(bytes(32), 1)) + b"x")
    (length,) = HEAD.unpack(await reader.readexactly(HEAD.size))
    answer = decode_answer(await reader.readexactly(length))
    assert isinstance(answer, Denied) and "best" not in answer.message
    writer.close()
    await by.close(session)
