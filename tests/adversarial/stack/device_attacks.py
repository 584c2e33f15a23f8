"""What the programs, kernels and bytes of a member of another tenant do to the device."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from blake3 import blake3

from bus_schemas.dataport import Hello, Put
from bus_schemas.frames import frame
from tests.adversarial.stack.bus_attacks import port_of
from tests.adversarial.stack.field import Attacker, Attacks, connected
from tests.support.builder import Builder
from tests.support.executor import chain_of
from tests.support.node import Program
from tests.support.world import DEADLINE_S
from wis.dtypes import DType
from wis.encoding import digest
from wis.kernel.model import encode_kernel
from wis.kernel.text import parse_kernel
from wis.program import Operand
from wooly.errors import WoolyError
from wooly.link import Flush
from wooly.session import Session

ATTACKS: Final = Attacks()

_HEAD: Final = """kernel 2 k{name}
math strict
threads 64
param buf i32 rw
regs i32 i32 i64 pred
"""
_ENDLESS: Final = """block 0
  r0 = const(0)
  br 1
block 1
  r3 = eq r0, r0
  cbr r3, 1, 2
block 2
  ret
"""


def _straight(steps: int) -> str:
    """Much to compile, little to run: loads whose addresses follow from the loads before."""
    lines = ["block 0", "  r0 = special(tid.x)"]
    for step in range(steps):
        lines += ["  r2 = sext r0", "  r1 = ld(p0 i32) r2", f"  r0 = {('add', 'xor', 'and', 'mul')[step % 4]} r1, r0"]
    return "\n".join([*lines, "  r2 = sext r0", "  st(p0 i32) r2, r1", "  ret", ""])


def _launch(body: str, name: str = "") -> Flush:
    """A launch of this kernel on a new buffer."""
    kernel = encode_kernel(parse_kernel(_HEAD.format(name=name) + body))
    nbytes = 4096
    builder = Builder()
    x = builder.external(DType.I32, (nbytes // 4,))
    builder.launch(digest(kernel), (1, 1, 1), (64, 1, 1), (Operand(x.buffer, DType.U8, (nbytes,), (1,), 0),), ())
    program = Program(builder)
    return program.flush([7], allocs=[(7, nbytes)], kernels=[(digest(kernel), kernel)], frees=[7])


@contextlib.contextmanager
def _session(by: Attacker, **said: str) -> Iterator[Session]:
    """An ordinary client's; what ends it is the attack's own affair."""
    session = connected(by.world, by.key, "attacker", **said)
    try:
        yield session
    finally:
        with contextlib.suppress(WoolyError):
            session.close()


async def _refused(by: Attacker, *flushes: Flush, **said: str) -> None:
    """The session hears why, and only it."""

    def send() -> None:
        with _session(by, **said) as session:
            try:
                for flush in flushes:
                    session.wait(session.submit(flush))
            except WoolyError:
                return
        raise AssertionError("it was carried out")

    await asyncio.to_thread(send)


@ATTACKS
async def a_kernel_without_end(by: Attacker) -> None:
    await _refused(by, _launch(_ENDLESS))


@ATTACKS
async def a_kernel_that_writes_beyond_its_buffer(by: Attacker) -> None:
    for at in (1024, -1, 2**40):
        await _refused(by, _launch(f"block 0\n  r2 = const({at})\n  r0 = const(7)\n  st(p0 i32) r2, r0\n  ret\n"))


@ATTACKS
async def a_kernel_that_reads_beyond_its_buffer(by: Attacker) -> None:
    for at in (1024, 2**62):
        body = f"block 0\n  r2 = const({at})\n  r0 = ld(p0 i32) r2\n  r2 = const(0)\n  st(p0 i32) r2, r0\n  ret\n"
        await _refused(by, _launch(body))


@ATTACKS
async def programs_that_are_large(by: Attacker) -> None:
    """As many instructions as a batch may hold, each another."""

    def send() -> None:
        with _session(by) as session, contextlib.suppress(WoolyError):
            session.wait(session.submit(chain_of(20_000, 8).flush([1], allocs=[(1, 64)])))

    await asyncio.to_thread(send)


@ATTACKS
async def programs_that_run_for_long(by: Attacker) -> None:
    """All the batches that a session may have outstanding, of a million elements each: they are cut, the victim comes between."""

    def send() -> None:
        size = 1 << 20
        with _session(by, REQUIRED_VRAM="64") as session:
            session.submit(Flush(allocs=[(1, 8 * size)]))
            program = chain_of(60, size)
            for _ in range(6):
                session.submit(program.flush([1]))

    await asyncio.to_thread(send)


@ATTACKS
async def more_memory_than_promised(by: Attacker) -> None:
    await _refused(by, Flush(allocs=[(1, 1 << 40)]))
    await _refused(by, *(Flush(allocs=[(at, 16 << 20)]) for at in range(1, 9)), REQUIRED_VRAM="64")


@ATTACKS
async def results_that_are_never_fetched(by: Attacker) -> None:
    """Large reads wait as blobs at the node: what they may take together is bounded, and is free when the session is over."""

    def send() -> None:
        with _session(by, REQUIRED_VRAM="64") as session, contextlib.suppress(WoolyError):
            session.submit(Flush(allocs=[(1, 8 << 20)]))
            for _ in range(40):
                session.submit(Flush(reads=[(1, 0, 8 << 20)]))

    await asyncio.to_thread(send)


@ATTACKS
async def chunks_that_are_never_used(by: Attacker) -> None:
    """Bytes put at the data port and named by no upload: a session is cut off at what it may hold."""
    host, port, session, token = await port_of(by)
    chunk = bytes(np.random.default_rng(by.fresh()).bytes(1 << 20))
    reader, writer = await asyncio.open_connection(host, port, ssl=by.world.stack.context)
    writer.write(frame(Hello(session, token)))
    try:
        async with asyncio.timeout(DEADLINE_S):
            for number in range(64):
                piece = number.to_bytes(8, "little") + chunk[8:]
                writer.write(frame(Put(blake3(piece).digest(), len(piece))) + piece)
                await writer.drain()
            await reader.read(1 << 16)
    except (ConnectionError, TimeoutError):
        pass
    writer.close()
    await by.close(session)


@ATTACKS
async def chunks_that_are_not_what_they_are_called(by: Attacker) -> None:
    host, port, session, token = await port_of(by)
    for digest_, nbytes, data in ((blake3(b"a").digest(), 1, b"b"), (b"short", 1, b"x"), (bytes(32), 2**40, b"x"), (bytes(32), -1, b"")):
        reader, writer = await asyncio.open_connection(host, port, ssl=by.world.stack.context)
        writer.write(frame(Hello(session, token)) + frame(Put(digest_, nbytes)) + data)
        writer.write_eof() if writer.can_write_eof() else None
        with contextlib.suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(2):
                await reader.read(1 << 16)
        writer.close()
    await by.close(session)


@ATTACKS
async def sessions_opened_and_closed_in_haste(by: Attacker) -> None:
    for _ in range(120):
        found = await by.open()
        if found.fault is None:
            await by.close(found.session)


@ATTACKS
async def a_session_opened_twice_and_again(by: Attacker) -> None:
    """The second answer must give no other token for a name that is in use, or a session of its own."""
    first = await by.opened()
    again: Any = await by.open(session=first.session)
    assert again.fault is not None or again.token == first.token
    await by.close(first.session)
    await by.close(first.session)


@ATTACKS
async def kernels_that_compile_for_long(by: Attacker) -> None:
    """They wait in turns of tenants, and the session ends while they are compiled."""

    def send() -> None:
        with _session(by) as session:
            for number in range(4):
                session.submit(_launch(_straight(12), f"{number}_{by.fresh()}"))

    await asyncio.to_thread(send)
