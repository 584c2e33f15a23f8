"""Models on disk: chunks by content, and the lists that say what they are; and the requests of a client that has the cache's door. Survives
the node; nothing read from it is believed unchecked.

    key                          32 random bytes, wrapped if the node has a key for data at rest: names of files are keyed hashes of
                                 (domain, content): nothing leaks across domains
    chunks/ab/cdef...            one chunk, of one domain
    models/<domain>/<name>       keyed hash of the rest, then domain and ModelManifest

With a wrapped key, chunks and models are encrypted (``services.kit.at_rest``) under a key of their domain that is derived from it.

Used by the data ports' threads of all executors of a node, and by the server for the key: files appear whole (written beside, then
renamed), and what changes lists holds the lock file.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
from blake3 import blake3

from bus_schemas.batch import LIMITS
from bus_schemas.dataport import (
    Answer,
    Denied,
    Forget,
    Forgotten,
    Had,
    Have,
    Keep,
    Kept,
    Listed,
    ModelManifest,
    Models,
    ModelStatus,
    Stored,
    Welcome,
    check_model_name,
    decode_manifest,
)
from bus_schemas.quotas import Excess
from bus_schemas.telemetry import QuotaUse
from scheduler.quotas import Asked
from services.kit.at_rest import CIPHER_BYTES, KeyWrap, crypt
from services.kit.log import get_logger
from services.server.executor.content import Content
from services.server.executor.quota_watch import QuotaWatch
from services.server.model_cache_door import cache_key
from wooly.shared.files import write_atomically

_DIGEST_BYTES: Final = 32
_ORPHAN_S: Final = 3600.0
"""A chunk of no model is left of an ``add`` that was cut off, or belongs to one under way that is not older than this."""


_CHUNKS_MIN: Final = 8_192
_CHUNK_BYTES_MEAN: Final = 64 << 10
"""A domain may have so many chunks, and one more for so many bytes of its quota: a chunk of a byte takes a block of the disk."""
_MODELS_MAX: Final = 1_000
_MANIFESTS_BYTES_MAX: Final = 32 << 20
_ENTRIES_MAX: Final = 200_000
"""Tensors and chunks that the lists of a domain's models name, bytes of those lists: all are read for each question about them."""


@dataclass(slots=True)
class _Chunks:
    """Chunks of a domain and their sizes."""

    sizes: dict[bytes, int] = field(default_factory=dict)
    nbytes: int = 0

    @property
    def count(self) -> int:
        return len(self.sizes)

    def add(self, digest: bytes, nbytes: int) -> None:
        self.nbytes += nbytes - self.sizes.get(digest, 0)
        self.sizes[digest] = nbytes

    def remove(self, digest: bytes) -> None:
        self.nbytes -= self.sizes.pop(digest, 0)


class _Stored(msgspec.Struct, array_like=True, frozen=True, tag="stored.v1"):
    """A file of ``models``, behind its digest."""

    domain: str
    model: ModelManifest


_encode: Final = msgspec.msgpack.Encoder().encode
_stored: Final = msgspec.msgpack.Decoder(_Stored)


class CacheError(Exception):
    """The request cannot be met; the message says why and what to do. ``excess``: the quota that refuses it, if one does."""

    def __init__(self, message: str, excess: Excess | None = None) -> None:
        super().__init__(message)
        self.denied = Denied(message, excess)


class ModelCache:
    """``bytes_max`` bounds the chunks of all domains together, ``domain_bytes_max`` those of each (0: ``bytes_max``). ``wrap``: wraps the
    key under which they are encrypted, None: they are not. Raises OSError when the folder cannot be used."""

    def __init__(
        self, folder: Path, bytes_max: int, domain_bytes_max: int = 0, wrap: KeyWrap | None = None, watch: QuotaWatch | None = None
    ) -> None:
        self._watch = watch or QuotaWatch()
        self._folder = folder
        self.bytes_max = bytes_max
        self._domain_bytes_max = domain_bytes_max or bytes_max
        self._chunks_max = _CHUNKS_MIN + self._domain_bytes_max // _CHUNK_BYTES_MEAN
        #: by domain, the chunks of its models; domains that are not here are not read yet
        self._kept: dict[str, _Chunks] = {}
        #: by domain, chunks that this process has put and that no model has yet
        self._loose: dict[str, _Chunks] = {}
        self.key = cache_key(folder, wrap)
        self._encrypted = wrap is not None
        self._chunks = folder / "chunks"
        self._models = folder / "models"
        for made in (self._chunks, self._models):
            made.mkdir(mode=0o700, exist_ok=True)
        self._lock = threading.Lock()
        self._damaged: set[Path] = set()
        self._log = get_logger()
        self.used_bytes = 0
        with self._locked():
            self._clean()
        self.recount()

    # -- chunks --------------------------------------------------------------------------------------------------------------------

    def chunk(self, domain: str, digest: bytes) -> bytearray | None:
        """A chunk, checked against its name. One that does not match is removed, and None like one that is not there."""
        path = self._chunk_path(domain, digest)
        try:
            with path.open("rb") as file:
                data = bytearray(os.fstat(file.fileno()).st_size)
                read = file.readinto(data)
        except OSError:
            return None
        whole = read == len(data)
        data = self._crypt(self._domain_name(domain), self._hash(b"chunk", domain, digest), data)
        if whole and blake3(data).digest() == digest:
            return data
        self._log.warning("a chunk of the model cache is damaged, removed", file=str(path))
        with contextlib.suppress(OSError):
            path.unlink()
            self.used_bytes -= len(data)
        self._damaged.add(path)
        return None

    def put(self, domain: str, digest: bytes, chunk: bytearray) -> None:
        """Keep a chunk that matches its name. Raises CacheError when the cache is full or the disk refuses."""
        path = self._chunk_path(domain, digest)
        if path.exists():
            return
        if self.used_bytes + len(chunk) > self.bytes_max:
            raise CacheError(
                f"the model cache holds {self.used_bytes >> 20} MiB of {self.bytes_max >> 20}: delete a model (wooly model-cache delete), "
                "or raise WOOLY_MODEL_CACHE_MB on the node"
            )
        kept = self._kept_of(domain)
        loose = digest not in kept.sizes  # else it was damaged
        if loose:
            if kept.count + self._loose_of(domain).count >= self._chunks_max:
                raise CacheError(f"{domain} has {self._chunks_max} chunks in the model cache: delete a model (wooly model-cache delete)")
            asked = Asked(time.monotonic_ns(), "stored_bytes", domain, self._domain_bytes_max, self.domain_bytes(domain), len(chunk))
            excess = self._watch.ask(asked)
            if excess is not None:
                raise CacheError(excess.sentence(domain), excess)
        _write(path, self._crypt(self._domain_name(domain), self._hash(b"chunk", domain, digest), chunk))
        self._damaged.discard(path)
        self.used_bytes += len(chunk)
        if loose:
            self._loose_of(domain).add(digest, len(chunk))

    def domain_bytes(self, domain: str) -> int:
        """Bytes of the domain's models, and of its chunks that are of none yet."""
        return self._kept_of(domain).nbytes + self._loose_of(domain).nbytes

    def tell(self, domain: str) -> None:
        """Report what the domain uses."""
        self._watch.use(QuotaUse(domain, "stored_bytes", self.domain_bytes(domain), self._domain_bytes_max))

    def _loose_of(self, domain: str) -> _Chunks:
        return self._loose.setdefault(domain, _Chunks())

    def _kept_of(self, domain: str) -> _Chunks:
        if domain not in self._kept:
            self._kept[domain] = kept = _Chunks()
            for model in self.models(domain):
                for tensor in model.tensors:
                    for at, digest in enumerate(tensor.chunks):
                        kept.add(digest, min(LIMITS.chunk_bytes, tensor.nbytes - at * LIMITS.chunk_bytes))
        return self._kept[domain]

    def heal(self, domain: str, digest: bytes, chunk: bytearray) -> None:
        """A session sent this chunk: if it is one that was found damaged, keep it again."""
        if self._damaged and self._chunk_path(domain, digest) in self._damaged:
            with contextlib.suppress(CacheError):
                self.put(domain, digest, chunk)

    def abandon(self, domain: str, digests: Iterable[bytes]) -> None:
        """An ``add`` was cut off: what it brought goes, unless a model has it."""
        with self._locked():
            self._remove(domain, set(digests))
        self.tell(domain)

    # -- models --------------------------------------------------------------------------------------------------------------------

    def keep(self, domain: str, manifest: ModelManifest) -> None:
        """Keep a model, in place of one of the same name. Raises CacheError when it breaks a rule or lacks a chunk."""
        try:
            check_model_name(manifest.name)
        except ValueError as error:
            raise CacheError(str(error)) from None
        with self._locked():
            path = self._model_path(domain, manifest.name)
            old = self._read(path)
            data = bytearray(_encode(_Stored(domain, manifest)))
            others = [other.stat().st_size for other in path.parent.glob("*") if other != path]
            entries = _entries(manifest) + sum(_entries(model) for model in self.models(domain) if model.name != manifest.name)
            if len(others) >= _MODELS_MAX or sum(others) + len(data) > _MANIFESTS_BYTES_MAX or entries > _ENTRIES_MAX:
                raise CacheError(
                    f"{domain} has {len(others)} models in the cache, {_MODELS_MAX} may be, with lists of tensors of "
                    f"{_MANIFESTS_BYTES_MAX >> 20} MiB and {_ENTRIES_MAX} tensors and chunks together: delete one "
                    "(wooly model-cache delete)"
                )
            for tensor in manifest.tensors:
                self._check(domain, tensor.name, tensor.nbytes, tensor.chunks)
            tag = blake3(data, key=self._data_key(path.parent.name)).digest()
            _write(path, tag + self._crypt(path.parent.name, tag, data))
            self._kept.pop(domain, None)
            for digest in _digests(manifest):
                self._loose_of(domain).remove(digest)
            if old is not None:
                self._remove(domain, _digests(old))
        self.tell(domain)

    def models(self, domain: str) -> list[ModelManifest]:
        """The models of a domain, by name."""
        folder = self._model_path(domain, "").parent
        found = [self._read(path) for path in folder.iterdir()] if folder.exists() else []
        return sorted((model for model in found if model is not None), key=lambda model: model.name)

    def missing(self, domain: str, model: ModelManifest) -> int:
        """How many of its chunks are not there."""
        return sum(not self._chunk_path(domain, digest).exists() for digest in _digests(model))

    def forget(self, domain: str, name: str) -> int:
        """Remove a model and the chunks that no other of its domain has; their bytes. Raises CacheError when there is none."""
        with self._locked():
            path = self._model_path(domain, name)
            model = self._read(path)
            if not path.exists():
                raise CacheError(f"there is no model {name!r}; see: wooly model-cache list")
            path.unlink()
            freed = self._remove(domain, _digests(model)) if model is not None else 0
        self.tell(domain)
        return freed

    def recount(self) -> None:
        """Other executors of this node add and remove too: look at how much is there."""
        self.used_bytes = sum(stat.st_size for _, stat in self._files())
        self._kept.clear()

    # -- files ---------------------------------------------------------------------------------------------------------------------

    def _check(self, domain: str, name: str, nbytes: int, chunks: tuple[bytes, ...]) -> None:
        sizes = []
        for digest in chunks:
            try:
                sizes.append(self._chunk_path(domain, digest).stat().st_size)
            except OSError:
                raise CacheError(f"tensor {name!r}: a chunk is not there any more; add the model again") from None
        step = LIMITS.chunk_bytes
        if sum(sizes) != nbytes or any(size != step for size in sizes[:-1]):
            raise CacheError(f"tensor {name!r}: its chunks have {sum(sizes)} bytes, not {nbytes} cut by {step}")

    def _remove(self, domain: str, digests: set[bytes]) -> int:
        """Remove chunks that no model of the domain has; their bytes. Under the lock."""
        for model in self.models(domain):
            digests -= _digests(model)
        self._kept.pop(domain, None)
        freed = 0
        for digest in digests:
            path = self._chunk_path(domain, digest)
            self._loose_of(domain).remove(digest)
            with contextlib.suppress(OSError):
                nbytes = path.stat().st_size
                path.unlink()
                freed += nbytes
        self.used_bytes -= freed
        return freed

    def _clean(self) -> None:
        """Remove chunks of no model, of any domain, and files half written. Under the lock."""
        kept: set[str] = set()
        for folder in self._models.iterdir():
            for path in folder.iterdir():
                stored = self._stored(path)
                if stored is not None:
                    kept |= {str(self._chunk_path(stored.domain, digest)) for digest in _digests(stored.model)}
        oldest = time.time() - _ORPHAN_S
        for name, stat in self._files():
            if name not in kept and stat.st_mtime < oldest:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name)

    def _files(self) -> Iterator[tuple[str, os.stat_result]]:
        """Chunks, and files half written; executors of other devices rename and remove them meanwhile."""
        for folder in os.scandir(self._chunks):
            for entry in os.scandir(folder.path):
                try:
                    stat = entry.stat()
                except FileNotFoundError:
                    continue
                yield entry.path, stat

    def _read(self, path: Path) -> ModelManifest | None:
        stored = self._stored(path)
        return stored.model if stored is not None else None

    def _stored(self, path: Path) -> _Stored | None:
        """What a file of ``models`` says, None when there is none or it is damaged."""
        try:
            found = bytearray(path.read_bytes())
            tag = bytes(found[:_DIGEST_BYTES])
            data = self._crypt(path.parent.name, tag, found[_DIGEST_BYTES:]) if len(found) > _DIGEST_BYTES else bytearray()
            if blake3(data, key=self._data_key(path.parent.name)).digest() != tag:
                raise ValueError("it does not match its digest")
            return _stored.decode(data)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, msgspec.DecodeError) as error:
            self._log.warning("a model of the cache cannot be read", file=str(path), problem=str(error))
            return None

    def _chunk_path(self, domain: str, digest: bytes) -> Path:
        name = self._hash(b"chunk", domain, digest).hex()
        return self._chunks / name[:2] / name[2:]

    def _model_path(self, domain: str, name: str) -> Path:
        return self._models / self._domain_name(domain) / self._hash(b"model", domain, name.encode()).hex()

    def _domain_name(self, domain: str) -> str:
        return self._hash(b"domain", domain, b"").hex()

    def _data_key(self, domain_name: str) -> bytes:
        """Of a domain; from its folder's name, so that models can be read before it is known whose they are."""
        return self._hash(b"data", domain_name, b"")

    def _crypt(self, domain_name: str, name: bytes, data: bytearray) -> bytearray:
        """Encrypt or decrypt what has this name, a keyed hash of it; the same bytes when the cache is not encrypted."""
        if not self._encrypted:
            return data
        out = bytearray(len(data) + CIPHER_BYTES)
        crypt(self._data_key(domain_name), name, data, out)
        del out[len(data) :]
        return out

    def _hash(self, kind: bytes, domain: str, rest: bytes) -> bytes:
        whose = domain.encode()
        return blake3(bytes([len(kind)]) + kind + len(whose).to_bytes(4, "little") + whose + rest, key=self.key).digest()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """One at a time, of this process and of the node's other executors."""
        with self._lock, (self._folder / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _entries(model: ModelManifest) -> int:
    return sum(1 + len(tensor.chunks) for tensor in model.tensors)


def _digests(model: ModelManifest) -> set[bytes]:
    return {digest for tensor in model.tensors for digest in tensor.chunks}


def _write(path: Path, data: bytes | bytearray) -> None:
    """``path`` with ``data``, whole or not at all. Raises CacheError when the disk refuses."""
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        write_atomically(path, data)
    except OSError as error:
        raise CacheError(f"the model cache's disk refuses ({error.strerror}); see to the node's WOOLY_DATA_DIR") from None


_CHECKS_MAX: Final = 8
"""Chunks that one ``Have`` reads: what a client asks for at a time."""


class CachePort:
    """One connection, for one domain. Each method but the constructor may take as long as a disk and all lists of the domain."""

    def __init__(self, cache: ModelCache, content: Content, domain: str) -> None:
        self._cache = cache
        self._content = content
        self.domain = domain
        self._brought: set[bytes] = set()

    def open(self) -> Answer:
        """The connection is there."""
        self._cache.recount()
        self._cache.tell(self.domain)
        return Welcome()

    def answer(self, request: Have | Keep | Models | Forget) -> Answer:
        try:
            match request:
                case Have(digests):
                    return Had(bytes(at < _CHECKS_MAX and self._has(digest) for at, digest in enumerate(digests)))
                case Keep(manifest):
                    return self._keep(manifest)
                case Models():
                    models = tuple(self._status(model) for model in self._cache.models(self.domain))
                    return Listed(models, self._cache.used_bytes, self._cache.bytes_max)
                case Forget(model):
                    return Forgotten(self._cache.forget(self.domain, model))
        except CacheError as error:
            return error.denied

    def put(self, digest: bytes, chunk: bytearray) -> Answer:
        """A chunk that matches its name came."""
        try:
            self._cache.put(self.domain, digest, chunk)
        except CacheError as error:
            return error.denied
        self._brought.add(digest)
        return Stored(digest)

    def close(self) -> None:
        """The connection ended: what it brought for no model goes."""
        if self._brought:
            self._cache.abandon(self.domain, self._brought)

    def _has(self, digest: bytes) -> bool:
        return self._cache.chunk(self.domain, digest) is not None

    def _keep(self, name: bytes) -> Answer:
        data = self._cache.chunk(self.domain, name)
        if data is None:
            return Denied("put the manifest first")
        try:
            manifest = decode_manifest(data)
        except msgspec.DecodeError as error:
            return Denied(f"the manifest cannot be read ({error}): client and node are of different versions")
        self._cache.keep(self.domain, manifest)
        self._cache.abandon(self.domain, self._brought)  # the manifest itself, among others
        self._brought.clear()
        return Kept()

    def _status(self, model: ModelManifest) -> ModelStatus:
        holders: set[str] = set()
        resident_bytes = 0
        for tensor in model.tensors:
            found = self._content.holders(self.domain, tensor.nbytes, tensor.chunks)
            holders |= found
            resident_bytes += tensor.nbytes if found else 0
        return ModelStatus(
            name=model.name,
            dtype=model.dtype,
            tensors=len(model.tensors),
            nbytes=sum(tensor.nbytes for tensor in model.tensors),
            chunks=sum(-(-tensor.nbytes // LIMITS.chunk_bytes) for tensor in model.tensors),
            chunks_missing=self._cache.missing(self.domain, model),
            holders=len(holders),
            resident_bytes=resident_bytes,
        )
