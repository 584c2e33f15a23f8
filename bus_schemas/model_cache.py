"""The node's model cache: asking for its door over the bus, and what a kept model is. Pure: data types, codec, limits.

A model is a list of tensors, each a list of chunks (blake3, at most ``LIMITS.chunk_bytes`` each, cut like an upload of the same bytes), so
an upload of an equal tensor finds its chunks there. A client with a door (a name and a token) speaks to the data port: ``Have`` and ``Put``
for chunks, then ``Keep``, ``Models``, ``Forget`` (bus_schemas.dataport).

Array-like structs: new fields go last and have defaults; nothing is renamed, reordered or retyped.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from bus_schemas.batch import Fault
from bus_schemas.limits import TenantName

__all__ = [
    "MODELS_VERB", "OpenModelCache", "ModelCacheOpened", "ModelTensor", "ModelManifest", "ModelStatus", "encode_manifest",
    "decode_manifest", "check_model_name",
]  # fmt: skip

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
_manifest: Final = msgspec.msgpack.Decoder(ModelManifest)


def encode_manifest(manifest: ModelManifest) -> bytes:
    return _encoder.encode(manifest)


def decode_manifest(data: bytes | bytearray | memoryview) -> ModelManifest:
    """Raises msgspec.DecodeError on anything that is not a ModelManifest."""
    try:
        return _manifest.decode(data)
    except (UnicodeDecodeError, RecursionError) as error:  # msgspec lets them through
        raise msgspec.DecodeError(str(error)) from None


def check_model_name(name: str) -> str:
    """``name`` if a model may be called so; raises ValueError otherwise."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"a model cannot be called {name!r}: use 1 to 128 letters, digits and . _ @ / + -, a letter or digit first")
    return name
