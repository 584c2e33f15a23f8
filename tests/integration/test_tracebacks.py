"""What an uncaught error of a script shows: the script's line last, and where work that failed on the node was recorded."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bus_schemas.batch import ORIGIN_CHARS_MAX, decode_batch, unpack_message
from tests.support.node import add_one, increment
from tests.support.stack import EmbeddedStack
from wooly.activation import without_our_frames
from wooly.link import Flush, Origin
from wooly.transport.batches import BatchEncoder

PROGRAM = """import torch
table = torch.arange(12.0, device="cuda").reshape(4, 3)
rows = torch.embedding(table * 2, torch.tensor([1, 9], device="cuda"))
total = rows.sum() + 1
print(total.item())
"""
IN_A_HOOK = """import torch
x = torch.ones(3, device="cuda", requires_grad=True)
def hook(gradient):
    torch.ones(2, 3, device="cuda") @ torch.ones(2, 3, device="cuda")
x.register_hook(hook)
(x * 2).sum().backward()
"""


@pytest.fixture(scope="module")
def stack() -> Iterator[EmbeddedStack]:
    with EmbeddedStack(None, WOOLY_BACKEND="host") as running:
        yield running


def lines_of(stack: EmbeddedStack, folder: Path, program: str, *before: str, **environment: str) -> list[str]:
    """Standard error of the script, which fails."""
    (folder / "train.py").write_text(program)
    command = [sys.executable, *before, "train.py"]
    done = subprocess.run(
        command, env=stack.client_environment(**environment), cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 1, done.stderr
    return done.stderr.splitlines()


def frames(lines: list[str]) -> list[str]:
    return [line.strip() for line in lines if line.startswith("  File ")]


@pytest.mark.parametrize("before", [(), ("-m", "wooly.cli", "run")], ids=["python", "wooly run"])
def test_the_traceback_ends_at_the_line_of_the_script(stack: EmbeddedStack, tmp_path: Path, before: tuple[str, ...]) -> None:
    lines = lines_of(stack, tmp_path, PROGRAM, *before)
    (frame,) = frames(lines)
    assert 'train.py", line 5, in <module>' in frame
    text = "\n".join(lines)
    assert "DeviceAssertError: CUDA error: device-side assert triggered: index 9 is out of bounds for dimension 0 with size 4" in text
    assert "(aten::embedding)\n  recorded at or before " in text


def test_the_line_is_exact_when_every_operation_is_waited_for(stack: EmbeddedStack, tmp_path: Path) -> None:
    lines = lines_of(stack, tmp_path, PROGRAM, CUDA_LAUNCH_BLOCKING="1")
    (frame,) = frames(lines)
    assert 'train.py", line 3, in <module>' in frame
    assert any("recorded at " in line and "train.py:3 (aten::embedding)" in line for line in lines)


def test_debugging_shows_every_frame(stack: EmbeddedStack, tmp_path: Path) -> None:
    assert any("wooly/device/recorder.py" in frame for frame in frames(lines_of(stack, tmp_path, PROGRAM, WOOLY_DEBUG="1")))


def test_a_callback_of_the_script_stays_in_the_traceback(stack: EmbeddedStack, tmp_path: Path) -> None:
    last = frames(lines_of(stack, tmp_path, IN_A_HOOK))[-1]
    assert 'train.py", line 4, in hook' in last


def test_an_error_inside_the_package_alone_keeps_its_frames() -> None:
    try:
        Origin("", "", 3).text(["x @ code 0"])  # type: ignore[arg-type]  # raises in wooly.link
    except TypeError as error:
        assert error.__traceback__ is not None
        inner = error.__traceback__.tb_next
        assert inner is not None and without_our_frames(inner) is inner
        cut = without_our_frames(error.__traceback__)
        assert cut is not None and cut.tb_next is None and cut.tb_lineno == error.__traceback__.tb_lineno


def test_where_work_was_recorded() -> None:
    assert Origin("a.py:1", "a.py:9").text() == "recorded between a.py:1 and a.py:9"
    assert Origin("", "a.py:9").text() == "recorded at or before a.py:9"
    assert Origin("a.py:9", "a.py:9").text() == "recorded between two passes of a.py:9"
    assert Origin("a.py:8", "a.py:9", exact=True).text() == "recorded at a.py:9"


def test_lines_that_go_to_the_node() -> None:
    """Short, of no path more than two names, and always text that can be encoded."""
    assert Origin("a.py:1", "/home/anna/work/a.py:9").lines() == "a.py:1 to work/a.py:9"
    assert Origin("", "a.py:9").lines() == Origin("a.py:9", "a.py:9").lines() == Origin("a.py:8", "a.py:9", exact=True).lines() == "a.py:9"
    long = Origin("b" * 300 + ".py:1", "a" * 300 + ".py:9").lines()
    assert len(long) <= ORIGIN_CHARS_MAX and long.endswith("a.py:9") and "b.py:1 to " in long
    assert Origin("", "\udcff.py:1").lines() == "?.py:1"


def test_only_a_program_that_is_new_has_an_origin() -> None:
    encoder, program, other = BatchEncoder("s", 1, 1 << 20), increment(), add_one()

    def origin(seq: int, flush: Flush) -> str:
        return decode_batch(unpack_message(encoder.encode(seq, flush, ()), 1 << 20)).origin

    at = [Origin("", f"a.py:{line}") for line in range(5)]
    assert origin(1, program.flush([1], origin=at[1])) == "a.py:1"
    assert origin(2, program.flush([1], origin=at[2])) == "" and origin(3, Flush(allocs=[(2, 8)], origin=at[3])) == ""
    assert origin(4, other.flush([1, 2], origin=at[4])) == "a.py:4" and origin(5, program.flush([1])) == ""
    again = decode_batch(unpack_message(encoder.encode_whole(5, program.flush([1], origin=at[2]), ()), 1 << 20))
    assert again.origin == "a.py:2", "to a node that lacks the program"
