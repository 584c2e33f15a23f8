"""Golden programs: each file verifies, or every complaint stands as ``; error:`` on the line it is about.

A new file may be written without its errors; the failing test prints what they should be.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from wis.encoding import decode_program, encode_program
from wis.errors import VerifyError
from wis.program import BufferKind
from wis.reference import run
from wis.text import parse_program, print_program
from wis.verify import verify

FOLDER = Path(__file__).parents[2] / "golden" / "wis"
FILES = sorted(FOLDER.glob("*.wis"))


def test_there_are_files() -> None:
    assert len(FILES) >= 8


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_golden(path: Path) -> None:
    comment, _, text = path.read_text().partition("\n")
    assert comment.startswith("; "), "the first line says what the file is about"
    program, dims = parse_program(text)
    assert dims is not None
    assert decode_program(encode_program(program)) == program
    try:
        verified = verify(program, dims)
    except VerifyError as error:
        assert path.stem.startswith("bad_")
        assert print_program(program, dims, error.findings) == text
        return
    assert not path.stem.startswith("bad_")
    assert print_program(program, dims) == text
    rng = np.random.default_rng(0)
    buffers = [
        rng.integers(0, 3 if kind == BufferKind.EXTERNAL else 1, nbytes, np.uint8)
        for kind, nbytes in zip(program.buffers, verified.bound.nbytes, strict=True)
    ]
    run(verified, [1] * program.n_scalars, buffers)
