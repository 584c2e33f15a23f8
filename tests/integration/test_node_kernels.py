"""Kernels on a real node: they travel with a batch, run, are counted, and what goes wrong ends its own session by name."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bus_schemas.events import SessionClosedFact
from tests.support.builder import Builder
from tests.support.node import Node, Program
from tests.support.sandbox import needs_every_layer
from wis.dtypes import DType
from wis.encoding import digest
from wis.kernel.interpret import Launch, launch
from wis.kernel.model import encode_kernel
from wis.kernel.text import parse_kernel
from wis.kernel.verify import verify_kernel
from wis.program import Operand
from wooly.errors import DeviceAssertError, KernelError, OutOfFuelError, RefusedError
from wooly.session import Session
from wooly_server.sandbox import EXECUTOR_UID

DOUBLE = """kernel 2 double
math strict
threads 256
param buf f32 rw
param i32
regs i32 i32 i32 i32 i64 i32 pred f32 f32
block 0
  r0 = special(tid.x)
  r1 = special(ctaid.x)
  r2 = special(ntid.x)
  r3 = mul r1, r2
  r0 = add r0, r3
  r5 = param(p1)
  r6 = lt_s r0, r5
  cbr r6, 1, 2
block 1
  r4 = sext r0
  r7 = ld(p0 f32) r4
  r8 = add r7, r7
  st(p0 f32) r4, r8
  br 2
block 2
  ret
"""
ENDLESS = """kernel 2 endless
math strict
threads 256
param buf f32 rw
param i32
regs i32 pred
block 0
  r0 = param(p1)
  r1 = eq r0, r0
  br 1
block 1
  cbr r1, 1, 2
block 2
  ret
"""


def body_of(text: str) -> bytes:
    return encode_kernel(parse_kernel(text))


class Launched(Program):
    """x [n] f32 (external, the first handle) given to a kernel with parameters (buffer, i32)."""

    def __init__(self, kernel: bytes, n: int, count: int, *, grid: int = 2, block: int = 32, region_bytes: int | None = None) -> None:
        builder = Builder()
        x = builder.external(DType.F32, (n,))
        region = Operand(x.buffer, DType.U8, (4 * n if region_bytes is None else region_bytes,), (1,), 0)
        builder.launch(digest(kernel), (grid, 1, 1), (block, 1, 1), (region,), (builder.const(count, DType.I32),))
        self.kernel = kernel
        super().__init__(builder)

    def send(self, session: Session, **more: Any) -> list[Any]:
        return session.wait(session.submit(self.flush([1], kernels=[(digest(self.kernel), self.kernel)], **more)))


@pytest.fixture(scope="module", params=["reference", "host", "opencl"])
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    more = {"WOOLY_BACKEND": request.param, "WOOLY_KERNEL_FUEL": "2000000", SECRET_NAME: "a password"}
    with Node(tmp_path_factory.mktemp("node"), **more) as running:
        yield running


SECRET_NAME = "OPERATORS_OWN_PASSWORD"
VALUES = np.arange(64, dtype=np.float32)


def upload(values: np.ndarray[Any, Any] = VALUES) -> list[tuple[int, memoryview]]:
    return [(1, memoryview(values.tobytes()))]


def test_a_launch_runs_and_is_counted(node: Node) -> None:
    session = node.open()
    program = Launched(body_of(DOUBLE), 64, 50)
    (found,) = program.send(session, uploads=upload(), reads=[(1, 0, 256)])
    expected = VALUES.copy()
    expected[:50] *= 2
    assert (np.frombuffer(found, np.float32) == expected).all()
    session.close()
    outcome = launch(verify_kernel(parse_kernel(DOUBLE)), Launch((2, 1, 1), (32, 1, 1)), [VALUES.copy().view(np.uint8), 50])
    closed = [e for e in node.events() if isinstance(e, SessionClosedFact)][-1]
    assert closed.instructions == outcome.instructions > 0


def test_the_second_time_only_the_name_travels(node: Node) -> None:
    session = node.open()
    program = Launched(body_of(DOUBLE), 64, 64)
    program.send(session, uploads=upload())
    before = session.wire_bytes
    (found,) = program.send(session, reads=[(1, 0, 256)])
    assert (np.frombuffer(found, np.float32) == VALUES * 4).all()
    assert session.wire_bytes - before < len(program.kernel)


def test_a_node_that_forgot_a_kernel_asks_for_it(node: Node) -> None:
    session = node.open()
    program = Launched(body_of(DOUBLE.replace("double", "other_double")), 64, 64)
    session._state.remote.encoder._is_known(digest(program.kernel))  # as if it had been sent to a node that has lost it since
    (found,) = program.send(session, uploads=upload(), reads=[(1, 0, 256)])
    assert (np.frombuffer(found, np.float32) == VALUES * 2).all()


def test_an_access_outside_ends_its_session_and_no_other(node: Node) -> None:
    canary, attacker = node.open(), node.open()
    Launched(body_of(DOUBLE), 64, 0).send(canary, uploads=upload())
    program = Launched(body_of(DOUBLE), 64, 64, region_bytes=100)
    with pytest.raises(DeviceAssertError, match=r"kernel double: load of f32 .* outside of it; in block \(0, 0, 0\), thread \(25, 0, 0\)"):
        program.send(attacker, uploads=upload())
    with pytest.raises(DeviceAssertError):
        program.send(attacker)
    (kept,) = Launched(body_of(DOUBLE), 64, 0).send(canary, reads=[(1, 0, 256)])
    assert (np.frombuffer(kept, np.float32) == VALUES).all()


def test_an_endless_kernel_ends_its_session_and_no_other(node: Node) -> None:
    canary, attacker = node.open(), node.open()
    Launched(body_of(DOUBLE), 64, 0).send(canary, uploads=upload())
    with pytest.raises(OutOfFuelError, match="kernel endless"):
        Launched(body_of(ENDLESS), 64, 0).send(attacker, uploads=upload())
    (kept,) = Launched(body_of(DOUBLE), 64, 64).send(canary, reads=[(1, 0, 256)])
    assert (np.frombuffer(kept, np.float32) == VALUES * 2).all()
    attacker.close()
    closed = [e for e in node.events() if isinstance(e, SessionClosedFact)][-1]
    assert closed.instructions > 2_000_000, "what was burnt is billed"


def test_a_grid_beyond_the_limits(node: Node) -> None:
    session = node.open()
    with pytest.raises(KernelError, match="a grid of 2147483648 x 1 x 1 blocks"):
        Launched(body_of(DOUBLE), 64, 64, grid=1 << 31).send(session, uploads=upload())


@pytest.mark.parametrize(
    ("change", "place"),
    [({"block": 257}, "limit @ code 0 attr x"), ({"block": 0}, "limit @ code 0 attr x"), ({"region_bytes": 257}, "extent @ code 0 out 0")],
)
def test_launches_that_break_a_rule(node: Node, change: dict[str, int], place: str) -> None:
    session = node.open()
    with pytest.raises(RefusedError) as caught:
        Launched(body_of(DOUBLE), 64, 64, **change).send(session, uploads=upload())  # type: ignore[arg-type]  # keywords by name
    assert any(place in found for found in caught.value.places), caught.value.places


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (b"\x93\x01\x02\x03", "a kernel cannot be read"),
        (body_of(DOUBLE).replace(b"double", b"dou le"), "breaks"),
        (body_of(DOUBLE.replace("r8 = add r7, r7", "r8 = add r7, r0")), "breaks"),
    ],
)
def test_kernels_that_break_a_rule(node: Node, kernel: bytes, message: str) -> None:
    session = node.open()
    with pytest.raises(RefusedError, match=message):
        Launched(kernel, 64, 64).send(session, uploads=upload())


@needs_every_layer
def test_what_runs_and_what_compiles_is_in_a_sandbox(node: Node) -> None:
    """Of the processes of the node, these two handle what tenants send. Neither has the environment that the node was started with."""
    program = Launched(body_of(DOUBLE), 64, 64)
    program.send(node.open(), uploads=upload())
    (executor,) = node.executor_pids()
    children = [pid for thread in Path(f"/proc/{executor}/task").iterdir() for pid in (thread / "children").read_text().split()]
    assert len(children) == (node.environment()["WOOLY_BACKEND"] != "reference")
    for pid in (executor, *children):
        status = Path(f"/proc/{pid}/status").read_text()
        assert "NoNewPrivs:\t1\n" in status and "Seccomp:\t2\n" in status
        user = os.getuid() or EXECUTOR_UID
        assert f"Uid:\t{user}\t{user}\t{user}\t{user}\n" in status
        assert os.readlink(f"/proc/{pid}/ns/net") != os.readlink("/proc/self/ns/net")
        environment = Path(f"/proc/{pid}/environ").read_bytes()
        assert b"PATH=" in environment and b"a password" not in environment and b"NATS" not in environment
