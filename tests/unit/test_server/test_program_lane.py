"""Which program a batch ran, reported once a segment, and the operations of one that cannot be read."""

from __future__ import annotations

import msgspec
import pytest

from bus_schemas.batch import Batch
from bus_schemas.journal import PROGRAM_NAME_BYTES, ProgramUse, decode_uses
from services.server.journal_stream import Lane, ProgramLane
from tests.support.builder import Builder
from tests.support.node import Program, increment
from wis.dtypes import DType
from wis.encoding import digest
from wis.kernel.model import encode_kernel
from wis.kernel.text import parse_kernel
from wis.program import Operand


def sent(lane: Lane) -> list[ProgramUse]:
    lane.seal()
    uses = [use for part in lane.parts for use in decode_uses(part.frames)]
    lane.parts.clear()
    return uses


@pytest.fixture
def lane() -> Lane:
    return Lane("node", 1, 0, "programs", lambda: None)


def test_each_is_sent_once_and_again_in_the_next_segment(lane: Lane) -> None:
    program = increment()
    programs = ProgramLane(lane)
    first, again = Batch("s", 1, 1, program.digest, bytes(32), program.body), Batch("s", 1, 2, program.digest, bytes(32))
    for batch, content in ((first, b"A" * 32), (again, b"A" * 32), (again, b"B" * 32), (Batch("s", 1, 3), b"C" * 32)):
        programs.note(batch, content)
    short = program.digest[:PROGRAM_NAME_BYTES]
    assert sent(lane) == [ProgramUse(b"A" * 8, short, ("add",)), ProgramUse(b"B" * 8, short), ProgramUse(b"C" * 8, b"")]
    programs.note(again, b"A" * 32)
    assert sent(lane) == []
    lane.on_gap()
    programs.note(again, b"A" * 32)
    assert sent(lane) == [ProgramUse(b"A" * 8, short, ("add",))], "a reader that begins here learns everything"


def test_lines_of_a_script_are_sent_once_a_session_and_segment(lane: Lane) -> None:
    """Two sessions run one program: each line goes with its own session. Of a session the first line of a program holds."""
    programs, body = ProgramLane(lane), increment()
    short = body.digest[:PROGRAM_NAME_BYTES]

    def note(session: str, origin: str) -> None:
        programs.note(Batch(session, 1, 1, body.digest, bytes(32), body.body, origin=origin), b"A" * 32)

    for session, origin in (("s", "a.py:1"), ("s", "other.py:9"), ("s", ""), ("t", ""), ("t", "b.py:2\n\x1b"), ("t", "b.py:2")):
        note(session, origin)
    expected = [ProgramUse(b"A" * 8, short, ("add",), "s", "a.py:1"), ProgramUse(b"A" * 8, short, (), "t", "b.py:2??")]
    assert sent(lane) == expected
    lane.on_gap()
    note("t", "")
    note("s", "")
    assert [(use.session, use.origin) for use in sent(lane)] == [("t", "b.py:2??"), ("s", "a.py:1")]
    programs.note(Batch("u", 1, 1, origin="a.py:1"), b"C" * 32)
    assert sent(lane) == [ProgramUse(b"C" * 8, b"")], "without a program there is no line"


@pytest.mark.parametrize("body", [b"", b"\xff", b"\x95\x01\x90\x00\x90\x90", bytes(300 << 10)])
def test_a_program_that_cannot_be_read_has_no_operations(lane: Lane, body: bytes) -> None:
    programs = ProgramLane(lane)
    programs.note(Batch("s", 1, 1, b"p" * 32, bytes(32), body), b"A" * 32)
    assert sent(lane) == [ProgramUse(b"A" * 8, b"p" * 8)]


def test_a_program_of_another_digest_does_not_name_its_operations(lane: Lane) -> None:
    """A client that names the program of another tenant, with a body of its own: the executor refuses that batch."""
    mine, program, programs = increment(), Builder(), ProgramLane(lane)
    x = program.external(DType.F32, (16,))
    program.launch(digest(b""), (1, 1, 1), (32, 1, 1), (Operand(x.buffer, DType.U8, (64,), (1,), 0),), ())
    programs.note(Batch("other", 1, 1, mine.digest, bytes(32), Program(program).body), b"B" * 32)
    programs.note(Batch("s", 1, 1, mine.digest, bytes(32), mine.body), b"A" * 32)
    assert [use.operations for use in sent(lane)] == [(), ("add",)]


KERNEL = """kernel 2 nothing_at_all
math strict
threads 256
param buf f32 rw
regs i32
block 0
  ret
"""


def test_a_launch_has_the_name_of_its_kernel(lane: Lane) -> None:
    kernel = encode_kernel(parse_kernel(KERNEL))
    builder = Builder()
    x = builder.external(DType.F32, (16,))
    for _ in range(2):
        builder.launch(digest(kernel), (1, 1, 1), (32, 1, 1), (Operand(x.buffer, DType.U8, (64,), (1,), 0),), ())
    program = Program(builder)
    programs = ProgramLane(lane)
    programs.note(Batch("s", 1, 1, program.digest, bytes(32), program.body, kernels=(b"\xff", kernel)), b"A" * 32)
    assert [use.operations for use in sent(lane)] == [("kernel nothing_at_all x2",)]


@pytest.mark.parametrize("frames", [b"\x01", b"\x00\x00\x00\x00", b"\xff\xff\xff\xff\x93", b"\x01\x00\x00\x00\xc0"])
def test_what_is_no_use_is_refused(frames: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_uses(frames)
