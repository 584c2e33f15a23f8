"""The node's data port: messages for bulk bytes beside the bus; and its model cache: asking for the door over the bus, and what a kept
model is. Pure: data types, codec, limits.

A connection (TCP or Unix socket) carries frames (bus_schemas.frames) of one msgpack message each. ``Put`` and ``Blob`` are followed by
``nbytes`` raw bytes. The client's first frame is ``Hello``; the node closes the connection on anything it does not expect. Chunks are named
by blake3 of their bytes and belong to the session that put them.

A model is a list of tensors, each a list of chunks (blake3, at most ``LIMITS.chunk_bytes`` each, cut like an upload of the same bytes), so
an upload of an equal tensor finds its chunks there. A connection whose ``Hello`` carries the name and token of a door to the model cache
speaks ``Have`` and ``Put`` about chunks of that cache, then ``Keep``, ``Models``, ``Forget``.

Array-like structs: new fields go last and have defaults; nothing is renamed, reordered or retyped.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from bus_schemas.batch import Fault
from bus_schemas.limits import Decode, TenantName, decoding
from bus_schemas.quotas import Excess

MODELS_VERB: Final = "model-cache"
"""The request ``subjects.node_request(node, MODELS_VERB)``."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@/+-]{0,127}")


class OpenModelCache(msgspec.Struct, frozen=True):
    """A tenant asks for the door to its domain's models on device ``gpu``."""

    tenant: TenantName
    gpu: int = 0


class ModelCacheOpened(msgspec.Struct, frozen=True):
    """``name`` and ``token`` open the data port for an hour; ``fault`` set when refused."""

    name: str = ""
    token: str = ""
    data_port: tuple[str, ...] = ()
    fault: Fault | None = None


class ModelTensor(msgspec.Struct, array_like=True, frozen=True):
    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    chunks: tuple[bytes, ...]


class ModelManifest(msgspec.Struct, array_like=True, frozen=True, tag="model.v1"):
    """``dtype``: what floating-point tensors were converted to, empty: they are as they came."""

    name: str
    dtype: str
    tensors: tuple[ModelTensor, ...]


class ModelStatus(msgspec.Struct, array_like=True, frozen=True):
    """A kept model, and what the device in question has of it: ``holders`` sessions hold one of its tensors, ``resident_bytes`` of them are
    in device memory. ``chunks_missing`` were lost or found damaged; the next upload or ``add`` restores them."""

    name: str
    dtype: str
    tensors: int
    nbytes: int
    chunks: int
    chunks_missing: int
    holders: int
    resident_bytes: int


_encoder: Final = msgspec.msgpack.Encoder()
decode_manifest: Final = decoding(msgspec.msgpack.Decoder(ModelManifest))


def encode_manifest(manifest: ModelManifest) -> bytes:
    return _encoder.encode(manifest)


def check_model_name(name: str) -> str:
    """``name`` if a model may be called so; raises ValueError otherwise."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"a model cannot be called {name!r}: use 1 to 128 letters, digits and . _ @ / + -, a letter or digit first")
    return name


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
    """The blob was received, and no upload will use these chunks; no answer."""

    blob: str
    chunks: tuple[bytes, ...] = ()


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


decode_request: Final[Decode[Request]] = decoding(msgspec.msgpack.Decoder(Request))
decode_answer: Final[Decode[Answer]] = decoding(msgspec.msgpack.Decoder(Answer))
