"""The cache of compiled objects: what is stored, what is damaged, what has to go."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jit.cache import ObjectCache

DIGEST_BYTES = 32


def test_what_is_stored_is_found_and_what_is_damaged_is_not(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path / "made")
    assert cache.get("a") is None
    cache.put("a", b"object")
    assert cache.get("a") == b"object" == ObjectCache(tmp_path / "made").get("a")
    (tmp_path / "made" / "a").write_bytes((tmp_path / "made" / "a").read_bytes()[:-1])
    assert cache.get("a") is None
    nowhere = ObjectCache(None)
    nowhere.put("a", b"object")
    assert nowhere.get("a") is None


@pytest.mark.parametrize("others", [0, 2], ids=["alone", "beside another process"])
def test_the_objects_not_used_for_longest_make_room(tmp_path: Path, others: int) -> None:
    size = 100 - DIGEST_BYTES
    cache, other = ObjectCache(tmp_path, bytes_max=1000), ObjectCache(tmp_path, bytes_max=1000)
    for number in range(10 - others):
        cache.put(f"object {number}", bytes(size))
    for number in range(10 - others, 10):
        other.put(f"object {number}", bytes(size))
    for number in range(10):
        os.utime(tmp_path / f"object {number}", (number + 1, number + 1))
    (tmp_path / "folder").mkdir()
    assert cache.get("object 0") is not None, "used last"
    for number in range(10, 10 + others + 1):
        cache.put(f"object {number}", bytes(size))
    left = {path.name for path in tmp_path.iterdir() if path.is_file()}
    assert left == {f"object {number}" for number in (0, *range(3 + others, 11 + others))}, "900 bytes of 1000"
    assert (tmp_path / "folder").is_dir()
