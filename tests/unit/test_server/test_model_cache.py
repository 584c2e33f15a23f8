"""The model cache on a real disk: content by domain, bounded, and nothing read from it is believed unchecked."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import structlog
from blake3 import blake3

from bus_schemas.batch import LIMITS
from bus_schemas.dataport import (
    Denied,
    Forget,
    Forgotten,
    Get,
    Had,
    Have,
    Keep,
    Kept,
    Listed,
    ModelManifest,
    Models,
    ModelTensor,
    OpenModelCache,
    encode_manifest,
)
from bus_schemas.quotas import Excess
from services.kit.at_rest import FileKeyWrap, read_key_wrap
from services.server.executor import model_cache as module
from services.server.executor.content import Content
from services.server.executor.model_cache import CacheError, CachePort, ModelCache
from services.server.executor.staging import Staging
from services.server.model_cache_door import DOOR_S, answer_open, cache_key, make_door, opens
from services.server.settings import read_trust

MIB = 1 << 20


def name(data: bytes) -> bytes:
    return blake3(data).digest()


def manifest(model: str, **tensors: bytes) -> ModelManifest:
    step = LIMITS.chunk_bytes
    return ModelManifest(
        model,
        "",
        tuple(
            ModelTensor(key, "U8", (len(data),), len(data), tuple(name(data[at : at + step]) for at in range(0, len(data), step)))
            for key, data in tensors.items()
        ),
    )


def add(cache: ModelCache, domain: str, model: str, **tensors: bytes) -> None:
    for data in tensors.values():
        for at in range(0, len(data), LIMITS.chunk_bytes):
            chunk = data[at : at + LIMITS.chunk_bytes]
            cache.put(domain, name(chunk), bytearray(chunk))
    cache.keep(domain, manifest(model, **tensors))


def files(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "chunks").rglob("*") if path.is_file())


@pytest.fixture
def cache(tmp_path: Path) -> ModelCache:
    return ModelCache(tmp_path, 16 * MIB)


def test_models_survive_and_are_their_domains_alone(cache: ModelCache, tmp_path: Path) -> None:
    add(cache, "a", "base", x=b"x" * 100, y=b"y" * (LIMITS.chunk_bytes + 1))
    again = ModelCache(tmp_path, 16 * MIB)
    assert again.models("a") == [manifest("base", x=b"x" * 100, y=b"y" * (LIMITS.chunk_bytes + 1))]
    assert again.chunk("a", name(b"x" * 100)) == b"x" * 100
    assert again.used_bytes == cache.used_bytes == 101 + LIMITS.chunk_bytes
    assert again.models("b") == []
    assert again.chunk("b", name(b"x" * 100)) is None
    with pytest.raises(CacheError, match="no model 'base'"):
        again.forget("b", "base")


def test_names_of_files_tell_nothing_and_files_are_private(cache: ModelCache, tmp_path: Path) -> None:
    for domain in ("a", "b"):
        add(cache, domain, "base", x=b"x" * 100)
    assert len(files(tmp_path)) == 2, "content of other domains is not found: each has its own"
    assert not [path for path in files(tmp_path) if name(b"x" * 100).hex() in str(path).replace("/", "")]
    assert (tmp_path / "key").stat().st_mode & 0o077 == 0
    assert (tmp_path / "chunks").stat().st_mode & 0o077 == 0


def test_a_model_goes_with_the_chunks_that_no_other_has(cache: ModelCache, tmp_path: Path) -> None:
    add(cache, "a", "one", x=b"x" * 100, y=b"y" * 200)
    add(cache, "a", "two", x=b"x" * 100, z=b"z" * 300)
    assert cache.used_bytes == 600
    assert cache.forget("a", "one") == 200
    assert cache.chunk("a", name(b"x" * 100)) is not None
    add(cache, "a", "two", w=b"w" * 50)
    assert [path.stat().st_size for path in files(tmp_path)] == [50]
    assert cache.used_bytes == 50
    assert cache.forget("a", "two") == 50
    with pytest.raises(CacheError, match="no model 'two'"):
        cache.forget("a", "two")


@pytest.mark.parametrize("damage", [b"", b"y" * 100, b"x" * 99, b"x" * 101])
def test_a_damaged_chunk_is_never_served_and_comes_back(cache: ModelCache, tmp_path: Path, damage: bytes) -> None:
    add(cache, "a", "base", x=b"x" * 100)
    files(tmp_path)[0].write_bytes(damage)
    content = Content(staging := Staging(), cache)
    staging.open("s", "", MIB)
    from jit.backends import create_engine

    engine = create_engine("reference", cache_dir=None, threads=1, vram_bytes=MIB)
    content.open("s", "a", engine.open_space())
    assert content.have("s", (name(b"x" * 100),)) == b"\0", "so the client sends it"
    assert cache.missing("a", cache.models("a")[0]) == 1
    assert content.put("s", name(b"x" * 100), bytearray(b"x" * 100)) is None
    assert cache.missing("a", cache.models("a")[0]) == 0
    assert cache.chunk("a", name(b"x" * 100)) == b"x" * 100


def test_a_damaged_model_is_not_listed_and_can_be_deleted(cache: ModelCache, tmp_path: Path) -> None:
    add(cache, "a", "base", x=b"x" * 100)
    (path,) = (path for path in (tmp_path / "models").rglob("*") if path.is_file())
    path.write_bytes(path.read_bytes()[:-1])
    assert cache.models("a") == []
    assert cache.forget("a", "base") == 0


def test_chunks_of_an_add_that_was_cut_off_go(cache: ModelCache, tmp_path: Path) -> None:
    add(cache, "a", "base", x=b"x" * 100)
    for data in (b"left", b"young"):
        cache.put("a", name(data), bytearray(data))
    left = next(path for path in files(tmp_path) if path.read_bytes() == b"left")
    hours_ago = time.time() - 7200
    os.utime(left, (hours_ago, hours_ago))
    again = ModelCache(tmp_path, 16 * MIB)
    assert sorted(path.read_bytes() for path in files(tmp_path)) == [b"x" * 100, b"young"]
    assert again.used_bytes == 105


def test_chunks_that_other_executors_remove_meanwhile_are_not_counted(cache: ModelCache, tmp_path: Path) -> None:
    for data in (b"one", b"two", b"three"):
        cache.put("a", name(data), bytearray(data))
    listed = cache._files()
    next(listed)
    for path in files(tmp_path):
        path.unlink()
    assert list(listed) == []
    cache.recount()
    assert cache.used_bytes == 0


def bytes_on_disk(folder: Path) -> bytes:
    return b"".join(bytes(path) + path.read_bytes() for path in folder.rglob("*") if path.is_file())


def test_an_encrypted_cache_shows_neither_content_nor_names_nor_keys(tmp_path: Path) -> None:
    wrap = FileKeyWrap(bytes(32))
    cache = ModelCache(tmp_path, 16 * MIB, wrap=wrap)
    tensors = {"layer.weight": b"x" * (LIMITS.chunk_bytes + 1), "layer.bias": b"y" * 100}
    for domain in ("tenant anna", "tenant bert"):
        add(cache, domain, "base", **tensors)
    disk = bytes_on_disk(tmp_path)
    known = [blake3(data).digest() for data in tensors.values()]
    for secret in (b"x" * 32, b"y" * 32, b"layer", b"base", b"anna", cache.key, *known, *(digest.hex().encode() for digest in known)):
        assert secret not in disk
    contents = [path.read_bytes() for path in files(tmp_path)]
    assert sorted(map(len, contents)) == [1, 1, 100, 100, LIMITS.chunk_bytes, LIMITS.chunk_bytes]
    large = [data for data in contents if len(data) > 1]
    assert len(set(large)) == 4, "each domain has a key of its own"

    again = ModelCache(tmp_path, 16 * MIB, wrap=wrap)
    assert again.models("tenant anna") == [manifest("base", **tensors)]
    assert again.chunk("tenant anna", name(b"y" * 100)) == b"y" * 100
    assert again.chunk("tenant anna", name(b"x" * LIMITS.chunk_bytes)) == b"x" * LIMITS.chunk_bytes
    for path in tmp_path.rglob("*"):
        if path.is_file() and path.name != "key" and path.stat().st_size:
            data = bytearray(path.read_bytes())
            data[-1] ^= 1
            path.write_bytes(data)
    assert again.chunk("tenant anna", name(b"y" * 100)) is None
    assert again.models("tenant bert") == []


@pytest.mark.parametrize(("before", "after"), [(bytes(32), b"k" * 32), (None, bytes(32))])
def test_a_cache_under_another_key_is_emptied_and_says_so(before: bytes | None, after: bytes, tmp_path: Path) -> None:
    add(ModelCache(tmp_path, MIB, wrap=FileKeyWrap(before) if before else None), "a", "base", x=b"x" * 100)
    (model,) = (path for path in (tmp_path / "models").rglob("*") if path.is_file())
    with structlog.testing.capture_logs() as logs:
        cache = ModelCache(tmp_path, MIB, wrap=FileKeyWrap(after))
    (line,) = logs
    assert (line["models"], line["chunks"], line["log_level"]) == ([str(model.relative_to(tmp_path))], 1, "warning")
    assert (cache.models("a"), cache.used_bytes, files(tmp_path)) == ([], 0, [])
    add(cache, "a", "base", x=b"x" * 100)
    assert ModelCache(tmp_path, MIB, wrap=FileKeyWrap(after)).models("a") == [manifest("base", x=b"x" * 100)]


def test_a_cache_outlives_its_key_for_data_at_rest(tmp_path: Path) -> None:
    """As an operator replaces it: a new line in front, a start, and the old line goes."""
    file, folder = tmp_path / "at-rest.key", tmp_path / "cache"
    old, new = "0a" * 32, "0b" * 32

    def started(*lines: str) -> tuple[list[ModelManifest], bytes]:
        file.write_text("".join(f"{line}\n" for line in lines))
        return ModelCache(folder, MIB, wrap=read_key_wrap(str(file))).models("a"), (folder / "key").read_bytes()

    file.write_text(old)
    add(ModelCache(folder, MIB, wrap=read_key_wrap(str(file))), "a", "base", x=b"x" * 100)
    models, wrapped = started(old, new)
    assert models == [manifest("base", x=b"x" * 100)] and started(old) == (models, wrapped)
    assert started(new, old)[0] == models
    rewrapped = started(new)
    assert rewrapped[0] == models and rewrapped[1] != wrapped
    assert (folder / "key").stat().st_mode & 0o077 == 0
    assert started(old)[0] == [], "the old key reads nothing"


def test_an_encrypted_cache_is_left_as_it_is_without_its_key(tmp_path: Path) -> None:
    wrap = FileKeyWrap(bytes(32))
    add(ModelCache(tmp_path, MIB, wrap=wrap), "a", "base", x=b"x" * 100)
    with pytest.raises(OSError, match="WOOLY_AT_REST_KEY_FILE"):
        ModelCache(tmp_path, MIB)
    assert len(ModelCache(tmp_path, MIB, wrap=wrap).models("a")) == 1


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path, 100)
    cache.put("a", name(b"x" * 60), bytearray(b"x" * 60))
    cache.put("a", name(b"x" * 60), bytearray(b"x" * 60))
    with pytest.raises(CacheError, match="raise WOOLY_MODEL_CACHE_MB"):
        cache.put("a", name(b"y" * 41), bytearray(b"y" * 41))
    cache.put("a", name(b"y" * 40), bytearray(b"y" * 40))


def test_a_domain_has_its_part_of_the_cache_and_gets_back_what_it_deletes(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path, 1000, 100)
    add(cache, "a", "base", x=b"x" * 60)
    cache.recount()  # as another connection does
    cache.put("a", name(b"y" * 40), bytearray(b"y" * 40))
    with pytest.raises(CacheError, match=r"a has used 100 of 100 bytes in the model cache \(quota stored_bytes\); delete a model") as full:
        cache.put("a", name(b"z"), bytearray(b"z"))
    assert full.value.denied.excess == Excess("stored_bytes", 100, 100, 5_000)
    add(cache, "b", "base", x=b"x" * 100)
    again = ModelCache(tmp_path, 1000, 100)
    assert (cache.domain_bytes("a"), again.domain_bytes("a"), again.domain_bytes("b")) == (100, 60, 100)
    next(path for path in files(tmp_path) if path.read_bytes() == b"x" * 60).write_bytes(b"")
    assert cache.chunk("a", name(b"x" * 60)) is None, "it is damaged, so it goes"
    cache.put("a", name(b"x" * 60), bytearray(b"x" * 60))
    assert cache.domain_bytes("a") == 100, "and its replacement is no more than it was"
    cache.abandon("a", [name(b"y" * 40)])
    cache.forget("a", "base")
    add(cache, "a", "more", x=b"x" * 90)
    assert cache.domain_bytes("a") == 90


def test_chunks_of_a_byte_and_models_without_bytes_are_bounded_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk takes a block of the disk, and a list of tensors is no chunk."""
    monkeypatch.setattr(module, "_CHUNKS_MIN", 3)
    monkeypatch.setattr(module, "_MODELS_MAX", 2)
    cache = ModelCache(tmp_path, 1000, 1000)
    add(cache, "a", "base", x=b"x", y=b"y")
    cache.put("a", name(b"z"), bytearray(b"z"))
    with pytest.raises(CacheError, match="a has 3 chunks in the model cache: delete a model"):
        cache.put("a", name(b"w"), bytearray(b"w"))
    cache.put("b", name(b"w"), bytearray(b"w"))
    cache.abandon("a", [name(b"z")])
    cache.put("a", name(b"w"), bytearray(b"w"))
    cache.keep("a", manifest("empty"))
    cache.keep("a", manifest("empty"))
    with pytest.raises(CacheError, match="a has 2 models in the cache, 2 may be"):
        cache.keep("a", manifest("more"))
    monkeypatch.setattr(module, "_MANIFESTS_BYTES_MAX", 10)
    with pytest.raises(CacheError, match="lists of tensors of 0 MiB and"):
        cache.keep("b", manifest("first"))


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (manifest("no/../such name"), "cannot be called"),
        (manifest(""), "cannot be called"),
        (manifest("m", x=b"absent"), "'x': a chunk is not there"),
        (ModelManifest("m", "", (ModelTensor("x", "U8", (9,), 9, (name(b"here"),)),)), "its chunks have 4 bytes, not 9"),
        (ModelManifest("m", "", (ModelTensor("x", "U8", (8,), 8, (name(b"here"), name(b"here"))),)), "not 8 cut by"),
    ],
)
def test_a_model_that_breaks_a_rule_is_refused(cache: ModelCache, model: ModelManifest, reason: str) -> None:
    cache.put("a", name(b"here"), bytearray(b"here"))
    with pytest.raises(CacheError) as caught:
        cache.keep("a", model)
    assert reason in str(caught.value)
    assert cache.models("a") == []


def test_a_connection_keeps_lists_and_forgets(cache: ModelCache, tmp_path: Path) -> None:
    content = Content(Staging(), cache)
    port = CachePort(cache, content, "a")
    data = encode_manifest(manifest("base", x=b"x" * 100))
    assert port.answer(Have((name(b"x" * 100),))) == Had(b"\0")
    assert port.answer(Keep(name(data))) == Denied("put the manifest first")
    for chunk in (b"x" * 100, data, b"of no model"):
        port.put(name(chunk), bytearray(chunk))
    assert port.answer(Have((name(b"x" * 100),))) == Had(b"\1")
    assert port.answer(Keep(name(b"of no model"))) != Kept()
    assert port.answer(Keep(name(data))) == Kept()
    listed = port.answer(Models())
    assert isinstance(listed, Listed)
    (status,) = listed.models
    assert (status.name, status.tensors, status.nbytes, status.chunks, status.chunks_missing, status.holders) == ("base", 1, 100, 1, 0, 0)
    assert [path.read_bytes() for path in files(tmp_path)] == [b"x" * 100], "neither the manifest nor what it does not name is left"
    other = CachePort(cache, content, "b")
    assert isinstance(other.answer(Forget("base")), Denied)
    assert other.answer(Have((name(b"x" * 100),))) == Had(b"\0")
    other.put(name(b"cut off"), bytearray(b"cut off"))
    other.close()
    assert port.answer(Get("blob")) is None
    assert port.answer(Forget("base")) == Forgotten(100)
    port.close()
    assert files(tmp_path) == []


def test_doors_open_their_domain_for_an_hour(tmp_path: Path) -> None:
    key = cache_key(tmp_path)
    assert key == cache_key(tmp_path)
    door, token = make_door(key, "tenant a", 1000)
    assert opens(key, door, token, 1000 + DOOR_S - 1) == "tenant a"
    assert opens(key, door, token, 1000 + DOOR_S) is None
    assert opens(key, door, token[:-1] + "é", 1000) is None
    assert opens(key, door.replace("tenant a", "tenant b"), token, 1000) is None
    assert opens(key, door.replace("4600", "9999"), token, 1000) is None
    assert opens(bytes(32), door, token, 1000) is None
    assert opens(key, "a session", token, 1000) is None
    assert opens(key, "", "", 1000) is None


def test_doors_are_refused_with_the_reason(tmp_path: Path) -> None:
    trust = read_trust("a,b")

    def refusal(request: OpenModelCache, folder: str = str(tmp_path)) -> str:
        opened = answer_open(request, folder, trust, [("unix:/d0",), None], 0)
        assert opened.fault is not None
        assert not opened.token
        return opened.fault.message

    assert "WOOLY_MODEL_CACHE_MB is 0" in refusal(OpenModelCache("a"), "")
    assert "devices 0 to 1, not 2" in refusal(OpenModelCache("a", 2))
    assert "being restarted" in refusal(OpenModelCache("a", 1))
    assert "tenant: 'a b'" in refusal(OpenModelCache("a b"))
    (tmp_path / "key").write_bytes(b"short")
    assert "is damaged" in refusal(OpenModelCache("a"))
    (tmp_path / "key").unlink()
    opened = answer_open(OpenModelCache("a"), str(tmp_path), trust, [("unix:/d0",)], 0)
    assert opened.data_port == ("unix:/d0",)
    assert opens(cache_key(tmp_path), opened.name, opened.token, 0) == trust.domain("b")
