"""The certificate that the operators show to the API server and to pods: made and renewed by the leader, in a secret that all of them read,
with an authority of its own, which the leader writes into the webhook's configuration.

Secret ``wooly-operator-tls``: ca.crt (one certificate, or two while a new authority replaces the old), ca.key, tls.crt, tls.key. Authority
and certificate are renewed after two thirds of their time.
"""

from __future__ import annotations

import asyncio
import base64
import datetime
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from lightkube import ApiError, AsyncClient
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.admissionregistration_v1 import MutatingWebhookConfiguration
from lightkube.resources.core_v1 import Secret
from lightkube.types import PatchType

from services.kit.errors import SettingError
from services.kit.keyring import Authority, new_authority, write_private
from services.kit.log import get_logger
from services.operator.settings import Settings
from services.operator.watching import API_ERRORS

__all__ = ["Certificates", "is_due", "renewed"]

_NAME: Final = "wooly-operator-tls"
_LOOK_S: Final = 5.0
_FIRST_S: Final = 0.5
_FILES: Final = {"ca.crt": "ca/ca.pem", "ca.key": "ca/ca.key", "tls.crt": "cert.pem", "tls.key": "key.pem"}
"""Keys of the secret, and the files that ``services.kit.keyring`` names so."""

Data = dict[str, bytes]


def is_due(certificate: x509.Certificate, now: datetime.datetime) -> bool:
    """Two thirds of its time are over."""
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return now >= begin + (end - begin) * 2 / 3


def renewed(held: Mapping[str, bytes], folder: Path, names: Sequence[str], now: datetime.datetime) -> Data:
    """What the secret should hold, for a service that is called ``names``. ``folder``: scratch. Raises SettingError, OSError."""
    for key, file in _FILES.items():
        (folder / file).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if key in held:
            write_private(folder / file, held[key])
        else:
            (folder / file).unlink(missing_ok=True)
    try:
        authority = Authority.load_or_make(folder / "ca")
    except SettingError:  # damaged
        (folder / "ca/ca.key").unlink()
        authority = Authority.load_or_make(folder / "ca")
    if is_due(authority.certificate, now):
        certificate, private = new_authority()
        write_private(folder / "ca/ca.pem", certificate + authority.certificate.public_bytes(serialization.Encoding.PEM))
        write_private(folder / "ca/ca.key", private)
        authority = Authority.load_or_make(folder / "ca")
    if not _is_good(folder / "cert.pem", authority, names, now):
        authority.issue(folder, names)
    return {key: (folder / file).read_bytes() for key, file in _FILES.items()}


def _is_good(file: Path, authority: Authority, names: Sequence[str], now: datetime.datetime) -> bool:
    try:
        certificate = x509.load_pem_x509_certificate(file.read_bytes())
        key = serialization.load_pem_private_key(file.with_name("key.pem").read_bytes(), None)
        certificate.verify_directly_issued_by(authority.certificate)
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(x509.DNSName)
    except Exception as error:  # absent, damaged, of another authority: all are replaced
        get_logger().info("a certificate is made", why=str(error) or type(error).__name__)
        return False
    return set(names) <= set(found) and key.public_key() == certificate.public_key() and not is_due(certificate, now)


class Certificates:
    """``files``: certificate and key, replaced when they are renewed. ``ready`` is set once they are there."""

    def __init__(self, kube: AsyncClient, settings: Settings) -> None:
        self._kube = kube
        self._settings = settings
        self.files = settings.folder / "cert.pem", settings.folder / "key.pem"
        self.ready = asyncio.Event()
        #: PEM of the authority; empty until it is known
        self.authority = ""

    async def follow(self, leading: asyncio.Event) -> None:
        """Keep the files as the secret is; ``leading``: keep the secret and the webhook's configuration too."""
        while True:
            try:
                await self._look(leading.is_set())
            except (*API_ERRORS, OSError, SettingError) as error:
                get_logger().warning("the certificate is not looked after", error=str(error))
            await asyncio.sleep((_LOOK_S if self.ready.is_set() else _FIRST_S) * random.uniform(0.8, 1.2))

    async def _look(self, leading: bool) -> None:
        secret = await self._secret()
        held: Data = {key: base64.b64decode(value) for key, value in ((secret.data if secret is not None else None) or {}).items()}
        if leading:
            now, names = datetime.datetime.now(datetime.UTC), (self._settings.host, "localhost")
            wanted = await asyncio.to_thread(renewed, held, self._settings.folder / "new", names, now)
            # The API server trusts an authority before a certificate of it is shown.
            await self._trust(base64.b64encode(wanted["ca.crt"]).decode())
            if wanted != held:
                await self._write(secret, wanted)
                held = wanted
        if not all(held.get(key) for key in _FILES):
            return
        for path, key in zip(self.files, ("tls.crt", "tls.key"), strict=True):
            if not path.exists() or path.read_bytes() != held[key]:
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                write_private(path, held[key])
        self.authority = held["ca.crt"].decode()
        self.ready.set()

    async def _secret(self) -> Secret | None:
        try:
            return await self._kube.get(Secret, _NAME, namespace=self._settings.namespace)
        except ApiError as error:
            if error.status.code == 404:
                return None
            raise

    async def _write(self, held: Secret | None, data: Data) -> None:
        """Raises ApiError (409) when another operator wrote it meanwhile."""
        encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
        if held is None:
            new = Secret(metadata=ObjectMeta(name=_NAME, namespace=self._settings.namespace), type="Opaque", data=encoded)
            await self._kube.create(new)
        else:
            held.data = encoded
            await self._kube.replace(held)

    async def _trust(self, bundle: str) -> None:
        """Write the authority into every webhook of the configuration; where there is none, the cluster's policies do its work."""
        try:
            found = await self._kube.get(MutatingWebhookConfiguration, self._settings.webhook)
        except ApiError as error:
            if error.status.code == 404:
                return
            raise
        patch: list[dict[str, Any]] = []
        for index, webhook in enumerate(found.webhooks or ()):
            if webhook.clientConfig.caBundle != bundle:
                patch += [
                    {"op": "test", "path": f"/webhooks/{index}/name", "value": webhook.name},
                    {"op": "add", "path": f"/webhooks/{index}/clientConfig/caBundle", "value": bundle},
                ]
        if patch:
            await self._kube.patch(MutatingWebhookConfiguration, self._settings.webhook, patch, patch_type=PatchType.JSON)
