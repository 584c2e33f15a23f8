"""Code that client and services share: files, bounded dictionaries, addresses of the bus."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from wooly.shared.credentials import is_encrypted, plain_hosts
from wooly.shared.files import read_own, write_atomically
from wooly.shared.lru import LruDict


def test_a_file_is_replaced_whole_with_its_mode(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_bytes(b"old")
    file.chmod(0o644)
    (tmp_path / f"key.{os.getpid()}.new").write_bytes(b"left behind")
    write_atomically(file, b"new", mode=0o600, durable=True)
    assert file.read_bytes() == b"new" and file.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [file]


def test_a_failed_write_leaves_the_old_file_alone(tmp_path: Path) -> None:
    folder = tmp_path / "taken"
    folder.mkdir()
    (folder / "inside").touch()
    with pytest.raises(OSError):
        write_atomically(folder, b"new")
    assert list(tmp_path.iterdir()) == [folder]


def test_a_full_dictionary_evicts_the_entry_written_longest_ago() -> None:
    known: LruDict[str, int] = LruDict(2)
    known["a"], known["b"], known["a"] = 1, 2, 3
    known["c"] = 4
    assert dict(known) == {"a": 3, "c": 4}
    known.move_to_end("a")
    known["d"] = 5
    assert dict(known) == {"a": 3, "d": 5}


@pytest.mark.parametrize(
    ("urls", "encrypted", "plain"),
    [
        (["tls://a:1", "wss://b:2"], True, []),
        (["nats://a:1", "ws://[::1]:2"], False, ["a", "::1"]),
        (["nats://u:p@a:1"], False, ["a"]),
        ([], False, []),
    ],
)
def test_the_scheme_decides_about_encryption(urls: list[str], encrypted: bool, plain: list[str]) -> None:
    assert is_encrypted(urls) is encrypted and plain_hosts(urls) == plain


def test_addresses_are_all_encrypted_or_none() -> None:
    with pytest.raises(ValueError, match="write tls:// for all"):
        is_encrypted(["tls://a:1", "nats://a:1"])


def test_what_other_users_could_have_written_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "cached"
    file.write_bytes(b"kernel")
    for mode, own in ((0o600, True), (0o644, True), (0o664, False), (0o666, False)):
        file.chmod(mode)
        if own:
            assert read_own(file) == b"kernel"
        else:
            with pytest.raises(PermissionError, match="can be written by other users"):
                read_own(file)
    if os.getuid() == 0:
        file.chmod(0o600)
        os.chown(file, 61999, 61999)
        with pytest.raises(PermissionError):
            read_own(file)
