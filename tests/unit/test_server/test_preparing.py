"""Programs are prepared beside the launches: by priority, and what is refused there costs the launching thread nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from bus_schemas import faults
from bus_schemas.batch import Batch, decode_batch, decode_done
from jit.backends import create_engine
from jit.engine import Engine, Prepared
from jit.errors import KernelRefused, Unfinished
from services.server.executor import preparing, tenant
from services.server.executor.content import Content
from services.server.executor.data_port import DataPort, listen
from services.server.executor.loop import Commands, Executor
from services.server.executor.memory import DeviceMemory
from services.server.executor.quota_watch import QuotaWatch
from services.server.executor.staging import Staging
from services.server.protocol import AWAITS, RAN, CloseSpace, Compiled, Execute, Executed, Forget, OpenSpace, Prepare, Report
from services.server.protocol import Prepared as PreparedReport
from services.server.settings import MemorySettings
from tests.support.executor import TERMS, Wire, batch_of, chain_of
from tests.support.node import increment
from wis.verify import Verified


def test_the_highest_priority_is_prepared_first(tmp_path: Path) -> None:
    """While one program is prepared others queue: a new one of P0 does not stand behind those of P4."""
    with Wire(tmp_path) as wire:
        wire.open("high", priority=0)
        wire.open("low", priority=4)
        first = chain_of(2000, 8)  # so that the others have come when it is ready
        wire.send(
            Prepare("low", 1, batch_of("low", 1, first.flush([1]))),
            Prepare("low", 2, batch_of("low", 2, chain_of(2, 8).flush([1]))),
            Prepare("low", 3, batch_of("low", 3, chain_of(3, 8).flush([1]))),
            Prepare("high", 1, batch_of("high", 1, chain_of(4, 8).flush([1]))),
        )
        prepared = [wire.next(PreparedReport) for _ in range(4)]
    order = [(report.session, report.seq) for report in prepared]
    assert order.index(("high", 1)) <= 1, "behind the one that was begun at most"
    assert [seq for session, seq in order if session == "low"] == [1, 2, 3]
    assert all(report.ready for report in prepared)


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = create_engine("reference", cache_dir=None, threads=1, vram_bytes=1 << 20)
    yield engine
    engine.close()


@pytest.fixture
def executor(engine: Engine, tmp_path: Path) -> Iterator[Executor]:
    staging = Staging()
    content = Content(staging)
    memory = DeviceMemory(engine, content, MemorySettings())
    port = DataPort(staging, content, listen(tmp_path / "d", "127.0.0.1", 0), "127.0.0.1")
    executor = Executor(
        engine=engine,
        commands=Commands.open(tmp_path / "x"),
        data_port=port,
        staging=staging,
        content=content,
        memory=memory,
        quotas=QuotaWatch(),
        orphan_s=1.0,
    )
    executor._carry_out(OpenSpace("s", "token", b"", TERMS))
    yield executor
    memory.shut()


def executed(executor: Executor, seq: int, batch: bytes) -> Executed:
    """The batch is prepared, then executed."""
    executor._preparing.prepare(executor._tenants["s"].bring(seq, batch))
    executor._carry_out(Execute("s", seq, b"", b""))
    return executor._results[-1]


def test_what_a_compiler_gave_up_is_not_given_to_it_again(executor: Executor, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has twenty seconds, and all sessions wait for the launching thread: a kernel that takes them all must not take them there too."""
    tries: list[Verified] = []

    def give_up(verified: Verified) -> Prepared:
        tries.append(verified)
        raise KernelRefused("compiling took more than 20000 ms; make the kernel smaller")

    program = increment(16)
    batches = [batch_of("s", seq, program.flush([1], allocs=[(1, 128)])) for seq in (1, 2, 3)]
    with monkeypatch.context() as patch:
        patch.setattr(engine, "prepare", give_up)
        for tried, seq in ((1, 1), (2, 2)):
            report = executed(executor, seq, batches[seq - 1])
            fault = decode_done(report.done).fault
            assert fault is not None and (fault.name, fault.fatal) == (faults.KERNEL_REFUSED, False)
            assert len(tries) == tried, "each batch once, beside the launches"
    assert executed(executor, 3, batches[2]).status == RAN


def test_a_refusal_is_one_batchs_own(executor: Executor) -> None:
    """What is wrong with one batch says nothing of another with the same program."""
    program = increment(16)
    broken = replace(program.flush([1], allocs=[(1, 128)]), program_body=b"not a program")
    fault = decode_done(executed(executor, 1, batch_of("s", 1, broken)).done).fault
    assert fault is not None and fault.name == faults.MALFORMED
    executor._carry_out(OpenSpace("other", "token", b"", TERMS))
    good = batch_of("other", 1, program.flush([1], allocs=[(1, 128)]))
    executor._preparing.prepare(executor._tenants["other"].bring(1, good))
    executor._carry_out(Execute("other", 1, b"", b""))
    assert executor._results[-1].status == RAN


def test_a_batch_is_decoded_once(executor: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the preparing thread, for the launching one too."""
    decoded: list[bytes] = []

    def counted(data: bytes) -> Batch:
        decoded.append(data)
        return decode_batch(data)

    monkeypatch.setattr(tenant, "decode_batch", counted)
    batch = batch_of("s", 1, increment(16).flush([1], allocs=[(1, 128)]))
    assert executed(executor, 1, batch).status == RAN
    assert decoded == [batch]
    assert executor._tenants["s"].brought == {}


def test_what_a_tenant_may_name_does_not_depend_on_what_others_sent(tmp_path: Path) -> None:
    """A digest without its body is answered alike, whether or not another tenant runs the program. Compiled code is shared all the same."""
    program = increment(77_777)
    whole = program.flush([1], allocs=[(1, 8 * 77_777)])
    named = replace(whole, program_body=b"", dims=b"")
    both = (whole.program, whole.dims_digest)
    with Wire(tmp_path) as wire:
        for session, tenant, domain in (
            ("beta", "beta", ""), ("beta2", "beta", ""), ("evil", "evil", ""), ("x", "x", "group g"), ("y", "y", "group g"), ("z", "x", ""),
        ):  # fmt: skip
            wire.send(OpenSpace(session, "token", b"", msgspec.structs.replace(TERMS, tenant=tenant), domain))
        assert wire.done(wire.execute(1, named, session="evil")).needs == both, "the node lacks it"
        assert wire.execute(1, whole, session="beta").status == RAN
        assert wire.execute(1, named, session="beta2").status == RAN, "of the same tenant"
        assert wire.done(wire.execute(1, named, session="evil")).needs == both
        assert wire.done(wire.execute(1, replace(named, program_body=whole.program_body), session="evil")).needs == (whole.dims_digest,)
        assert wire.done(wire.execute(1, named, session="evil")).needs == (whole.dims_digest,), "it has sent the program since"
        assert wire.execute(1, whole, session="x").status == RAN
        assert wire.execute(1, named, session="y").status == RAN, "of the same trust domain"
        assert wire.done(wire.execute(1, named, session="z")).needs == both, "its tenant, but it did not join the domain"
        forged = wire.execute(1, replace(whole, dims=bytes(8)), session="z")
        assert "does not match its digest" in str(wire.done(forged).fault), "others have the right ones"


def test_a_refused_batch_does_not_show_what_others_sent(executor: Executor) -> None:
    """What it would have written is known from the program, if its tenant has sent it; else from its own words alone."""
    whole = increment(16).flush([1], allocs=[(1, 128)])
    assert executed(executor, 1, batch_of("s", 1, whole)).status == RAN
    batch = decode_batch(batch_of("s", 2, replace(whole, program_body=b"")))
    programs = executor._programs
    assert programs.outline(batch, "tenant acme") is not None and programs.outline(batch, "tenant evil") is None


def test_the_launching_thread_neither_compiles_nor_waits_for_it(
    executor: Executor, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch comes to its turn while its program is being compiled, for another session: its launch is given back, others go on."""
    began, go_on, compiled = threading.Event(), threading.Event(), []
    prepare = engine.prepare

    def slow(verified: Verified) -> Prepared:
        compiled.append(threading.current_thread().name)
        began.set()
        assert go_on.wait(60)
        return prepare(verified)

    whole = increment(16).flush([1], allocs=[(1, 128)])
    first = executor._tenants["s"].bring(1, batch_of("s", 1, whole))
    executor._carry_out(OpenSpace("other", "token", b"", TERMS))
    with monkeypatch.context() as patch:
        patch.setattr(engine, "prepare", slow)
        preparing = threading.Thread(target=executor._preparing.prepare, args=(first,), name="prepare")
        preparing.start()
        try:
            assert began.wait(60)
            executor._carry_out(Execute("other", 1, b"", batch_of("other", 1, replace(whole, program_body=b"", dims=b""))))
            assert executor._results[-1].status == AWAITS
            executor._carry_out(Execute("s", 1, b"", b""))
            assert executor._results[-1].status == AWAITS
        finally:
            go_on.set()
            preparing.join()
    for session in ("other", "s"):
        executor._preparing.step()
        executor._carry_out(Execute(session, 1, b"", b""))
        assert executor._results[-1].status == RAN
    assert compiled == ["prepare"]


def test_bodies_that_come_between_preparing_and_launching_count(executor: Executor) -> None:
    """A batch that lacked one when it was prepared is looked at again in its place; what it brought itself is known then."""
    whole = increment(16).flush([1], allocs=[(1, 128)])
    executor._carry_out(OpenSpace("other", "token", b"", TERMS))
    half = batch_of("other", 1, replace(whole, dims=b""))
    assert not executor._preparing.prepare(executor._tenants["other"].bring(1, half))
    executor._carry_out(Execute("other", 1, b"", b""))
    assert decode_done(executor._results[-1].done).needs == (whole.dims_digest,)
    assert not executor._preparing.prepare(
        executor._tenants["other"].bring(1, batch_of("other", 1, replace(whole, program_body=b"", dims=b"")))
    )
    assert executed(executor, 1, batch_of("s", 1, replace(whole, program_body=b""))).status == RAN
    executor._carry_out(Execute("other", 1, b"", b""))
    assert executor._results[-1].status == RAN


def test_a_long_compilation_is_interrupted_for_others_and_ends_with_its_session(
    executor: Executor, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenant's program takes several pieces: those of others come between them, the batches of its own session do not."""
    pieces: list[int] = []
    left = {100: 2, 200: 2}
    prepare = engine.prepare

    def in_pieces(verified: Verified) -> Prepared:
        size = verified.bound.nbytes[0] // 8
        pieces.append(size)
        if left.get(size, 0):
            left[size] -= 1
            raise Unfinished
        return prepare(verified)

    reports: list[tuple[str, int]] = []
    monkeypatch.setattr(executor._preparing, "_report", lambda report: reports.append((report.session, report.seq)))
    monkeypatch.setattr(preparing, "monotonic_ns", lambda: 0)
    monkeypatch.setattr(engine, "prepare", in_pieces)
    for session, owner in (("a", "acme"), ("b", "beta")):
        executor._carry_out(OpenSpace(session, "token", b"", msgspec.structs.replace(TERMS, tenant=owner)))
    for session, seq, size in (("a", 1, 100), ("a", 2, 101), ("b", 1, 102), ("b", 2, 103)):
        executor._carry_out(Prepare(session, seq, batch_of(session, seq, increment(size).flush([1]))))
    for _ in range(6):
        executor._preparing.step()
    assert pieces == [100, 102, 100, 103, 100, 101]
    assert reports == [("b", 1), ("b", 2), ("a", 1), ("a", 2)]

    executor._carry_out(Prepare("a", 3, batch_of("a", 3, increment(200).flush([1]))))
    executor._preparing.step()
    executor._carry_out(CloseSpace("a"))
    executor._carry_out(Prepare("b", 3, batch_of("b", 3, increment(104).flush([1]))))
    executor._preparing.step()
    assert pieces[6:] == [200, 104] and reports[4:] == [("b", 3)], "what waited in a closed session is not compiled"
    executor._carry_out(Prepare("b", 4, batch_of("b", 4, increment(105).flush([1]))))
    executor._carry_out(Forget("b", 4))
    executor._preparing.step()
    assert pieces[8:] == [] and reports[5:] == [("b", 4)], "not compiled"


def test_the_time_of_the_compiler_is_reported_for_the_session_that_needed_it(
    executor: Executor, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every piece of it; what is ready already costs nothing."""
    now_ns, costs = [0], iter([2 * 10**9, 3 * 10**9])
    prepare = engine.prepare

    def costly(verified: Verified) -> Prepared:
        now_ns[0] += (cost := next(costs))
        if cost == 2 * 10**9:
            raise Unfinished
        return prepare(verified)

    reports: list[Report] = []
    monkeypatch.setattr(executor._preparing, "_report", reports.append)
    monkeypatch.setattr(preparing, "monotonic_ns", lambda: now_ns[0])
    monkeypatch.setattr(engine, "prepare", costly)
    program = increment(16)
    for session in ("a", "b"):
        executor._carry_out(OpenSpace(session, "token", b"", TERMS))
        executor._carry_out(Prepare(session, 1, batch_of(session, 1, program.flush([1], allocs=[(1, 128)]))))
        executor._preparing.step()
        if session == "a":
            executor._preparing.step()
    assert reports == [Compiled("a", 2 * 10**9), Compiled("a", 3 * 10**9), PreparedReport("a", 1, True), PreparedReport("b", 1, True)]


def test_a_tenant_without_budget_is_compiled_for_last(executor: Executor, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[int] = []
    prepare = engine.prepare
    now_ns = [0]

    def costly(verified: Verified) -> Prepared:
        order.append(verified.bound.nbytes[0] // 8)
        now_ns[0] += 20 * 10**9 if order[-1] < 200 else 0
        return prepare(verified)

    monkeypatch.setattr(engine, "prepare", costly)
    monkeypatch.setattr(preparing, "monotonic_ns", lambda: now_ns[0])
    for session, owner, priority in (("a", "acme", 0), ("b", "beta", 4)):
        executor._carry_out(OpenSpace(session, "token", b"", msgspec.structs.replace(TERMS, tenant=owner, priority=priority)))
    for session, seq, size in (("a", 1, 100), ("a", 2, 101), ("a", 3, 102), ("b", 1, 200), ("b", 2, 201)):
        executor._carry_out(Prepare(session, seq, batch_of(session, seq, increment(size).flush([1]))))
    for _ in range(5):
        executor._preparing.step()
    assert order == [100, 200, 201, 101, 102], "the best priority first, but only on its budget"
