"""Access to the model cache: a name and a token, given by the server for an hour, checked by the data port. Nothing is remembered.

The name says until when and for which domain; the token is a keyed hash of it under the cache's own key, which only this node's processes
can read.
"""

from __future__ import annotations

import contextlib
import fcntl
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from blake3 import blake3

from bus_schemas import faults, subjects
from bus_schemas.batch import Fault
from bus_schemas.dataport import ModelCacheOpened, OpenModelCache
from services.kit.at_rest import AT_REST_VARIABLE, KeyWrap, WrongKey
from services.kit.log import get_logger
from services.server.settings import Trust
from wooly.shared.files import write_atomically

__all__ = ["answer_open", "cache_key", "make_door", "opens"]

DOOR_S: Final = 3600
_KEY_BYTES: Final = 32
_PREFIX: Final = "model-cache"


def cache_key(folder: Path, wrap: KeyWrap | None = None) -> bytes:
    """The secret of the cache in ``folder``, created by the first caller; with ``wrap`` it is on disk only wrapped. A cache that was kept
    under another key, or before there was one, is emptied. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / "key"
    with contextlib.suppress(FileNotFoundError, WrongKey):
        return _read_key(path, wrap)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            return _read_key(path, wrap)  # another process of the node made it meanwhile
        except FileNotFoundError:
            pass
        except WrongKey as error:
            _empty(folder, str(error))
        key = secrets.token_bytes(_KEY_BYTES)
        write_atomically(path, key if wrap is None else wrap.wrap(key), mode=0o600)
        return key


def _read_key(path: Path, wrap: KeyWrap | None) -> bytes:
    """Raises FileNotFoundError, WrongKey, and OSError when the key cannot be used without a ``wrap``."""
    stored = path.read_bytes()
    if wrap is not None:
        if len(stored) == _KEY_BYTES:
            raise WrongKey("it was kept without encryption")
        key = wrap.unwrap(stored)
        if not wrap.is_current(stored):
            get_logger().info("the key of the model cache is wrapped under the first key for data at rest", file=str(path))
            write_atomically(path, wrap.wrap(key), mode=0o600)
        return key
    if len(stored) != _KEY_BYTES:
        raise OSError(f"{path} is damaged, or encrypted: set {AT_REST_VARIABLE}, or remove {path.parent}, and add its models again")
    return stored


def _empty(folder: Path, problem: str) -> None:
    """Remove all entries, which cannot be read any more."""
    found = {kind: [path for path in (folder / kind).rglob("*") if path.is_file()] for kind in ("models", "chunks")}
    names = [str(path.relative_to(folder)) for path in found["models"]]
    get_logger().warning(
        "the model cache cannot be read and is emptied", folder=str(folder), problem=problem, models=names, chunks=len(found["chunks"])
    )
    for path in (*found["models"], *found["chunks"]):
        path.unlink(missing_ok=True)


def answer_open(
    request: OpenModelCache,
    folder: str,
    trust: Trust,
    data_ports: Sequence[tuple[str, ...] | None],
    now_s: int,
    wrap: KeyWrap | None = None,
) -> ModelCacheOpened:
    """The door for a requester. ``folder``: the cache's, empty: the node keeps none. ``data_ports``: of every device, None while it is
    being restarted. ``wrap``: wraps the key of the cache, None: it is not encrypted."""
    if not folder:
        return _refused(faults.MALFORMED, "this node keeps no models: WOOLY_MODEL_CACHE_MB is 0")
    if not 0 <= request.gpu < len(data_ports):
        return _refused(faults.NO_SUCH_DEVICE, f"the node has devices 0 to {len(data_ports) - 1}, not {request.gpu}")
    try:
        subjects.token(request.tenant)
        key = cache_key(Path(folder), wrap)
    except ValueError as error:
        return _refused(faults.MALFORMED, f"tenant: {error}")
    except OSError as error:
        return _refused(faults.NODE_FAULT, f"the node's model cache cannot be used: {error}")
    port = data_ports[request.gpu]
    if port is None:
        return _refused(faults.NODE_FAULT, f"device {request.gpu} is being restarted; try again")
    name, token = make_door(key, trust.domain(request.tenant), now_s)
    return ModelCacheOpened(name, token, port)


def make_door(key: bytes, domain: str, now_s: int) -> tuple[str, str]:
    """Name and token for ``domain``, good for an hour from ``now_s`` (Unix time)."""
    name = f"{_PREFIX} {now_s + DOOR_S} {secrets.token_hex(8)} {domain}"
    return name, _token(key, name)


def opens(key: bytes, name: str, token: str, now_s: int) -> str | None:
    """The domain that a door opens, None when it is none, or not any longer."""
    parts = name.split(" ", 3)
    if len(parts) != 4 or parts[0] != _PREFIX or not secrets.compare_digest(_token(key, name).encode(), token.encode(errors="replace")):
        return None
    return parts[3] if now_s < int(parts[1]) else None


def _refused(name: str, message: str) -> ModelCacheOpened:
    return ModelCacheOpened(fault=Fault(name, message, fatal=False))


def _token(key: bytes, name: str) -> str:
    return blake3(name.encode(errors="replace"), key=key).hexdigest()
