"""The node's data port: messages for bulk bytes beside the bus. Pure: data types, codec.

A connection (TCP or Unix socket) carries frames (bus_schemas.frames) of one msgpack message each. ``Put`` and ``Blob`` are followed by
``nbytes`` raw bytes. The client's first frame is ``Hello``; the node closes the connection
on anything it does not expect. Chunks are named by blake3 of their bytes and belong to the session that put them.

A connection whose ``Hello`` carries the name and token of a door to the model cache (bus_schemas.model_cache) speaks ``Have`` and ``Put``
about chunks of that cache, and ``Keep``, ``Models``, ``Forget``.
"""

from __future__ import annotations

from typing import Final

import msgspec

from bus_schemas.model_cache import ModelStatus
from bus_schemas.quotas import Excess

__all__ = [
    "MESSAGE_BYTES_MAX", "Hello", "Have", "Put", "Get", "Drop", "Keep", "Models", "Forget", "Welcome", "Had", "Stored", "Blob",
    "Denied", "Kept", "Listed", "Forgotten", "Request", "Answer", "decode_request", "decode_answer",
]  # fmt: skip

MESSAGE_BYTES_MAX: Final = 1 << 20


class Hello(msgspec.Struct, array_like=True, frozen=True, tag="hello"):
    session: str
    token: str


class Have(msgspec.Struct, array_like=True, frozen=True, tag="have"):
    """Which of these chunks does the node hold?"""

    digests: tuple[bytes, ...]


class Put(msgspec.Struct, array_like=True, frozen=True, tag="put"):
    """A chunk; its bytes follow. Kept until an upload uses it."""

    digest: bytes
    nbytes: int


class Get(msgspec.Struct, array_like=True, frozen=True, tag="get"):
    """A blob named in a ReadResult."""

    blob: str


class Drop(msgspec.Struct, array_like=True, frozen=True, tag="drop"):
    """The blob was received; no answer."""

    blob: str


class Keep(msgspec.Struct, array_like=True, frozen=True, tag="keep"):
    """Keep a model: ``manifest`` names the chunk, put before, that is its encoded ModelManifest."""

    manifest: bytes


class Models(msgspec.Struct, array_like=True, frozen=True, tag="models"):
    """Which models are kept?"""


class Forget(msgspec.Struct, array_like=True, frozen=True, tag="forget"):
    """Keep this model no longer."""

    model: str


class Welcome(msgspec.Struct, array_like=True, frozen=True, tag="welcome"):
    pass


class Had(msgspec.Struct, array_like=True, frozen=True, tag="had"):
    """One byte a digest asked for, 1: held."""

    held: bytes


class Stored(msgspec.Struct, array_like=True, frozen=True, tag="stored"):
    digest: bytes


class Blob(msgspec.Struct, array_like=True, frozen=True, tag="blob"):
    """The blob's bytes follow."""

    nbytes: int


class Denied(msgspec.Struct, array_like=True, frozen=True, tag="denied"):
    """The request was refused; the connection stays open unless it was Hello. ``excess``: the quota that refuses it, if one does."""

    message: str
    excess: Excess | None = None


class Kept(msgspec.Struct, array_like=True, frozen=True, tag="kept"):
    pass


class Listed(msgspec.Struct, array_like=True, frozen=True, tag="listed"):
    """``used_bytes``: on disk, of all domains; ``bytes_max``: how many may be."""

    models: tuple[ModelStatus, ...]
    used_bytes: int
    bytes_max: int


class Forgotten(msgspec.Struct, array_like=True, frozen=True, tag="forgotten"):
    """``freed_bytes``: of chunks that no other model has."""

    freed_bytes: int


Request = Hello | Have | Put | Get | Drop | Keep | Models | Forget
Answer = Welcome | Had | Stored | Blob | Denied | Kept | Listed | Forgotten

_request: Final[msgspec.msgpack.Decoder[Request]] = msgspec.msgpack.Decoder(Request)
_answer: Final[msgspec.msgpack.Decoder[Answer]] = msgspec.msgpack.Decoder(Answer)


def decode_request(data: bytes | bytearray | memoryview) -> Request:
    """Raises msgspec.DecodeError on anything else."""
    try:
        return _request.decode(data)
    except (UnicodeDecodeError, RecursionError) as error:  # msgspec lets them through
        raise msgspec.DecodeError(str(error)) from None


def decode_answer(data: bytes | bytearray | memoryview) -> Answer:
    """Raises msgspec.DecodeError on anything else."""
    try:
        return _answer.decode(data)
    except (UnicodeDecodeError, RecursionError) as error:  # msgspec lets them through
        raise msgspec.DecodeError(str(error)) from None
