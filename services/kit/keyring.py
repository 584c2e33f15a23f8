"""The secrets of one installation in a folder, with a subfolder for each service, and the certificate authority of an installation that has
none of its own.

    ca/          ca.pem (give it to clients; every part has a copy), ca.key (needed only to sign certificates), during a rotation next.key
    bus/         cert.pem, key.pem, security.conf: accounts, service users, the callout; for nats-server
                 routes.conf: how the servers of a cluster prove their identity to each other
    controller/  cert.pem, key.pem, nats.nk, seal.key, guard.nk (its user on the bus's system account), issuer.nk (signs what it grants),
                 admin.key (the first administrator's key), nodes.json (hashes of the nodes' keys),
                 audit.key (signs exports of audit records), audit.pub (give it to auditors)
    billing/     cert.pem, key.pem, nats.nk, seal.key
    runner/      nats.nk (no certificate: it does not listen; no seal: it writes no facts)
    nodes/NAME/  cert.pem, key.pem, api.key
    watch/       api.key (may read; for Prometheus)
    etcd/        cert.pem, key.pem (of a compose file that has an etcd)
    trace/       cert.pem, key.pem, otlp.token (of a compose file that has a collector; nodes have the token too)

Made once; what is there is left alone, but certificates are made anew when the names of the machine have changed. Only
the certificates of controller, bus and etcd open a connection to etcd: no other certificate of the authority is one for clients.
``services.kit.rotation`` replaces keys while services run.

EC keys (P-256). The authority is good for ten years, certificates of services for two; ``issue`` makes a new one whenever it is called.
"""

from __future__ import annotations

import datetime
import hashlib
import ipaddress
import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
from argon2 import PasswordHasher
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from bus_schemas.subjects import node_id
from services.kit import nats_jwt
from services.kit.access.tokens import make_key, parse_key
from services.kit.bus_permissions import BILLING, CONTROLLER, RUNNER, Permissions, of_service
from services.kit.errors import SettingError
from wooly.shared.files import write_atomically

__all__ = ["NODES_VARIABLE", "Authority", "Keyring", "NodeKey", "make_audit_key", "new_authority", "write_private"]

NAME: Final = "Wooly installation"
"""Of an authority."""
_DAY: Final = datetime.timedelta(days=1)
_NAMES: Final = "names.json"
_CLIENT: Final = "(client)"
"""Noted among the names of a certificate that is good for a client as well."""
_AUTHORITY_LIFE: Final = 3650 * _DAY
_SERVICE_LIFE: Final = 730 * _DAY


@dataclass(frozen=True, slots=True)
class Authority:
    """``certificate_file``: what clients are given as WOOLY_TLS_CA."""

    certificate_file: Path
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def load_or_make(cls, folder: Path, name: str = NAME) -> Authority:
        """The authority in ``folder`` (``ca.pem``, ``ca.key``). Raises SettingError when what is there is damaged, OSError."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        certificate_file, key_file = folder / "ca.pem", folder / "ca.key"
        if not key_file.exists():
            certificate, key_bytes = new_authority(name)
            write_atomically(certificate_file, certificate)
            write_private(key_file, key_bytes)
        try:
            key = serialization.load_pem_private_key(key_file.read_bytes(), None)
            certificates = x509.load_pem_x509_certificates(certificate_file.read_bytes())
        except (ValueError, FileNotFoundError) as error:
            raise SettingError(f"{folder} holds no usable authority ({error}); remove ca.pem and ca.key to make a new one") from None
        own = [certificate for certificate in certificates if certificate.public_key() == key.public_key()]
        if not isinstance(key, ec.EllipticCurvePrivateKey) or not own:
            raise SettingError(f"{key_file} is not a key of ours; remove ca.pem and ca.key to make a new one")
        return cls(certificate_file, own[0], key)

    def renew(self, folder: Path) -> None:
        """A new certificate for the service whose folder was made by a ``Keyring``."""
        names = json.loads((folder / _NAMES).read_text())
        self.issue(folder, [name for name in names if name != _CLIENT], client=_CLIENT in names)

    def issue(self, folder: Path, names: Sequence[str], *, client: bool = False) -> None:
        """``cert.pem`` and ``key.pem`` in ``folder`` for a service that is called by ``names`` (hosts and addresses); ``client``: it also
        authenticates with its certificate where it connects to."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        key = ec.generate_private_key(ec.SECP256R1())
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, *([ExtendedKeyUsageOID.CLIENT_AUTH] if client else ())])
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


def new_authority(name: str = NAME) -> tuple[bytes, bytes]:
    """Certificate and private key, PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    certificate = (
        _begin(name, subject, key.public_key(), _AUTHORITY_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_SIGNS, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM), _key_bytes(key)


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


def _key_bytes(key: ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


NODES_VARIABLE: Final = "WOOLY_BOOTSTRAP_NODES"
_HASHER: Final = PasswordHasher(time_cost=1, memory_cost=8_192, parallelism=1)
"""As the controller hashes secrets of keys: 256 random bits, which cannot be guessed."""

_GUARD: Final = "guard"
_SERVICES: Final = (CONTROLLER, BILLING, RUNNER)
_ETCD: Final = "etcd"
_BUS: Final = "bus"
_TRACE: Final = "trace"
_TOKEN: Final = "otlp.token"


class NodeKey(msgspec.Struct, frozen=True):
    """The key of a node, as the controller reads it."""

    #: id of the key
    key: str
    #: id of the node; empty: a key with read access to the whole cluster
    node: str
    name: str
    #: argon2id, PHC string
    secret_hash: str


@dataclass(frozen=True, slots=True)
class Keyring:
    """``folder`` is private to this user. Made by ``make``."""

    folder: Path

    @classmethod
    def make(cls, folder: Path, names: Mapping[str, Sequence[str]], nodes: Sequence[str], *, bus_at: str = "") -> Keyring:
        """``names``: hosts and addresses that clients call ``bus``, ``controller``, ``billing``, each node (``nodes/NAME``), and where
        there are such, ``etcd`` and the collector (``trace``) by.
        ``bus_at``: where the bus will find its folder, if not here. Raises SettingError, OSError."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        ring = cls(folder)
        authority = Authority.load_or_make(folder / "ca")
        for part, called in names.items():
            _certificate(authority, folder / part, called, client=part in (CONTROLLER, _ETCD, _BUS))
        for service in _SERVICES:
            _once(folder / service / "nats.nk", nats_jwt.new_seed(nats_jwt.USER))
        _once(folder / CONTROLLER / "guard.nk", nats_jwt.new_seed(nats_jwt.USER))
        _once(folder / CONTROLLER / "issuer.nk", nats_jwt.new_seed(nats_jwt.ACCOUNT))
        _once(folder / CONTROLLER / "seal.key", secrets.token_hex(32))
        make_audit_key(folder / CONTROLLER)
        _once(folder / BILLING / "seal.key", (folder / CONTROLLER / "seal.key").read_text())
        _once(folder / CONTROLLER / "admin.key", make_key().text)
        for node in nodes:
            _once(folder / "nodes" / node / "api.key", make_key().text)
        if _TRACE in names:
            _once(folder / _TRACE / _TOKEN, secrets.token_hex(32))
            for node in nodes:
                _once(folder / "nodes" / node / _TOKEN, (folder / _TRACE / _TOKEN).read_text())
        _once(folder / "watch" / "api.key", make_key().text)
        keys = {ring.node_key(node): (node_id(node), f"node {node}") for node in nodes}
        keys[(folder / "watch" / "api.key").read_text()] = ("", "watching")
        _note_keys(folder / CONTROLLER / "nodes.json", keys)
        for part in {**names, "watch": (), RUNNER: ()}:
            write_atomically(folder / part / "ca.pem", authority.certificate_file.read_bytes())
        ring.configure_bus(bus_at or str(folder / "bus"))
        return ring

    @property
    def ca(self) -> Path:
        return self.folder / "ca" / "ca.pem"

    @property
    def admin_key(self) -> str:
        return (self.folder / CONTROLLER / "admin.key").read_text().strip()

    def node_key(self, node: str) -> str:
        return (self.folder / "nodes" / node / "api.key").read_text().strip()

    def environment(self, part: str) -> dict[str, str]:
        """What the service needs whose folder is ``part``: ``controller``, ``billing``, ``runner`` or ``nodes/NAME``."""
        own = self.folder / part
        if part == RUNNER:
            return {"WOOLY_TLS_CA": str(own / "ca.pem"), "WOOLY_NATS_NKEY": str(own / "nats.nk")}
        out = {"WOOLY_TLS_CA": str(own / "ca.pem"), "WOOLY_TLS_CERT": str(own / "cert.pem"), "WOOLY_TLS_KEY": str(own / "key.pem")}
        if part in _SERVICES:
            out.update(WOOLY_AUTH="on", WOOLY_NATS_NKEY=str(own / "nats.nk"), WOOLY_SEAL_KEY=str(own / "seal.key"))
        else:
            out["WOOLY_API_KEY_FILE"] = str(own / "api.key")
        if part == CONTROLLER:
            out.update(WOOLY_GUARD_DIR=str(own), WOOLY_BOOTSTRAP_KEY_FILE=str(own / "admin.key"))
            out["WOOLY_AUDIT_KEY"] = str(own / "audit.key")
            out[NODES_VARIABLE] = str(own / "nodes.json")
        return out

    def configure_bus(self, at: str = "", *, alone: bool = False) -> None:
        """Write what nats-server includes. ``at``: where the bus finds its folder; empty: as before. ``alone``: its servers accept only its
        newest certificate from each other, and not the one before."""
        own = self.folder / "bus" / "security.conf"
        at = at or str(json.loads(own.read_text().partition("cert_file: ")[2].partition("\n")[0])).removesuffix("/cert.pem")
        write_private(own.with_name("routes.conf"), _routes_config(at, self._pins(alone=alone)).encode())
        write_private(own, self._bus_config(at).encode())

    def _pins(self, *, alone: bool) -> list[str]:
        """SHA-256 of the public keys of the bus's certificate and of the one before."""
        own = self.folder / "bus"
        known = re.findall(r"[0-9a-f]{64}", (own / "routes.conf").read_text()) if (own / "routes.conf").exists() else []
        if not (own / "cert.pem").exists():
            return known
        key = x509.load_pem_x509_certificate((own / "cert.pem").read_bytes()).public_key()
        spki = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
        pin = hashlib.sha256(spki).hexdigest()
        return [pin] if alone else known if known[:1] == [pin] else [pin, *known[:1]]

    def _bus_config(self, at: str) -> str:
        """Configuration that nats-server includes: service users by their public keys; the auth callout decides about other clients.

        NATS does not reload ``auth_callout``. So it names only keys in use, and by ``allowed_accounts`` no account of these users: a
        connection that signs as one of them is admitted without a callout, and users are added and removed by a reload."""
        users = ",\n      ".join(
            f"{{ nkey: {key}, permissions: {_permissions(of_service(name))} }}"
            for name in _SERVICES
            for key in self._public_keys(f"{name}/nats.nk")
        )
        guards = self._public_keys(f"{CONTROLLER}/guard.nk")
        issuer, *_ = self._public_keys(f"{CONTROLLER}/issuer.nk")
        return f"""# Made by services/kit/keyring.py. Public keys only; what may be said with them: services/kit/bus_permissions.py.
tls {{
  cert_file: {json.dumps(at + "/cert.pem")}
  key_file: {json.dumps(at + "/key.pem")}
  min_version: "1.3"
  handshake_first: true   # TLS before any protocol message: a man in the middle cannot downgrade it
  timeout: 5
}}
accounts {{
  WOOLY {{
    jetstream: enabled
    users: [
      {users}
    ]
  }}
  SYS {{ users: [ {", ".join(f"{{ nkey: {guard} }}" for guard in guards)} ] }}
  KEYS {{ }}   # no user is in it
}}
system_account: SYS
authorization {{
  timeout: 10   # checking a secret takes a moment on purpose
  auth_callout {{
    issuer: {issuer}
    account: SYS
    auth_users: [ {guards[0]} ]
    allowed_accounts: [ KEYS ]
  }}
}}
"""

    def _public_keys(self, file: str) -> list[str]:
        """Of the seeds in a file of the keyring. Raises SettingError."""
        try:
            return [nats_jwt.public_key(seed) for seed in nats_jwt.read_seeds(self.folder / file)]
        except (OSError, ValueError) as error:
            raise SettingError(f"{file}: {error}") from None


def _routes_config(at: str, pins: Sequence[str]) -> str:
    """What nats-server includes in ``cluster``: the certificate that clients are shown, required of both sides. ``pins``: SHA-256 of the
    public keys (SubjectPublicKeyInfo) that are accepted, so that no other certificate of the authority is."""
    return f"""tls {{
  cert_file: {json.dumps(at + "/cert.pem")}
  key_file: {json.dumps(at + "/key.pem")}
  ca_file: {json.dumps(at + "/ca.pem")}
  verify: true
  pinned_certs: {json.dumps(pins)}
  timeout: 5
}}
"""


def _note_keys(path: Path, keys: Mapping[str, tuple[str, str]]) -> None:
    """Write down what is new; what is there stays, with its hash. ``keys``: id of the node and what it is called, by the key's text."""
    known = msgspec.json.decode(path.read_bytes(), type=list[NodeKey]) if path.exists() else []
    noted = {key.key for key in known}
    for text, (node, name) in keys.items():
        key = parse_key(text)
        if key is None:
            raise SettingError(f"the key of {name} is damaged; remove its api.key to make a new one")
        if key.id not in noted:
            known.append(NodeKey(key.id, node, name, _HASHER.hash(key.secret)))
    write_private(path, msgspec.json.encode(known))


def _permissions(granted: Permissions) -> str:
    parts = {"publish": {"allow": list(granted.publish)}, "subscribe": {"allow": list(granted.subscribe)}}
    text = json.dumps(parts)
    return text[:-1] + ', "allow_responses": { "max": 1, "expires": "10m" } }' if granted.replies else text


def make_audit_key(folder: Path) -> None:
    """``audit.key`` and ``audit.pub`` in ``folder``, once. A key of its own: what signs connections to the bus signs bytes of the bus's
    choice."""
    if not (folder / "audit.key").exists():
        key = ed25519.Ed25519PrivateKey.generate()
        public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        write_atomically(folder / "audit.pub", public)
        write_private(folder / "audit.key", _key_bytes(key))


def _once(path: Path, text: str) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not path.exists():
        write_private(path, text.encode())


def _certificate(authority: Authority, folder: Path, names: Sequence[str], *, client: bool) -> None:
    """Make one unless there is one for just these names and this use."""
    noted = folder / _NAMES
    wanted = json.dumps([*sorted(set(names)), *([_CLIENT] if client else ())])
    if noted.exists() and (folder / "key.pem").exists() and noted.read_text() == wanted:
        return
    authority.issue(folder, names, client=client)
    noted.write_text(wanted)
