"""The tokens NATS's auth callout speaks: JSON claims signed with an ed25519 nkey. Only what the callout needs of NATS's JWT format.

A file holds several seeds, one a line, so that a key is rotated without a break (``services.kit.rotation``): the first is in use, the
others are accepted; a line ``SEED next`` is one that will be in use.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
from pathlib import Path
from typing import Any, Final

import nkeys  # type: ignore[import-untyped]

ACCOUNT: Final = nkeys.PREFIX_BYTE_ACCOUNT
USER: Final = nkeys.PREFIX_BYTE_USER
_HEADER: Final = b'{"typ":"JWT","alg":"ed25519-nkey"}'


def new_seed(kind: int) -> str:
    """The seed (the secret half) of a new key: ``ACCOUNT`` signs, ``USER`` connects."""
    return str(nkeys.encode_seed(os.urandom(32), kind).decode())


def key_from_seed(seed: str) -> nkeys.KeyPair:
    return nkeys.from_seed(bytearray(seed.strip().encode()))  # the library wipes what it is given


def public_key(seed: str) -> str:
    return str(key_from_seed(seed).public_key.decode())


def read_seeds(path: Path) -> list[str]:
    """The seeds in a file, the one in use first. Raises OSError, and ValueError when it holds none."""
    seeds = [line.split()[0] for line in path.read_text().splitlines() if line.strip()]
    if not seeds:
        raise ValueError(f"{path} holds no key")
    return seeds


def read_keys(path: Path) -> dict[str, nkeys.KeyPair]:
    """The keys in a file by their public keys. Raises OSError, ValueError."""
    return {public_key(seed): key_from_seed(seed) for seed in read_seeds(path)}


def sign_claims(issuer: nkeys.KeyPair, claims: dict[str, Any], now_s: int) -> str:
    """``claims`` as a token of ``issuer``, issued at ``now_s`` (Unix time)."""
    whole = {**claims, "iss": issuer.public_key.decode(), "iat": now_s}
    digest = hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).digest()
    whole["jti"] = base64.b32encode(digest).decode().rstrip("=")
    body = f"{_text(_HEADER)}.{_text(json.dumps(whole).encode())}"
    return f"{body}.{_text(issuer.sign(body.encode()))}"


def read_claims(token: bytes) -> dict[str, Any]:
    """The claims of a token that the bus itself sent us on its system account; its signature is not looked at. Raises ValueError."""
    parts = token.split(b".")
    if len(parts) != 3:
        raise ValueError("not a token of three parts")
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + b"=" * (-len(parts[1]) % 4)))
    except (binascii.Error, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"not a readable token: {error}") from None
    if not isinstance(claims, dict):
        raise ValueError("claims are not an object")
    return claims


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
