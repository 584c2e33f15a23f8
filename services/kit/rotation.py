"""Rotates keys of a keyring (``services.kit.keyring``) while services run, in three steps; between two of them the files may be copied to
other machines.

    add(folder, kind)                   the new key is accepted everywhere
    use(folder, kind)                   the new key signs; the old one is still accepted
    retire(folder, kind, last)          the old key is accepted no more

Kinds: ``seal`` (seals of events, and the secret of browser sessions, which follows from it) and ``ca`` (the authority, and all
certificates).
Processes look at the files when they use them (``wooly.shared.files.Reread``): none is restarted, and no connection is ended by us.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from services.kit.bus_permissions import BILLING, CONTROLLER
from services.kit.errors import SettingError
from services.kit.keyring import Authority, new_authority, write_private
from services.kit.seal import SealKey, read_seal_keys, write_seal_keys
from wooly.shared.files import write_atomically

__all__ = ["KINDS", "STEPS", "add", "describe", "retire", "use"]

KINDS: Final = ("seal", "ca")
STEPS: Final = ("add", "use", "retire")


def add(folder: Path, kind: str) -> None:
    """Make a new key that is accepted and not used yet. Raises SettingError while another rotation of this kind is under way, OSError."""
    if kind == "seal":
        keys = _seal_keys(folder)
        if len(_accepted(keys)) > 1:
            raise SettingError(_under_way(kind))
        _write_seal_keys(folder, [*keys, SealKey(os.urandom(32), next=True)])
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
    if _next(folder).exists():
        _next(folder).replace(folder / "ca" / "ca.key")
    authority = Authority.load_or_make(folder / "ca")
    # The controller last: when its certificate has changed, it has the bus read its own again.
    for names in sorted(folder.glob("**/names.json"), key=lambda path: (path.parent.name == CONTROLLER, path)):
        authority.issue(names.parent, json.loads(names.read_text()))


def retire(folder: Path, kind: str, last: int) -> None:
    """Accept the key that ``use`` replaced no more; ``seal``: its seals count up to position ``last`` of the log, the end of it. Raises
    SettingError, OSError."""
    if kind == "seal":
        keys = _seal_keys(folder)
        if any(key.next for key in keys) or len(_accepted(keys)) < 2:
            raise SettingError(_nothing_old(kind))
        _write_seal_keys(folder, [keys[0], *(replace(key, until=last) if key.until is None else key for key in keys[1:])])
        return
    authority = Authority.load_or_make(folder / "ca")
    if _next(folder).exists() or len(x509.load_pem_x509_certificates(authority.certificate_file.read_bytes())) < 2:
        raise SettingError(_nothing_old(kind))
    _write_bundle(folder, authority.certificate.public_bytes(serialization.Encoding.PEM))


def describe(folder: Path, kind: str) -> list[str]:
    """A line for each key: its id, and what it is good for."""
    if kind == "seal":
        uses = ["signs", *(f"accepted up to event {key.until}" if key.until is not None else "accepted" for key in _seal_keys(folder)[1:])]
        return [f"{key.id} {use}" for key, use in zip(_seal_keys(folder), uses, strict=True)]
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


def _write_bundle(folder: Path, bundle: bytes) -> None:
    for path in folder.glob("**/ca.pem"):
        write_atomically(path, bundle)


def _next(folder: Path) -> Path:
    return folder / "ca" / "next.key"


def _under_way(kind: str) -> str:
    return f"a rotation of {kind} is under way; go on with it: use {kind}, then retire {kind}"


def _nothing_old(kind: str) -> str:
    return f"there is no old key to retire: add {kind}, then use {kind}, come first"
