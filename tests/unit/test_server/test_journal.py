"""The journal file: what was synced is read back; a torn end is cut off; damage is set aside, not read over."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.server.facts import JournalFile


def write(path: Path, *bodies: bytes) -> None:
    journal = JournalFile(path)
    for body in bodies:
        journal.append(body)
    journal.sync()
    journal.close()


def test_bodies_come_back_in_order(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "j"
    write(path, b"one", b"", b"three" * 1000)
    write(path, b"four")
    assert JournalFile(path).bodies == [b"one", b"", b"three" * 1000, b"four"]


@pytest.mark.parametrize("cut", [1, 4, 11, 12, 14])
def test_a_torn_last_frame_is_cut_off_and_writing_goes_on(tmp_path: Path, cut: int) -> None:
    """The process died while writing."""
    path = tmp_path / "j"
    write(path, b"one", b"two")
    path.write_bytes(path.read_bytes()[:-cut])
    write(path, b"three")
    assert JournalFile(path).bodies == [b"one", b"three"]


@pytest.mark.parametrize("at", [3, 7, 13, 18])
def test_damage_sets_the_file_aside(tmp_path: Path, at: int) -> None:
    """A flipped bit before the last frame, in a length, a checksum or a body: never silently dropped, never half believed."""
    path = tmp_path / "j"
    write(path, b"one", b"two", b"three")
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(bytes(data))
    write(path, b"new")
    assert JournalFile(path).bodies == [b"new"]
    (aside,) = tmp_path.glob("j.damaged-*")
    assert aside.read_bytes() == bytes(data)


def test_rewriting_replaces_everything(tmp_path: Path) -> None:
    path = tmp_path / "j"
    write(path, *(b"x" * 100 for _ in range(100)))
    journal = JournalFile(path)
    journal.rewrite([b"kept"])
    journal.append(b"after")
    journal.sync()
    journal.close()
    again = JournalFile(path)
    assert again.bodies == [b"kept", b"after"]
    assert again.nbytes == path.stat().st_size
