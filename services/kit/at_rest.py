"""Encryption of data on disk: the cipher that swapped memory and the model cache share, and the key that wraps the keys of such data
(envelope encryption), from a file or, behind the same interface, from a key management service.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, Protocol

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.keywrap import InvalidUnwrap, aes_key_unwrap, aes_key_wrap

from services.kit.errors import SettingError

__all__ = ["AT_REST_VARIABLE", "CIPHER_BYTES", "FileKeyWrap", "KeyWrap", "WrongKey", "crypt", "read_key_wrap"]

AT_REST_VARIABLE: Final = "WOOLY_AT_REST_KEY_FILE"
CIPHER_BYTES: Final = 16
"""A block of the cipher."""
_KEY_BYTES: Final = 32


class WrongKey(Exception):
    """The data was written under another key; the message says which data."""


class KeyWrap(Protocol):
    """Encrypts keys of 32 bytes, with a check of integrity. A wrapped key is longer than 32 bytes."""

    def wrap(self, key: bytes) -> bytes: ...

    def unwrap(self, wrapped: bytes) -> bytes:
        """Raises WrongKey when it was wrapped by another, or is damaged."""
        ...


class FileKeyWrap:
    """AES key wrap (RFC 3394) under ``key``, 32 bytes."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def wrap(self, key: bytes) -> bytes:
        return aes_key_wrap(self._key, key)

    def unwrap(self, wrapped: bytes) -> bytes:
        try:
            return aes_key_unwrap(self._key, wrapped)
        except InvalidUnwrap:
            raise WrongKey(f"it was not wrapped under the key in {AT_REST_VARIABLE}") from None


def read_key_wrap(path: str) -> KeyWrap | None:
    """The key in a file of 64 hexadecimal digits; None for an empty ``path``. Raises SettingError."""
    if not path:
        return None
    try:
        key = bytes.fromhex(Path(path).read_text("ascii"))
    except (OSError, ValueError) as error:
        raise SettingError(f"{AT_REST_VARIABLE}={path}: {getattr(error, 'strerror', None) or 'no hexadecimal digits'}") from None
    if len(key) != _KEY_BYTES:
        raise SettingError(f"{AT_REST_VARIABLE}={path}: {len(key)} bytes, not {_KEY_BYTES}; make one with: openssl rand -hex {_KEY_BYTES}")
    return FileKeyWrap(key)


def crypt(key: bytes, name: bytes, source: bytearray | memoryview, target: bytearray | memoryview) -> None:
    """Encrypt or decrypt (in counter mode that is the same) ``source`` into ``target``, which is larger by ``CIPHER_BYTES`` at least.
    AES-256; the counter begins with the first 16 bytes of ``name``. So no other data may have the same name under the same key: names are
    keyed hashes of the data, and a reader that compares the hash knows that the data is intact."""
    Cipher(algorithms.AES(key), modes.CTR(name[:CIPHER_BYTES])).encryptor().update_into(source, target)
