"""A certificate authority of our own, for an installation that has none: made once, kept under the installation's folder.

EC keys (P-256). The authority is good for ten years, certificates of services for two; ``issue`` makes a new one whenever it is called.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from services.kit.errors import SettingError
from wooly.shared.files import write_atomically

__all__ = ["Authority", "write_private"]

_DAY: Final = datetime.timedelta(days=1)
_AUTHORITY_LIFE: Final = 3650 * _DAY
_SERVICE_LIFE: Final = 730 * _DAY


@dataclass(frozen=True, slots=True)
class Authority:
    """``certificate_file``: what clients are given as WOOLY_TLS_CA."""

    certificate_file: Path
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def load_or_make(cls, folder: Path, name: str = "Wooly installation") -> Authority:
        """The authority in ``folder`` (``ca.pem``, ``ca.key``). Raises SettingError when what is there is damaged, OSError."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        certificate_file, key_file = folder / "ca.pem", folder / "ca.key"
        if not key_file.exists():
            _make(certificate_file, key_file, name)
        try:
            key = serialization.load_pem_private_key(key_file.read_bytes(), None)
            certificate = x509.load_pem_x509_certificate(certificate_file.read_bytes())
        except (ValueError, FileNotFoundError) as error:
            raise SettingError(f"{folder} holds no usable authority ({error}); remove ca.pem and ca.key to make a new one") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise SettingError(f"{key_file} is not a key of ours; remove ca.pem and ca.key to make a new one")
        return cls(certificate_file, certificate, key)

    def issue(self, folder: Path, names: Sequence[str]) -> None:
        """``cert.pem`` and ``key.pem`` in ``folder`` for a service that is called by ``names`` (hosts and addresses)."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        key = ec.generate_private_key(ec.SECP256R1())
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
        certificate = (
            _begin(names[0], self.certificate.subject, key.public_key(), _SERVICE_LIFE)
            .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in dict.fromkeys(names)]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(usage, critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
            .sign(self.key, hashes.SHA256())
        )
        write_private(folder / "key.pem", _key_bytes(key))
        write_atomically(folder / "cert.pem", certificate.public_bytes(serialization.Encoding.PEM))


def write_private(path: Path, data: bytes) -> None:
    """Readable by this user alone, from its creation on."""
    write_atomically(path, data, mode=0o600)


def _make(certificate_file: Path, key_file: Path, name: str) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    certificate = (
        _begin(name, subject, key.public_key(), _AUTHORITY_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_SIGNS, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    write_atomically(certificate_file, certificate.public_bytes(serialization.Encoding.PEM))
    write_private(key_file, _key_bytes(key))


_SIGNS: Final = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


def _begin(name: str, issuer: x509.Name, key: ec.EllipticCurvePublicKey, life: datetime.timedelta) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])]))
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)  # clocks differ
        .not_valid_after(now + life)
    )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name.strip("[]")))
    except ValueError:
        return x509.DNSName(name)


def _key_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
