"""Every WIS program that the client emits is one that a node accepts (tests/programs/verified.py), and that check finds planted faults.

The runs share a process, apart from the tests': torch is switched to the device there.
"""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Final

import pytest

from tests.support.stack import ROOT, plain_environment

pytestmark = pytest.mark.slow

DISTINCT: Final = 300

_RUNS: Final = """
from struct import pack_into, unpack_from

from msgspec.structs import replace

from tests.programs.__main__ import main
from wis.dtypes import DType
from wooly.device import programs

dims_of, encoded = programs._dims, programs.encode_program


def with_dims(change):
    def broken(wired):
        # Of the first instruction's output: sizes, strides, offset. Before them all are the sizes of buffers.
        dims, (first, *_) = bytearray(dims_of(wired)), wired.stencils
        at = 8 * (len(wired.kinds) + sum(len(stencil.temps) for stencil in wired.stencils))
        rank = first.code[0].outs[0].rank if first.code else 0
        if rank and unpack_from("<q", dims, at)[0] > 1:
            change(dims, at, rank)
        return bytes(dims)

    return broken


def larger(dims, at, rank):
    pack_into("<q", dims, at, 1 << 20)


def farther(dims, at, rank):
    pack_into("<q", dims, at + 8 * rank, 1 << 20)


def of_another_type(program):
    first, *others = program.code
    (out, *outs), types = first.outs, (DType.I8, DType.U8)
    wrong = replace(out, dtype=int(types[out.dtype == types[0]]))
    return encoded(replace(program, code=(replace(first, outs=(wrong, *outs)), *others)))


def run(name, distinct):
    print("### " + name)
    print("status", main(["--verify", "--programs", str(distinct), "--seed", "0", "--shrink", "0"]), flush=True)


run("sound", DISTINCT)
programs._dims = with_dims(larger)
run("extent", 1)
programs._dims = with_dims(farther)
run("stride", 1)
programs._dims, programs.encode_program = dims_of, of_another_type
run("type", 1)
"""


@pytest.fixture(scope="module")
def printed() -> dict[str, str]:
    """What each run printed, by its name."""
    code = _RUNS.replace("DISTINCT", str(DISTINCT))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=280, env=plain_environment(), cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(part.split("\n", 1) for part in done.stdout.split("### ")[1:])


def test_a_node_accepts_what_the_client_emits(printed: dict[str, str]) -> None:
    assert printed["sound"].endswith("status 0\n"), printed["sound"]
    counts = re.search(r"\((\d+) distinct, .* of (\d+) WIS operations, from (\d+) torch operators, .*; 0 refused", printed["sound"])
    assert counts is not None, printed["sound"]
    assert int(counts[1]) >= DISTINCT and int(counts[2]) > 30 and int(counts[3]) > 50


@pytest.mark.parametrize(
    ("fault", "rule"), [("extent", r"\[?(extent|shape|overlap)"), ("stride", r"\[?extent"), ("type", r"\[?(type|immediate)")]
)
def test_a_planted_fault_is_reported(printed: dict[str, str], fault: str, rule: str) -> None:
    assert printed[fault].endswith("status 1\n"), printed[fault]
    assert re.search(rf"refused: .*{rule} @ code \d+", printed[fault]), printed[fault]
