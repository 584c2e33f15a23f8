"""A connection to the model cache: the requests of a client that has its door."""

from __future__ import annotations

from typing import Final

import msgspec

from bus_schemas.batch import LIMITS
from bus_schemas.dataport import Answer, Denied, Forget, Forgotten, Had, Have, Keep, Kept, Listed, Models, Request, Stored
from bus_schemas.model_cache import ModelManifest, ModelStatus, decode_manifest
from services.server.executor.content import Content
from services.server.executor.model_cache import CacheError, ModelCache

__all__ = ["CachePort"]

_CHECKS_MAX: Final = 8
"""Chunks that one ``Have`` reads: what a client asks for at a time. The data port does nothing else meanwhile."""


class CachePort:
    """One connection, for one domain."""

    def __init__(self, cache: ModelCache, content: Content, domain: str) -> None:
        self._cache = cache
        self._content = content
        self._domain = domain
        self._brought: set[bytes] = set()
        cache.recount()

    def answer(self, request: Request) -> Answer | None:
        """The answer; None: this connection does not ask that."""
        try:
            match request:
                case Have(digests):
                    return Had(bytes(at < _CHECKS_MAX and self._has(digest) for at, digest in enumerate(digests)))
                case Keep(manifest):
                    return self._keep(manifest)
                case Models():
                    models = tuple(self._status(model) for model in self._cache.models(self._domain))
                    return Listed(models, self._cache.used_bytes, self._cache.bytes_max)
                case Forget(model):
                    return Forgotten(self._cache.forget(self._domain, model))
        except CacheError as error:
            return Denied(str(error))
        return None

    def put(self, digest: bytes, chunk: bytearray) -> Answer:
        """A chunk that matches its name came."""
        try:
            self._cache.put(self._domain, digest, chunk)
        except CacheError as error:
            return Denied(str(error))
        self._brought.add(digest)
        return Stored(digest)

    def close(self) -> None:
        """The connection ended: what it brought for no model goes."""
        if self._brought:
            self._cache.abandon(self._domain, self._brought)

    def _has(self, digest: bytes) -> bool:
        return self._cache.chunk(self._domain, digest) is not None

    def _keep(self, name: bytes) -> Answer:
        data = self._cache.chunk(self._domain, name)
        if data is None:
            return Denied("put the manifest first")
        try:
            manifest = decode_manifest(data)
        except msgspec.DecodeError as error:
            return Denied(f"the manifest cannot be read ({error}): client and node are of different versions")
        self._cache.keep(self._domain, manifest)
        self._cache.abandon(self._domain, self._brought)  # the manifest itself, among others
        self._brought.clear()
        return Kept()

    def _status(self, model: ModelManifest) -> ModelStatus:
        holders: set[str] = set()
        resident_bytes = 0
        for tensor in model.tensors:
            found = self._content.holders(self._domain, tensor.nbytes, tensor.chunks)
            holders |= found
            resident_bytes += tensor.nbytes if found else 0
        return ModelStatus(
            name=model.name,
            dtype=model.dtype,
            tensors=len(model.tensors),
            nbytes=sum(tensor.nbytes for tensor in model.tensors),
            chunks=sum(-(-tensor.nbytes // LIMITS.chunk_bytes) for tensor in model.tensors),
            chunks_missing=self._cache.missing(self._domain, model),
            holders=len(holders),
            resident_bytes=resident_bytes,
        )
