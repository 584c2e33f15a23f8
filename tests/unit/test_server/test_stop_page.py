"""The stop page: a word a priority, seen by every process that maps the file; serials only grow; other users may not read it."""

from __future__ import annotations

import ctypes
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from services.server.protocol import STOP_WORDS
from services.server.stop_page import StopPage


def test_what_one_writes_the_other_reads(tmp_path: Path) -> None:
    ours = StopPage.create(tmp_path / "page")
    theirs = StopPage.open(tmp_path / "page")
    theirs.stop(3, 1 << 40)
    assert [ours.word(priority) for priority in range(STOP_WORDS)] == [0, 0, 0, 1 << 40, 0, 0, 0, 0]
    assert ctypes.c_uint64.from_address(ours.address(3)).value == 1 << 40
    theirs.stop(3, 7)
    assert ours.word(3) == 1 << 40, "a later stop of an earlier launch takes nothing back"
    ours.clear()
    assert theirs.word(3) == 0


def test_another_process_sees_it(tmp_path: Path) -> None:
    page = StopPage.create(tmp_path / "page")
    code = (
        "import sys; from pathlib import Path; from services.server.stop_page import StopPage; StopPage.open(Path(sys.argv[1])).stop(1, 99)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "page")], check=True, cwd=Path(__file__).parents[3])
    assert page.word(1) == 99


def test_it_is_private_and_new(tmp_path: Path) -> None:
    old = StopPage.create(tmp_path / "page")
    old.stop(0, 5)
    page = StopPage.create(tmp_path / "page")
    assert page.word(0) == 0
    assert stat.S_IMODE((tmp_path / "page").stat().st_mode) == 0o600


def test_a_file_that_is_no_page_is_refused(tmp_path: Path) -> None:
    (tmp_path / "page").write_bytes(b"short")
    with pytest.raises(ValueError, match="mmap"):
        StopPage.open(tmp_path / "page")
    with pytest.raises(OSError, match="No such file"):
        StopPage.open(tmp_path / "nowhere")
