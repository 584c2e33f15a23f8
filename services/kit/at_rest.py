"""Encryption of data on disk: the cipher that swapped memory and the model cache share, and the key that wraps the keys of such data
(envelope encryption), from a file or, behind the same interface, from a key management service.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final, Protocol

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.keywrap import InvalidUnwrap, aes_key_unwrap, aes_key_wrap

from services.kit.errors import SettingError

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

    def is_current(self, wrapped: bytes) -> bool:
        """Whether ``wrap`` would wrap it under the same key; else its owner wraps it again, so that the old key can be removed."""
        ...


class FileKeyWrap:
    """AES key wrap (RFC 3394), which is deterministic. The first of ``keys``, 32 bytes each, wraps; all unwrap."""

    def __init__(self, *keys: bytes) -> None:
        self._keys = keys

    def wrap(self, key: bytes) -> bytes:
        return aes_key_wrap(self._keys[0], key)

    def unwrap(self, wrapped: bytes) -> bytes:
        for key in self._keys:
            with contextlib.suppress(InvalidUnwrap):
                return aes_key_unwrap(key, wrapped)
        raise WrongKey(f"it was not wrapped under a key in {AT_REST_VARIABLE}")

    def is_current(self, wrapped: bytes) -> bool:
        return self.wrap(self.unwrap(wrapped)) == wrapped


def read_key_wrap(path: str) -> KeyWrap | None:
    """The keys in a file, one of 64 hexadecimal digits a line, the one that wraps first; None for an empty ``path``. Raises
    SettingError."""
    if not path:
        return None
    try:
        keys = [bytes.fromhex(line) for line in Path(path).read_text("ascii").splitlines() if line.strip()] or [b""]
    except (OSError, ValueError) as error:
        raise SettingError(f"{AT_REST_VARIABLE}={path}: {getattr(error, 'strerror', None) or 'no hexadecimal digits'}") from None
    for key in keys:
        if len(key) != _KEY_BYTES:
            wanted = f"not {_KEY_BYTES}; make one with: openssl rand -hex {_KEY_BYTES}"
            raise SettingError(f"{AT_REST_VARIABLE}={path}: {len(key)} bytes, {wanted}")
    return FileKeyWrap(*keys)


def crypt(key: bytes, name: bytes, source: bytearray | memoryview, target: bytearray | memoryview) -> None:
    """Encrypt or decrypt (in counter mode that is the same) ``source`` into ``target``, which is larger by ``CIPHER_BYTES`` at least.
    AES-256; the counter begins with the first 16 bytes of ``name``. So no other data may have the same name under the same key: names are
    keyed hashes of the data, and a reader that compares the hash knows that the data is intact."""
    Cipher(algorithms.AES(key), modes.CTR(name[:CIPHER_BYTES])).encryptor().update_into(source, target)
