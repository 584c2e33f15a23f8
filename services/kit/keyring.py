"""The secrets of one installation in a folder, with a subfolder for each service.

    ca/          ca.pem (give it to clients; every part has a copy), ca.key (needed only to sign certificates)
    bus/         cert.pem, key.pem, security.conf: accounts, service users, the callout; for nats-server
    controller/  cert.pem, key.pem, nats.nk, seal.key, guard.nk (its user on the bus's system account), issuer.nk (signs what it grants),
                 admin.key (the first administrator's key), nodes.json (hashes of the nodes' keys)
    billing/     cert.pem, key.pem, nats.nk, seal.key
    runner/      nats.nk (no certificate: it does not listen; no seal: it writes no facts)
    nodes/NAME/  cert.pem, key.pem, api.key
    watch/       api.key (may read; for Prometheus)

Made once; what is there is left alone, but certificates are made anew when the names of the machine have changed.
"""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
from argon2 import PasswordHasher

from bus_schemas.subjects import node_id
from services.kit import nats_jwt
from services.kit.access.tokens import make_key, parse_key
from services.kit.bus_permissions import BILLING, CONTROLLER, RUNNER, Permissions, of_service
from services.kit.certificates import Authority, write_private
from services.kit.errors import SettingError

__all__ = ["NODES_VARIABLE", "Keyring", "NodeKey"]

NODES_VARIABLE: Final = "WOOLY_BOOTSTRAP_NODES"
_HASHER: Final = PasswordHasher(time_cost=1, memory_cost=8_192, parallelism=1)
"""As the controller hashes secrets of keys: 256 random bits, which cannot be guessed."""

_GUARD: Final = "guard"
_SERVICES: Final = (CONTROLLER, BILLING, RUNNER)


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
        """``names``: hosts and addresses that clients call ``bus``, ``controller``, ``billing`` and each node (``nodes/NAME``) by.
        ``bus_at``: where the bus will find its folder, if not here. Raises SettingError, OSError."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        ring = cls(folder)
        authority = Authority.load_or_make(folder / "ca")
        for part, called in names.items():
            _certificate(authority, folder / part, called)
        for service in _SERVICES:
            _once(folder / service / "nats.nk", nats_jwt.new_seed(nats_jwt.USER))
        _once(folder / CONTROLLER / "guard.nk", nats_jwt.new_seed(nats_jwt.USER))
        _once(folder / CONTROLLER / "issuer.nk", nats_jwt.new_seed(nats_jwt.ACCOUNT))
        _once(folder / CONTROLLER / "seal.key", secrets.token_hex(32))
        _once(folder / BILLING / "seal.key", (folder / CONTROLLER / "seal.key").read_text())
        _once(folder / CONTROLLER / "admin.key", make_key().text)
        for node in nodes:
            _once(folder / "nodes" / node / "api.key", make_key().text)
        _once(folder / "watch" / "api.key", make_key().text)
        keys = {ring.node_key(node): (node_id(node), f"node {node}") for node in nodes}
        keys[(folder / "watch" / "api.key").read_text()] = ("", "watching")
        _note_keys(folder / CONTROLLER / "nodes.json", keys)
        for part in {**names, "watch": (), RUNNER: ()}:
            shutil.copyfile(authority.certificate_file, folder / part / "ca.pem")
        write_private(folder / "bus" / "security.conf", ring._bus_config(bus_at or str(folder / "bus")).encode())
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
            out[NODES_VARIABLE] = str(own / "nodes.json")
        return out

    def _bus_config(self, at: str) -> str:
        """Configuration that nats-server includes: service users by their public keys; the auth callout decides about other clients."""
        public = {name: nats_jwt.public_key((self.folder / name / "nats.nk").read_text()) for name in _SERVICES}
        guard = nats_jwt.public_key((self.folder / CONTROLLER / "guard.nk").read_text())
        issuer = nats_jwt.public_key((self.folder / CONTROLLER / "issuer.nk").read_text())
        users = ",\n      ".join(f"{{ nkey: {public[name]}, permissions: {_permissions(of_service(name))} }}" for name in _SERVICES)
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
  SYS {{ users: [ {{ nkey: {guard} }} ] }}
}}
system_account: SYS
authorization {{
  timeout: 10   # checking a secret takes a moment on purpose
  auth_callout {{
    issuer: {issuer}
    account: SYS
    auth_users: [ {", ".join([*public.values(), guard])} ]
  }}
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


def _once(path: Path, text: str) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not path.exists():
        write_private(path, text.encode())


def _certificate(authority: Authority, folder: Path, names: Sequence[str]) -> None:
    """Make one unless there is one for just these names."""
    noted = folder / "names.json"
    wanted = json.dumps(sorted(set(names)))
    if noted.exists() and (folder / "key.pem").exists() and noted.read_text() == wanted:
        return
    authority.issue(folder, names)
    noted.write_text(wanted)
