"""Rotates keys of a keyring (``services.kit.keyring``) while services run, in three steps; between two of them the files may be copied to
other machines.

    add(folder, kind)                   the new key is accepted everywhere
    use(folder, kind)                   the new key signs; the old one is still accepted
    retire(folder, kind, last)          the old key is accepted no more

Kinds: ``seal`` (seals of events, and the secret of browser sessions, which follows from it), ``ca`` (the authority, and all
certificates) and ``bus`` (the users that the bus's configuration names, and the issuer of its callout).
Processes look at the files when they use them (``wooly.shared.files.Reread``): none is restarted, and no connection is ended by us. The
exception are the servers of the bus after ``use bus``, because NATS knows one issuer and reads it at its start only; controllers sign for
each server with the issuer that it asks for, so they restart one after another.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from services.kit import nats_jwt
from services.kit.bus_permissions import BILLING, CONTROLLER, RUNNER
from services.kit.errors import SettingError
from services.kit.keyring import Authority, Keyring, new_authority, write_private
from services.kit.seal import SealKey, read_seal_keys, write_seal_keys
from wooly.shared.files import write_atomically

KINDS: Final = ("seal", "ca", "bus")
STEPS: Final = ("add", "use", "retire")
_GUARD: Final = f"{CONTROLLER}/guard.nk"
_USERS: Final = (f"{BILLING}/nats.nk", f"{RUNNER}/nats.nk", f"{CONTROLLER}/nats.nk", _GUARD)
_BUS_KEYS: Final = {**dict.fromkeys(_USERS, nats_jwt.USER), f"{CONTROLLER}/issuer.nk": nats_jwt.ACCOUNT}
_NEXT: Final = " next"


def add(folder: Path, kind: str) -> None:
    """Make a new key that is accepted and not used yet. Raises SettingError while another rotation of this kind is under way, OSError."""
    if kind == "seal":
        keys = _seal_keys(folder)
        if len(_accepted(keys)) > 1:
            raise SettingError(_under_way(kind))
        _write_seal_keys(folder, [*keys, SealKey(os.urandom(32), next=True)])
        return
    if kind == "bus":
        if len(_lines(folder / _GUARD)) > 1:
            raise SettingError(_under_way(kind))
        _write_lines(folder, {name: [_lines(folder / name)[0], f"{nats_jwt.new_seed(kind)} next"] for name, kind in _BUS_KEYS.items()})
        return
    authority = Authority.load_or_make(folder / "ca")
    bundle = authority.certificate_file.read_bytes()
    if len(x509.load_pem_x509_certificates(bundle)) > 1:
        raise SettingError(_under_way(kind))
    certificate, key = new_authority()
    _write_bundle(folder, bundle + certificate)
    write_private(_next(folder), key)


def use(folder: Path, kind: str) -> None:
    """Sign with the key that ``add`` made; ``ca``: issue all certificates anew, with the same authority if there is no new one. Raises
    SettingError, OSError."""
    if kind == "seal":
        keys = _seal_keys(folder)
        if not any(key.next for key in keys):
            raise SettingError("there is no new key to use; make one with: add seal")
        _write_seal_keys(folder, [replace(key, next=False) for key in sorted(keys, key=lambda key: not key.next)])
        return
    if kind == "bus":
        if not _lines(folder / _GUARD)[-1].endswith(_NEXT):
            raise SettingError("there are no new keys to use; make them with: add bus")
        _write_lines(folder, {name: [_lines(folder / name)[-1].removesuffix(_NEXT), _lines(folder / name)[0]] for name in _BUS_KEYS})
        return
    if _next(folder).exists():
        _next(folder).replace(folder / "ca" / "ca.key")
    authority = Authority.load_or_make(folder / "ca")
    # The controller last: when its certificate has changed, it has the bus read its own again.
    for names in sorted(folder.glob("**/names.json"), key=lambda path: (path.parent.name == CONTROLLER, path)):
        if names.parent.name == CONTROLLER:
            Keyring(folder).configure_bus()
        authority.renew(names.parent)


def retire(folder: Path, kind: str, last: int) -> None:
    """Accept the key that ``use`` replaced no more; ``seal``: its seals count up to position ``last`` of the log, the end of it. Raises
    SettingError, OSError."""
    if kind == "seal":
        keys = _seal_keys(folder)
        if any(key.next for key in keys) or len(_accepted(keys)) < 2:
            raise SettingError(_nothing_old(kind))
        _write_seal_keys(folder, [keys[0], *(replace(key, until=last) if key.until is None else key for key in keys[1:])])
        return
    if kind == "bus":
        if len(_lines(folder / _GUARD)) < 2 or _lines(folder / _GUARD)[-1].endswith(_NEXT):
            raise SettingError(_nothing_old(kind))
        # The old issuer stays until the next rotation: a server that was not restarted asks for it, and the others do not accept it.
        _write_lines(folder, {name: _lines(folder / name)[:1] for name in _USERS})
        return
    authority = Authority.load_or_make(folder / "ca")
    if _next(folder).exists() or len(x509.load_pem_x509_certificates(authority.certificate_file.read_bytes())) < 2:
        raise SettingError(_nothing_old(kind))
    _write_bundle(folder, authority.certificate.public_bytes(serialization.Encoding.PEM))
    Keyring(folder).configure_bus(alone=True)
    _have_bus_read(folder)


def describe(folder: Path, kind: str) -> list[str]:
    """A line for each key: its id, and what it is good for."""
    if kind == "seal":
        uses = ["signs", *(f"accepted up to event {key.until}" if key.until is not None else "accepted" for key in _seal_keys(folder)[1:])]
        return [f"{key.id} {use}" for key, use in zip(_seal_keys(folder), uses, strict=True)]
    if kind == "bus":
        found = [(name, [nats_jwt.public_key(seed) for seed in nats_jwt.read_seeds(folder / name)]) for name in _BUS_KEYS]
        return [f"{name} {key[:8]} {'accepted' if at else 'in use'}" for name, keys in found for at, key in enumerate(keys)]
    authority = Authority.load_or_make(folder / "ca")
    certificates = x509.load_pem_x509_certificates(authority.certificate_file.read_bytes())
    return [
        f"{one.fingerprint(hashes.SHA256())[:4].hex()} {'signs' if one == authority.certificate else 'accepted'}" for one in certificates
    ]


def _accepted(keys: Sequence[SealKey]) -> list[SealKey]:
    return [key for key in keys if key.until is None]


def _seal_keys(folder: Path) -> tuple[SealKey, ...]:
    path = folder / CONTROLLER / "seal.key"
    try:
        return read_seal_keys(path.read_text())
    except ValueError as error:
        raise SettingError(f"{path}: {error}") from None


def _write_seal_keys(folder: Path, keys: Sequence[SealKey]) -> None:
    for service in (CONTROLLER, BILLING):
        write_private(folder / service / "seal.key", write_seal_keys(keys).encode())


def _lines(path: Path) -> list[str]:
    """Seeds and their states (``services.kit.nats_jwt``). Raises SettingError."""
    try:
        nats_jwt.read_seeds(path)
        return path.read_text().splitlines()
    except (OSError, ValueError) as error:
        raise SettingError(f"{path}: {error}") from None


def _write_lines(folder: Path, files: Mapping[str, Sequence[str]]) -> None:
    for name, lines in files.items():
        write_private(folder / name, "\n".join(lines).encode())
    Keyring(folder).configure_bus()
    _have_bus_read(folder)


def _have_bus_read(folder: Path) -> None:
    """When this file was replaced, the controller has the bus read its configuration again."""
    write_private(folder / _GUARD, (folder / _GUARD).read_bytes())


def _write_bundle(folder: Path, bundle: bytes) -> None:
    for path in folder.glob("**/ca.pem"):
        write_atomically(path, bundle)


def _next(folder: Path) -> Path:
    return folder / "ca" / "next.key"


def _under_way(kind: str) -> str:
    return f"a rotation of {kind} is under way; go on with it: use {kind}, then retire {kind}"


def _nothing_old(kind: str) -> str:
    return f"there is no old key to retire: add {kind}, then use {kind}, come first"
