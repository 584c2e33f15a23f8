"""``wooly audit``: export signed audit records, and verify them offline."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import click

from wooly.cli.group import CommandError, echo
from wooly.cli.http import get_text
from wooly.cli.options import controller_flag
from wooly.remedies import install_extra
from wooly.shared.audit_chain import ChainError, Verified, verify
from wooly.shared.files import write_atomically

__all__ = ["audit"]

_LIMIT: Final = 10_000
_TIMEOUT_S: Final = 60.0


@click.group()
def audit() -> None:
    """Audit records: export to a file, verify a file."""


@audit.command("export")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@controller_flag
def export(file: Path, controller: str) -> None:
    """Append the audit records that FILE does not have yet; the file is made if there is none."""
    data = _read(file) if file.exists() else b""
    have = begin = _verified(data, lambda signature, message: True, file)
    while True:
        query = {"position": str(have.position), "previous": have.digest, "limit": str(_LIMIT)}
        text = get_text(controller, "/api/v1/audit/export", query, accept="application/x-ndjson", what="controller", timeout_s=_TIMEOUT_S)
        data += text.encode()
        now = _verified(data, lambda signature, message: True, controller)
        if now.records - have.records < _LIMIT:
            break
        have = now
    if now.records > begin.records or not begin.digest:
        try:
            write_atomically(file, data, mode=0o600, durable=True)
        except OSError as error:
            raise CommandError(f"{file} cannot be written: {error}") from None
    echo(f"{now.records - begin.records} new audit records in {file}, up to event {now.position}")
    _warn(now)


@audit.command("verify")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--key", required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path), help="The public key (audit.pub), PEM.")
def verify_file(file: Path, key: Path) -> None:
    """Check every digest and signature in FILE; needs no controller."""
    found = _verified(_read(file), _checker(key), file)
    if not found.digest:
        raise CommandError(f"{file} is empty")
    echo(f"the file is right: {found.records} audit records, after event {found.after}, up to event {found.position}")
    if not found.whole:
        echo("it continues another file: verify that too", err=True)
    _warn(found)


def _verified(data: bytes, signed: Callable[[bytes, bytes], bool], of: object) -> Verified:
    try:
        return verify(data.splitlines(keepends=True), signed)
    except ChainError as error:
        raise CommandError(f"the audit records of {of} are damaged: {error}") from None


def _warn(found: Verified) -> None:
    if not found.complete:
        echo("the controller no longer had all records of that time: export more often", err=True)


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise CommandError(f"{file} cannot be read: {error}") from None


def _checker(path: Path) -> Callable[[bytes, bytes], bool]:
    """Whether a signature is that of a message by the key in ``path``. Raises CommandError."""
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        from cryptography.hazmat.primitives.serialization import load_pem_public_key
    except ImportError:
        raise CommandError(f"the check of signatures needs `cryptography`; {install_extra('audit')}") from None
    try:
        key = load_pem_public_key(_read(path))
    except ValueError as error:
        raise CommandError(f"{path} holds no public key: {error}") from None
    if not isinstance(key, Ed25519PublicKey):
        raise CommandError(f"{path} is no Ed25519 key")

    def signed(signature: bytes, message: bytes) -> bool:
        try:
            key.verify(signature, message)
        except InvalidSignature:
            return False
        return True

    return signed
