"""What a node does with bad input: each message is published raw, as a broken or hostile client would, past our own session code."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pytest
from blake3 import blake3

from bus_schemas import faults, subjects
from bus_schemas.batch import LIMITS, Batch, Done, Read, Upload, decode_done, encode_batch
from bus_schemas.events import UsageRecorded
from bus_schemas.limits import SEQ_MAX
from bus_schemas.session import CloseSession, OpenSession, Ping, Pong, SessionClosed, SessionOpened
from services.kit.bus import Bus, connect
from tests.support.builder import Builder
from tests.support.node import DEADLINE_S, Node, Program, add_one, asked, floats, history, increment
from wis.dtypes import DType
from wis.encoding import encode_program
from wooly.transport.batches import pack_handles

encode = msgspec.msgpack.encode


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node(tmp_path_factory.mktemp("node")) as node:
        yield node


@dataclass
class Raw:
    """A session spoken by hand."""

    bus: Bus
    node: str
    name: str
    epoch: int
    dones: asyncio.Queue[Done] = field(default_factory=asyncio.Queue)

    async def publish(self, data: bytes) -> None:
        await self.bus.publish(subjects.batch_subject(self.node, self.name), data)

    async def send(self, seq: int, **fields: Any) -> None:
        await self.publish(encode_batch(Batch(**({"session": self.name, "epoch": self.epoch, "seq": seq} | fields))))

    async def done(self) -> Done:
        return await asyncio.wait_for(self.dones.get(), DEADLINE_S)

    async def fault(self) -> Any:
        fault = (await self.done()).fault
        assert fault is not None
        return fault

    async def ask(self, seq: int, **fields: Any) -> Done:
        await self.send(seq, **fields)
        return await self.done()

    async def ping(self, seq_seen: int = -1, image: int = 0) -> Pong:
        return await asked(self.bus, subjects.node_request(self.node, "ping"), encode(Ping(self.name, seq_seen, image)), Pong)

    async def close(self) -> None:
        await self.bus.request(subjects.node_request(self.node, "close"), encode(CloseSession(self.name, last_seq=-1)), DEADLINE_S)
        await self.bus.close()


COUNT = iter(range(10**6))


def check(node: Node, scenario: Any, vram_bytes: int = 0) -> None:
    """Run ``scenario(raw)`` on a session of its own, then check that the node still works for other sessions."""

    async def body() -> None:
        bus = await connect(node.nats.url, name="raw")
        info = node_id
        name = f"raw{next(COUNT)}"
        opening = OpenSession(name, "tenant", "", 0, (0,), vram_bytes)
        opened = await asked(bus, subjects.node_request(info, "open"), encode(opening), SessionOpened)
        raw = Raw(bus, info, name, opened.epoch)

        async def on_done(subject: str, data: bytes) -> None:
            raw.dones.put_nowait(decode_done(data))

        await bus.subscribe(subjects.session_done(name), on_done)
        await bus.nc.flush()
        try:
            await scenario(raw)
        finally:
            await raw.close()

    node_id = node.info().node
    asyncio.run(body())
    session = node.open()
    session.wait(session.submit(Bystander.flush([1, 2], allocs=[(1, 128)])))
    session.close()


Bystander = add_one()


def program_fields(program: Program, handles: list[int]) -> dict[str, Any]:
    return {
        "program": program.digest,
        "dims": program.dims_digest,
        "program_body": program.body,
        "dims_body": program.dims,
        "scalars": tuple(program.scalars),
        "handles": pack_handles(handles),
    }


ZEROS = Upload(1, 128, bytes(128))


def nested(depth: int) -> bytes:
    """A batch with a field behind the last one: an array in an array in an array ..."""
    return b"\xdc\x00\x13" + encode_batch(Batch("x", 1, 1))[3:] + b"\x91" * depth + b"\x90"


class TestRefused:
    @pytest.mark.parametrize(
        "data",
        [
            b"", b"\xff\x00garbage", encode_batch(Batch("x", 1, 1))[:-3], encode({"session": "x"}),
            nested(5_000), zlib.compress(nested(5_000)), zlib.compress(nested(200_000)),
        ],
        ids=range(7),
    )  # fmt: skip
    def test_not_a_batch(self, node: Node, data: bytes) -> None:
        async def scenario(raw: Raw) -> None:
            await raw.publish(data)
            fault = await raw.fault()
            assert fault.name == "MalformedBatch"
            assert fault.places[0].startswith("encoding @ batch:")
            assert (await raw.ping()).seq_done == 0

        check(node, scenario)

    def test_a_request_that_is_nested_deeply(self, node: Node) -> None:
        async def scenario(raw: Raw) -> None:
            data = b"\x81\xa1x" + b"\x91" * 5_000 + b"\x90"
            opened = await asked(raw.bus, subjects.node_request(raw.node, "open"), data, SessionOpened)
            assert opened.fault is not None and opened.fault.name == "MalformedBatch"
            await raw.bus.nc.publish(subjects.node_request(raw.node, "close"), data)
            assert (await raw.ping()).session_known

        check(node, scenario)

    def test_oversized(self, node: Node) -> None:
        async def scenario(raw: Raw) -> None:
            await raw.publish(bytes(LIMITS.batch_bytes_max + 1))
            fault = await raw.fault()
            assert fault.name == "OversizedBatch"
            assert str(LIMITS.batch_bytes_max) in fault.places[0]

        check(node, scenario)

    def test_a_flood_of_costly_messages_waits_behind_the_steps_of_others(self, node: Node) -> None:
        """Eight kilobytes each on the bus and eight megabytes to read: they are read on their own tenant's budget."""
        message = zlib.compress(encode_batch(Batch("flood", 1, 1, uploads=(Upload(1, 0, b"", (b"",) * 2_000_000),))))
        opened = node.ask("open", OpenSession("flood", "another", "", 4, (0,), 0), SessionOpened)
        assert opened.fault is None
        before = node.stats().batches_refused

        async def flood(bus: Bus) -> None:
            for _ in range(100):
                await bus.publish(subjects.batch_subject(node_id, "flood"), message)
            await bus.nc.flush()

        node_id = node.info().node
        node.run(flood)
        session = node.open()
        session.wait(session.submit(Bystander.flush([1, 2], allocs=[(1, 128)])))
        for at in range(3, 13):
            session.wait(session.submit(Bystander.flush([1, at])))
        assert node.stats().batches_refused - before < 50
        node.ask("close", CloseSession("flood", "done", -1), SessionClosed)

    def test_every_contradiction_is_named_with_its_place(self, node: Node) -> None:
        async def scenario(raw: Raw) -> None:
            await raw.send(1, session="other", program=b"short", uploads=(Upload(1, 4, chunks=(b"x",)),))
            places = (await raw.fault()).places
            assert [place.split(":")[0] for place in places] == [
                "session @ batch", "digest @ program", "digest @ dims", "digest @ upload 0",
            ]  # fmt: skip

        check(node, scenario)

    def test_an_unverifiable_program_says_rule_and_place(self, node: Node) -> None:
        """Claims a buffer smaller than what it touches: the check that keeps tenants apart."""
        builder = Builder()
        x = builder.external(DType.F64, (16,), nbytes=8)
        builder.emit("add", x, (x, x))
        broken = Program(builder)

        async def scenario(raw: Raw) -> None:
            assert (await raw.ask(1, uploads=(ZEROS,))).fault is None
            await raw.send(2, **program_fields(broken, [1]))
            fault = await raw.fault()
            assert fault.name == "UnverifiableProgram"
            assert "@ code 0" in fault.places[0]

        check(node, scenario)

    def test_a_body_that_is_not_what_its_digest_says(self, node: Node) -> None:
        async def scenario(raw: Raw) -> None:
            fields = program_fields(increment(15), [1])
            fields["program_body"] = encode_program(Builder().finish()[0])
            await raw.ask(1, uploads=(ZEROS,))
            await raw.send(2, **fields)
            assert "does not match its digest" in (await raw.fault()).message

        check(node, scenario)

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"reads": (Read(0, 1, 120, 16),)}, "reach outside buffer 1"),
            ({"reads": (Read(0, 5, 0, 1),)}, "no buffer 5"),
            ({"frees": (5,)}, "no buffer 5"),
            ({"frees": (1, 1)}, "freed twice"),
            ({"allocs": ((1, 8),)}, "in use already"),
            ({"allocs": ((2, -8),)}, "bytes, not -8"),
            ({"uploads": (Upload(2, 9, b"12345678"),)}, "9 bytes announced, 8 came"),
            ({"scalars": (1,)}, "without a program"),
            (program_fields(increment(), [1]) | {"handles": pack_handles([1, 2])}, "1 buffers to name"),
            (program_fields(increment(), [1]) | {"handles": b"not zlib"}, "cannot be inflated"),
            (program_fields(increment(), [1]) | {"handles": zlib.compress(bytes(64 << 20))}, "1 buffers to name"),
            (program_fields(increment(), [1]) | {"scalars": ()}, "takes 1 scalars"),
            (program_fields(increment(17), [1]), "has 128 bytes, the program needs 136"),
            (program_fields(add_one(), [1, 1]), "in use already"),
            ({"allocs": ((2, 64 << 20),), "reads": (Read(0, 2, 0, 64 << 20),) * 40}, "quota staged_bytes"),
        ],
    )
    def test_a_refused_batch_has_no_effect(self, node: Node, fields: dict[str, Any], message: str) -> None:
        """Whatever else such a batch asks for is not done either; but what it drops is dropped."""

        async def scenario(raw: Raw) -> None:
            before = await raw.ask(1, uploads=(ZEROS,))
            harmless = {"allocs": ((77, 1 << 20), *fields.get("allocs", ()))}
            await raw.send(2, **(fields | harmless))
            done = await raw.done()
            assert done.fault is not None
            assert message in done.fault.message
            assert done.resident_bytes == (0 if 1 in fields.get("frees", ()) else before.resident_bytes)

        check(node, scenario)

    def test_what_are_no_dims_is_not_remembered(self, node: Node) -> None:
        """Dims are kept before a program looks at them: a delta on these is asked for whole, like one on dims never sent."""

        async def scenario(raw: Raw) -> None:
            odd = b"abc"
            fields = program_fields(increment(19), [1])
            await raw.send(1, **(fields | {"dims": blake3(odd).digest(), "dims_body": odd}))
            fault = await raw.fault()
            assert (fault.name, fault.message) == ("MalformedBatch", "dims of 3 bytes are no numbers of 64 bits")
            delta = (blake3(odd).digest(), bytes(4), bytes(8))
            await raw.send(2, **(fields | {"dims": bytes(32), "dims_body": b"", "dims_delta": delta}))
            done = await raw.done()
            assert (done.seq, done.needs) == (2, (bytes(32),))

        check(node, scenario)

    def test_a_quota_covers_temporaries(self, node: Node) -> None:
        """A program could otherwise use a node's memory up without a buffer to its name."""
        builder = Builder()
        x, t, y = builder.external(DType.F64, (1 << 17,)), builder.temp(DType.F64, (1 << 17,)), builder.created(DType.F64, (1 << 17,))
        builder.emit("cumsum", t, [x], (0,))
        builder.emit("cumsum", y, [t], (0,))
        fields = program_fields(Program(builder), [1, 2]) | {"allocs": ((1, 1 << 20),)}

        async def scenario(raw: Raw) -> None:
            await raw.send(1, **fields)
            fault = await raw.fault()
            assert (fault.name, fault.fatal) == ("QuotaExceeded", False)
            assert "request for 3.00 MiB does not fit the task's quota of 2.50 MiB, of which 0.00 MiB is in use" in fault.message
            assert (await raw.ask(2, allocs=((1, 5 << 19),))).fault is None

        check(node, scenario, vram_bytes=5 << 19)

    def test_what_goes_on_after_a_refusal_for_lack_of_memory(self, node: Node) -> None:
        """A client sends ahead, and a program may catch the error: what was lost is refused in the same words, all else is as it was."""
        size, mib = 1 << 17, 1 << 20
        read = {handle: {"reads": (Read(0, handle, 0, mib),)} for handle in (1, 2, 3, 4)}
        builder = Builder()
        x, y = builder.external(DType.F64, (size,)), builder.created(DType.F64, (size,))
        builder.emit("cumsum", y, [x], (0,))
        made = program_fields(Program(builder), [3, 4])

        def lost(done: Done) -> bool:
            fault = done.fault
            return (
                fault is not None
                and (fault.name, fault.fatal) == ("QuotaExceeded", False)
                and "refused for lack of memory" in fault.message
            )

        async def scenario(raw: Raw) -> None:
            assert (await raw.ask(1, allocs=((1, mib), (2, mib), (5, mib)))).fault is None
            await raw.send(2, **program_fields(increment(size), [1]), allocs=((3, 8 * mib),), frees=(5,))
            for seq, fields in enumerate((made, read[1], read[3], read[4], program_fields(increment(size), [1])), 3):
                await raw.send(seq, **fields)
            refused = await raw.done()
            assert refused.fault is not None and (refused.fault.name, refused.fault.fatal) == ("QuotaExceeded", False)
            assert refused.resident_bytes == 2 * mib, "what it would have freed is freed"
            assert [lost(await raw.done()) for _ in range(5)] == [True] * 5
            await raw.send(8, **read[1], frees=(2, 2, 77))
            assert lost(await raw.done()), "what is refused frees what it names and has, once"
            assert (await raw.ask(9, allocs=((2, mib),))).resident_bytes == 2 * mib
            assert (await raw.ask(10, **program_fields(increment(size), [2]), **read[2])).fault is None, "what it did not touch works on"
            done = await raw.ask(11, frees=(1, 3, 4))
            assert (done.fault, done.resident_bytes) == (None, mib)
            assert (await raw.ask(12, allocs=((1, mib), (3, mib)), **made | {"handles": pack_handles([3, 4])})).fault is None
            assert (await raw.ask(13, frees=(1, 2, 3, 4))).resident_bytes == 0
            await raw.send(14, **read[3])
            assert (await raw.fault()).name == "BadHandle", "what was never there is a mistake, as before"

        check(node, scenario, vram_bytes=6 * mib)

    @pytest.mark.parametrize(
        ("fields", "name"),
        [
            ({"scalars": (True,)}, "MalformedBatch"),
            ({"scalars": (1.0,) * (LIMITS.scalars_max + 1)}, "OversizedBatch"),
            ({"uploads": (Upload(4, 70 << 10, bytes(70 << 10)),)}, "OversizedBatch"),
            ({"dims": b"short"}, "MalformedBatch"),
            ({"scalars": ()}, "MalformedBatch"),
            ({"handles": b"not zlib"}, "MalformedBatch"),
            ({"program_body": b"nonsense", "program": blake3(b"nonsense").digest()}, "UnverifiableProgram"),
        ],
    )
    def test_a_batch_refused_for_its_form_is_lost_and_its_session_goes_on(self, node: Node, fields: dict[str, Any], name: str) -> None:
        """In its place of the order, once: what it would have made and written may not be used, all else is as it was."""
        read = {handle: {"reads": (Read(0, handle, 0, 128),)} for handle in (1, 2, 3, 4)}
        good = {"uploads": (ZEROS, Upload(2, 128, bytes(128)))}
        refused = {"allocs": ((4, 128),), "frees": (77,)} | program_fields(add_one(), [1, 3]) | fields
        if "uploads" in fields:
            del refused["allocs"]

        async def scenario(raw: Raw) -> None:
            await raw.send(2, **refused)
            await raw.send(2, **refused)
            await raw.send(1, **good)
            assert [(done.seq, done.fault) for done in [await raw.done()]] == [(1, None)]
            done = await raw.done()
            assert done.fault is not None and done.resident_bytes == 256
            assert (done.seq, done.fault.name, done.fault.fatal, done.fault.cause_seq) == (2, name, False, 0)
            for seq, handle in ((3, 3), (4, 4)):
                fault = (await raw.ask(seq, **read[handle])).fault
                if handle == 3 and "handles" in fields:
                    assert fault is not None and (fault.name, fault.fatal) == ("BadHandle", False), "not even its handles could be read"
                    continue
                assert fault is not None and (fault.name, fault.fatal, fault.cause_seq) == (name, False, 2), handle
            answer = await raw.ask(5, **read[2])
            assert answer.fault is None and floats(answer.reads[0].inline).tolist() == [0.0] * 16
            done = await raw.ask(6, **program_fields(add_one(), [2, 5]), frees=(3, 4) if "handles" not in fields else (4,))
            assert (done.fault, done.resident_bytes) == (None, 384)
            assert (await raw.ping()).seq_done == 6

        check(node, scenario)

    def test_refused_batches_cannot_use_memory_up(self, node: Node) -> None:
        """What is remembered of them is bounded; beyond that the session is over."""

        async def scenario(raw: Raw) -> None:
            for seq in range(1, 6):
                handles = range(seq * LIMITS.buffers_max, (seq + 1) * LIMITS.buffers_max)
                fault = (await raw.ask(seq, allocs=tuple((handle, 8) for handle in handles), scalars=(True,))).fault
                assert fault is not None and fault.fatal == (seq == 5)

        check(node, scenario)

    def test_a_session_that_does_not_exist(self, node: Node) -> None:
        async def scenario(raw: Raw) -> None:
            raw.name = "nobody"
            heard: asyncio.Queue[Done] = asyncio.Queue()

            async def on_done(subject: str, data: bytes) -> None:
                heard.put_nowait(decode_done(data))

            await raw.bus.subscribe(subjects.session_done("nobody"), on_done)
            await raw.bus.nc.flush()
            await raw.send(1)
            done = await asyncio.wait_for(heard.get(), DEADLINE_S)
            assert done.fault is not None
            assert done.fault.name == faults.SESSION_UNKNOWN

        check(node, scenario)

    def test_another_epoch(self, node: Node) -> None:
        async def scenario(raw: Raw) -> None:
            await raw.send(1, epoch=raw.epoch + 1)
            assert (await raw.fault()).name == "OutOfOrder"
            assert (await raw.ping()).seq_done == 0

        check(node, scenario)


class TestOrder:
    def test_replayed_batches_are_dropped(self, node: Node) -> None:
        async def scenario(raw: Raw) -> None:
            fields = program_fields(increment(), [1])
            await raw.ask(1, uploads=(ZEROS,))
            for _ in range(3):
                await raw.send(2, **fields)
            await raw.send(3, reads=(Read(0, 1, 0, 128),))
            assert (await raw.done()).seq == 2
            answer = await raw.done()
            assert answer.seq == 3
            assert floats(answer.reads[0].inline).tolist() == [1.0] * 16

        check(node, scenario)

    def test_early_batches_wait_for_the_one_before(self, node: Node) -> None:
        async def scenario(raw: Raw) -> None:
            fields = program_fields(increment(), [1])
            await raw.send(4, reads=(Read(0, 1, 0, 128),))
            await raw.send(3, **fields)
            await raw.send(2, **fields)
            assert (await raw.ping()).seq_next == 1
            await raw.send(1, uploads=(ZEROS,))
            dones = [await raw.done() for _ in range(4)]
            assert [done.seq for done in dones] == [1, 2, 3, 4]
            assert floats(dones[3].reads[0].inline).tolist() == [2.0] * 16

        check(node, scenario)

    def test_waiting_batches_are_bounded(self, node: Node) -> None:
        async def scenario(raw: Raw) -> None:
            for seq in range(2, 80):
                await raw.send(seq)
            fault = await raw.fault()
            assert fault.name == "OutOfOrder"
            assert not fault.fatal

        check(node, scenario)

    def test_lost_answers_are_sent_again_when_asked_for(self, node: Node) -> None:
        async def scenario(raw: Raw) -> None:
            for seq in (1, 2, 3):
                await raw.ask(seq)
            await raw.ping(seq_seen=1)
            assert [(await raw.done()).seq for _ in range(2)] == [2, 3]

        check(node, scenario)

    def test_missing_bodies_are_asked_for_and_later_batches_wait(self, node: Node) -> None:
        async def scenario(raw: Raw) -> None:
            program = increment(31)
            fields = program_fields(program, [1])
            bare = fields | {"program_body": b"", "dims_body": b""}
            await raw.ask(1, uploads=(Upload(1, 248, bytes(248)),))
            await raw.send(2, **bare)
            await raw.send(3, **bare)
            done = await raw.done()
            assert done.seq == 2
            assert set(done.needs) <= {program.digest, program.dims_digest}
            assert program.dims_digest in done.needs
            await raw.send(2, **fields)
            assert [(await raw.done()).seq for _ in range(2)] == [2, 3]
            answer = await raw.ask(4, reads=(Read(0, 1, 0, 248),))
            assert floats(answer.reads[0].inline).tolist() == [2.0] * 31

        check(node, scenario)


def test_a_trap_ends_its_session_with_a_named_fault(node: Node) -> None:
    """An index out of range is found only while running."""
    builder = Builder()
    table = builder.external(DType.F64, (4,))
    index = builder.external(DType.I64, (2,))
    out = builder.created(DType.F64, (2,))
    builder.emit("gather", out, (table, index), (0,))
    program = Program(builder)

    async def scenario(raw: Raw) -> None:
        uploads = (Upload(1, 32, bytes(32)), Upload(2, 16, np.array([1, 9]).tobytes()))
        await raw.send(1, uploads=uploads, **program_fields(program, [1, 2, 3]))
        fault = await raw.fault()
        assert (fault.name, fault.message, fault.instruction) == ("Trap", "index 9 is out of bounds for dimension 0 with size 4", 0)
        await raw.send(2)
        assert (await raw.fault()).name == "SessionLostError"

    check(node, scenario)


def test_the_log_has_what_an_image_holds_before_its_client_may_use_it(node: Node) -> None:
    """However soon it asks, and although many ask: they share what is recorded. Numbers that no batch has are not recorded."""

    async def scenario(raw: Raw) -> None:
        async def facts() -> list[UsageRecorded]:
            return [event for event in await history(raw.bus) if isinstance(event, UsageRecorded) and event.session == raw.name]

        for number in (-1, SEQ_MAX, 2**63):
            assert (await raw.ping(image=number)).image == 0
        await raw.ask(1, uploads=(ZEROS,))
        for seq in range(2, 6):
            done = await raw.ask(seq, **program_fields(increment(), [1]))
            assert done.fault is None
        assert (await raw.ping(image=5)).image == 5
        found = await facts()
        assert sum(fact.launches for fact in found) == 4 and [fact.launches > 0 for fact in found if fact.image == 5] == [True]
        before = len(found)
        pongs = await asyncio.gather(*(raw.ping(image=number) for number in range(6, 206)))
        assert any(pong.image for pong in pongs)
        found = await facts()
        assert {fact.image for fact in found[before:]} - {0} and len(found) - before < 20

    check(node, scenario)
