"""Weight dedup on a real node: what travels, what the device holds, which tenant pays, and that no tensor's bits change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.builder import Builder
from tests.support.node import Node, Program, until
from wis.dtypes import DType
from wooly.link import Flush
from wooly.session import Session

MIB = 1 << 20
BASE = (MIB, 2 * MIB, 4 * MIB, 8 * MIB, 5 * MIB + 4096)
"""Bytes of the base model's tensors: below, at and above the size of a chunk, and not a multiple of it."""
BASE_BYTES = sum(BASE)
PRIVATE_BYTES = BASE_BYTES // 20


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node(tmp_path, WOOLY_DEDUP_TRUST="a,b,c;d,e", WOOLY_BACKEND="host", WOOLY_DEVICE_VRAM_MB="512") as node:
        yield node


def tensors(seed: int = 0) -> list[memoryview]:
    rng = np.random.default_rng(seed)
    return [memoryview(rng.standard_normal(nbytes // 8).view(np.uint8)) for nbytes in BASE]


def load(session: Session, model: list[memoryview], first: int = 1) -> int:
    """Upload a model, a tensor a flush; bytes that travelled."""
    before = session.wire_bytes
    for at, tensor in enumerate(model):
        session.wait(session.submit(Flush(uploads=[(first + at, tensor)])))
    return session.wire_bytes - before


def contents(session: Session, model: list[memoryview], first: int = 1) -> list[bytes]:
    reads = [(first + at, 0, tensor.nbytes) for at, tensor in enumerate(model)]
    return [bytes(data) for data in session.wait(session.submit(Flush(reads=reads)))]


def charged(node: Node) -> dict[str, int]:
    """What each open session is charged for, by tenant."""
    return {stats.tenant: stats.resident_bytes for stats in node.stats().sessions}


def add(nbytes: int) -> Program:
    """x += 1 over all of a buffer, in place."""
    builder = Builder()
    x = builder.external(DType.F64, (nbytes // 8,))
    builder.emit("add", x, (x, builder.const(1.0, DType.F64)))
    return Program(builder)


def tenant(node: Node, name: str, **keys: Any) -> Session:
    return node.open(tenant=name, **({"weights_dedup": True} | keys))


def test_three_tenants_need_one_base_and_the_second_upload_is_a_list_of_names(node: Node) -> None:
    model = tensors()
    sent = {}
    for name in ("a", "b", "c"):
        session = tenant(node, name)
        sent[name] = load(session, model)
        session.wait(session.submit(Flush(allocs=[(1000, PRIVATE_BYTES)])))
        assert contents(session, model) == [bytes(tensor) for tensor in model]
    assert sent["a"] > BASE_BYTES
    assert max(sent["b"], sent["c"]) <= sent["a"] // 100
    by_tenant = charged(node)
    assert sum(by_tenant.values()) == BASE_BYTES + 3 * PRIVATE_BYTES, "counted at the executor: once the base, and what is private"
    assert BASE_BYTES >= 0.9 * (BASE_BYTES + PRIVATE_BYTES)
    assert max(by_tenant.values()) - min(by_tenant.values()) <= len(BASE)


def test_other_domains_and_sessions_without_opt_in_share_nothing(node: Node) -> None:
    model = tensors()
    sessions = [tenant(node, "a"), tenant(node, "d"), tenant(node, "x"), tenant(node, "y"), tenant(node, "b", weights_dedup=False)]
    for session in sessions:
        assert load(session, model) > BASE_BYTES
    assert set(charged(node).values()) == {BASE_BYTES}
    again = tenant(node, "x")
    assert load(again, model) < BASE_BYTES // 100, "a tenant trusts itself"
    assert sum(stats.resident_bytes for stats in node.stats().sessions) == 5 * BASE_BYTES


def test_who_trains_gets_a_copy_and_the_others_keep_their_bits(node: Node) -> None:
    model = tensors()
    trainer, *readers = (tenant(node, name) for name in ("a", "b", "c"))
    for session in (trainer, *readers):
        load(session, model)
    assert sum(charged(node).values()) == BASE_BYTES
    for step in range(3):
        for at, tensor in enumerate(model):
            trainer.submit(add(tensor.nbytes).flush([1 + at]))
        trained = contents(trainer, model)
        assert trained != [bytes(tensor) for tensor in model], step
    assert charged(node)["a"] == BASE_BYTES
    assert sum(charged(node).values()) == 2 * BASE_BYTES
    for session in readers:
        assert contents(session, model) == [bytes(tensor) for tensor in model]
    expected = [(np.frombuffer(tensor, np.float64) + 1.0 + 1.0 + 1.0).tobytes() for tensor in model]
    assert trained == expected


def test_the_last_holder_pays_for_all_of_it_and_content_without_holders_is_freed(node: Node) -> None:
    model = tensors()
    first, second = tenant(node, "a"), tenant(node, "b")
    load(first, model)
    load(second, model)
    first.close()
    assert until(lambda: charged(node) == {"b": BASE_BYTES}, "the one who stays pays for all")
    assert contents(second, model) == [bytes(tensor) for tensor in model]
    second.submit(Flush(frees=list(range(1, 1 + len(model)))))
    third = tenant(node, "c")
    assert load(third, model) > BASE_BYTES
    assert charged(node)["c"] == BASE_BYTES


def test_bytes_that_go_between_have_and_execution_are_sent_again(node: Node) -> None:
    """The second tenant's chunks are on the device when it asks, and freed when its batch is executed."""
    model = tensors()
    first, second = tenant(node, "a"), tenant(node, "b")
    load(first, model)
    names = second._state.remote.port.put([tensor[:MIB] for tensor in model[:1]])
    assert second._state.remote.port.sent_bytes < MIB
    upload = second._state.remote.upload([(1, model[0])])
    assert upload[0].chunks == tuple(names)
    first.submit(Flush(frees=[1]))
    second._state.remote.upload = lambda uploads: upload  # type: ignore[method-assign]  # what was true when it was asked
    first.wait(first.submit(Flush()))
    ticket = second.submit(Flush(uploads=[(1, model[0])], reads=[(1, 0, MIB)]))
    assert bytes(second.wait(ticket)[0]) == bytes(model[0])
    assert second._state.remote.port.sent_bytes > MIB


def test_a_server_that_restarts_finds_charges_as_they_were(node: Node) -> None:
    model = tensors()
    sessions = [tenant(node, name) for name in ("a", "b", "c")]
    for session in sessions:
        load(session, model)
    before = charged(node)
    node.kill_server()
    node.start_server()
    assert charged(node) == before
    fourth = tenant(node, "c", prio=1)
    assert load(fourth, model) < BASE_BYTES // 100
