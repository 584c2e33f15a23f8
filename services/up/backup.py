"""``python -P -m services.up.backup save|load COPY [--dir DIR] [--keyring FOLDER] [--cluster N]``: the streams of a bus to a folder while
services run, and back into an empty bus.

COPY/manifest.json (``Manifest``), COPY/streams/NAME (JetStream's own snapshot of a stream: its messages with their positions and times),
COPY/keyring. The bus is that of WOOLY_NATS_URL, or with ``--dir`` that of ``wooly up --dir DIR``.

A snapshot is of one moment of its stream. That of the events is made first: what they name is in the snapshots after it, which may hold
more. Left out: batches on their way and gauges, which nothing needs after an hour, and consumers, which services make anew.

Source of the messages: https://docs.nats.io/reference/reference-protocols/nats_api_reference (stream snapshots).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

import msgspec
from blake3 import blake3
from nats.errors import NoRespondersError

from bus_schemas.subjects import EVENTS_STREAM, TELEMETRY_STREAM
from services.kit.bus import Bus, connect
from services.kit.bus_permissions import CONTROLLER
from services.kit.credentials import Credentials
from services.kit.errors import BusRefused, BusUnavailable, KitError, SettingError
from services.kit.keyring import Keyring
from services.kit.nats_server import NatsCluster
from services.kit.streams import ELECTION_S, is_batch_stream, replicas, replicated

_FORMAT: Final = 1
_MANIFEST: Final = "manifest.json"
_CHUNK_BYTES: Final = 256 << 10
_SILENCE_S: Final = 60.0
_PAUSE_S: Final = 0.05
_DONE: Final = "204"
"""Status of the message that ends a snapshot which is whole."""


class Stream(msgspec.Struct, forbid_unknown_fields=True):
    """A stream of a copy."""

    #: as JetStream has it
    config: dict[str, Any]
    #: when the snapshot was made
    state: dict[str, Any]
    #: of its file
    nbytes: int
    #: BLAKE3 of its file, in hexadecimal digits
    digest: str


class Manifest(msgspec.Struct, forbid_unknown_fields=True):
    """What a copy holds."""

    format: int
    #: when the copy was begun, seconds since 1970
    made_s: int
    #: by name, in the order in which they were made
    streams: dict[str, Stream]


async def save(bus: Bus, folder: Path) -> Manifest:
    """Write the streams of a running bus to ``folder``. Raises BusRefused, BusUnavailable, OSError."""
    manifest = Manifest(_FORMAT, int(time.time()), {})
    (folder / "streams").mkdir(mode=0o700, parents=True)
    for name in await _names(bus):
        if not is_batch_stream(name) and name != TELEMETRY_STREAM:
            with (folder / "streams" / name).open("xb") as out:
                manifest.streams[name] = await _save_stream(bus, name, out)
                os.fsync(out.fileno())
    (folder / _MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=1))
    return manifest


def read_manifest(folder: Path) -> Manifest:
    """What a copy holds, once all of it was found undamaged. Raises SettingError."""
    try:
        manifest = msgspec.json.decode((folder / _MANIFEST).read_bytes(), type=Manifest)
    except (OSError, msgspec.MsgspecError) as error:
        raise SettingError(f"{folder} holds no whole backup ({error})") from None
    if manifest.format != _FORMAT:
        raise SettingError(f"{folder} has format {manifest.format}, this version reads {_FORMAT}: use the version of Wooly that made it")
    for name, stream in manifest.streams.items():
        digest = blake3()
        try:
            with _open(folder, name) as file:
                for chunk in iter(lambda: file.read(_CHUNK_BYTES), b""):
                    digest.update(chunk)
        except OSError as error:
            raise SettingError(f"{folder} is damaged: {error}") from None
        if digest.hexdigest() != stream.digest:
            raise SettingError(f"{folder} is damaged: {name} is not what was saved; use another backup")
    return manifest


async def load(bus: Bus, folder: Path, manifest: Manifest) -> None:
    """Write the streams of a copy to a bus that has none of them. Raises BusRefused, BusUnavailable, SettingError, OSError."""
    there = set(await _names(bus)) & set(manifest.streams)
    if there:
        raise SettingError(f"the bus holds {', '.join(sorted(there))} already; restore into an empty one, while no service runs")
    for name, stream in manifest.streams.items():
        with _open(folder, name) as file:
            await _load_stream(bus, name, stream, file)


def _open(folder: Path, name: str) -> IO[bytes]:
    return (folder / "streams" / Path(name).name).open("rb")


async def _names(bus: Bus) -> list[str]:
    """All streams, that of the events first."""
    names: list[str] = []
    while True:
        answer = await bus.js_api("STREAM.NAMES", {"offset": len(names)})
        part = answer.get("streams") or []
        names += part
        if not part or len(names) >= int(answer.get("total", 0)):
            return sorted(names, key=lambda name: (name != EVENTS_STREAM, name))


async def _save_stream(bus: Bus, name: str, out: IO[bytes]) -> Stream:
    digest, nbytes, inbox = blake3(), 0, bus.nc.new_inbox()
    chunks = await bus.nc.subscribe(inbox)
    try:
        asked = {"deliver_subject": inbox, "chunk_size": _CHUNK_BYTES, "no_consumers": True, "jsck": True}
        answer = await bus.js_api(f"STREAM.SNAPSHOT.{name}", asked)
        while True:
            try:
                chunk = await chunks.next_msg(_SILENCE_S)
            except TimeoutError:
                raise BusUnavailable(f"the snapshot of {name} stopped for {_SILENCE_S:g} s") from None
            status = (chunk.headers or {}).get("Status", _DONE)
            if status != _DONE:
                raise BusUnavailable(f"the snapshot of {name} failed: {status} {(chunk.headers or {}).get('Description', '')}; repeat it")
            if not chunk.data:
                return Stream(answer["config"], answer["state"], nbytes, digest.hexdigest())
            out.write(chunk.data)
            digest.update(chunk.data)
            nbytes += len(chunk.data)
            if chunk.reply:  # the server waits for that before it sends more
                await bus.publish(chunk.reply, b"")
    finally:
        await chunks.unsubscribe()


async def _load_stream(bus: Bus, name: str, stream: Stream, file: IO[bytes]) -> None:
    config = replicated({**stream.config, "num_replicas": 1}, bus.copies)
    place = (await bus.js_api(f"STREAM.RESTORE.{name}", {"config": config, "state": stream.state}))["deliver_subject"]
    for chunk in iter(lambda: file.read(_CHUNK_BYTES), b""):
        _check_answer(name, await deliver(bus, place, chunk))
    _check_answer(name, await deliver(bus, place, b""))
    state = (await bus.js_api(f"STREAM.INFO.{name}"))["state"]
    ages = any(stream.config.get(option) for option in ("max_age", "allow_msg_ttl"))  # what is too old by now is dropped at once
    for key in ("last_seq",) if ages else ("last_seq", "messages"):
        if state[key] != stream.state[key]:
            raise BusRefused(f"{name} was restored with {key} {state[key]} instead of {stream.state[key]}; use another backup")


async def deliver(bus: Bus, place: str, chunk: bytes) -> bytes:
    """The answer to a part of a stream. Where a cluster's servers hear of ``place`` after the client does, the part has no responder at
    first, and so was not delivered: it is sent again. Raises BusUnavailable."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + ELECTION_S
    while True:
        try:
            return await bus.request(place, chunk, _SILENCE_S)
        except BusUnavailable as error:
            if not isinstance(error.__cause__, NoRespondersError) or loop.time() > deadline:
                raise
            await asyncio.sleep(_PAUSE_S)


def _check_answer(name: str, data: bytes) -> None:
    error = (msgspec.json.decode(data) if data.startswith(b"{") else {}).get("error")
    if error:
        raise BusRefused(f"{name} cannot be restored: {error.get('description')}", int(error.get("err_code", 0)))


# -- the command -----------------------------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="services.up.backup", description="Copy the state of an installation, and bring it back.")
    parser.add_argument("step", choices=("save", "load"))
    parser.add_argument("copy", type=Path)
    parser.add_argument("--dir", type=Path, help="of `wooly up --dir`")
    parser.add_argument("--keyring", type=Path, help="its keyring: goes into the copy, and authenticates")
    parser.add_argument("--cluster", type=int, choices=(1, 3), default=1, help="servers of the bus of --dir")
    options = parser.parse_args(arguments)
    copy = options.copy.expanduser().resolve()
    try:
        if options.step == "save":
            manifest = _save(copy, options.dir, options.keyring)
        else:
            manifest = _load(copy, options.dir, options.keyring, options.cluster)
    except (KitError, OSError) as error:
        print(f"wooly: {error}", file=sys.stderr)
        return 2
    total = sum(stream.nbytes for stream in manifest.streams.values())
    events = manifest.streams[EVENTS_STREAM].state["last_seq"] if EVENTS_STREAM in manifest.streams else 0
    done = "is a backup" if options.step == "save" else "is restored"
    print(f"{copy} {done}: {len(manifest.streams)} streams, {total / 1e6:.1f} MB, the log up to position {events}")
    return 0


def _save(copy: Path, folder: Path | None, keyring: Path | None) -> Manifest:
    if copy.exists():
        raise SettingError(f"{copy} exists; name a folder that does not")
    if folder is not None and keyring is None and (folder / "keyring").exists():
        keyring = folder / "keyring"
    part = copy.with_name(f"{copy.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(mode=0o700, parents=True)
    try:
        manifest = asyncio.run(_save_from("" if folder is None else _running(folder, keyring), part, keyring))
        if keyring is not None:
            shutil.copytree(keyring, part / "keyring")
        part.rename(copy)  # what has this name is whole
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return manifest


async def _save_from(url: str, copy: Path, keyring: Path | None) -> Manifest:
    bus = await _connected(url, keyring)
    try:
        return await save(bus, copy)
    finally:
        await bus.close()


def _load(copy: Path, folder: Path | None, keyring: Path | None, size: int) -> Manifest:
    manifest = read_manifest(copy)
    if folder is None:
        return asyncio.run(_load_into("", copy, manifest, keyring))
    folder = folder.expanduser().resolve()
    if folder.exists() and any(folder.iterdir()):
        raise SettingError(f"{folder} is not empty; name a folder that is, or that does not exist")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        security = None
        if (copy / "keyring").exists():
            keyring = folder / "keyring"
            shutil.copytree(copy / "keyring", keyring)
            Keyring(keyring).configure_bus(str(keyring / "bus"))
            security = keyring / "bus" / "security.conf"
        nats = NatsCluster(folder / "nats", size, security=security)
        nats.start()
        try:
            return asyncio.run(_load_into(nats.url, copy, manifest, keyring, copies=size))
        finally:
            nats.stop()
    except BaseException:
        shutil.rmtree(folder)  # it was empty: all of it, or nothing
        raise


async def _load_into(url: str, copy: Path, manifest: Manifest, keyring: Path | None, copies: int = 0) -> Manifest:
    bus = await _connected(url, keyring)
    bus.copies = copies or replicas(os.environ)
    try:
        await load(bus, copy, manifest)
        return manifest
    finally:
        await bus.close()


def _running(folder: Path, keyring: Path | None) -> str:
    """Where the bus of a running ``wooly up --dir`` answers. Raises SettingError."""
    nats = folder.expanduser().resolve() / "nats"
    size = sum(1 for _ in nats.glob("[0-9]/store")) or 1
    url = NatsCluster(nats, size, security=None if keyring is None else keyring / "bus" / "security.conf").url
    if url.endswith(":0"):
        raise SettingError(f"{folder} is not of `wooly up --dir`")
    return url


async def _connected(url: str, keyring: Path | None) -> Bus:
    """A connection that may use all of JetStream. Raises SettingError, BusUnavailable."""
    url = url or os.environ.get("WOOLY_NATS_URL", "")
    if not url:
        raise SettingError("whose state? give --dir FOLDER of `wooly up --dir`, or set WOOLY_NATS_URL to the address of the bus")
    environment: Mapping[str, str] = os.environ if keyring is None else Keyring(keyring).environment(CONTROLLER)
    bus = await connect(url, name=CONTROLLER, credentials=Credentials.from_environment(environment, url))
    if bus.keyed:
        await bus.close()
        raise SettingError("an API key may not read all streams: give --keyring FOLDER, the keyring of this installation")
    return bus


if __name__ == "__main__":
    sys.exit(main())
