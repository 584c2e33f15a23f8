"""``python -P -m services.operator.keyring NAME --namespace NS --part PART=HOST... --nodes LABEL=VALUE...``: make the keyring of an
installation in Kubernetes: secrets NAME-PART for the parts of ``services.kit.keyring``, and NAME-nodes, with the files of each node NODE as
NODE.FILE.

What is there stays. Repeated with further hosts or nodes it adds what they need. NAME-ca also has the authority as tls.crt and tls.key, as
issuers of certificates want it. Access to Kubernetes: the service account of its pod, or KUBECONFIG.
"""

from __future__ import annotations

import argparse
import base64
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import httpx2
from lightkube import ApiError, Client, ConfigError
from lightkube.resources.core_v1 import Node, Secret
from lightkube.types import PatchType

from services.kit.errors import KitError
from services.kit.keyring import Keyring, write_private

__all__ = ["main"]

_PARTS: Final = ("ca", "bus", "controller", "billing", "runner", "watch", "etcd")
_NODES: Final = "nodes"
_ISSUER: Final = {"tls.crt": "ca.pem", "tls.key": "ca.key"}
_ADDRESSES: Final = ("InternalIP", "ExternalIP", "InternalDNS", "ExternalDNS", "Hostname")
_LOOPBACK: Final = ("localhost", "127.0.0.1")

Data = dict[str, bytes]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="kube-keyring", description="Make certificates, service users and first keys, as secrets.")
    parser.add_argument("name", help="the secrets are called NAME-PART")
    parser.add_argument("--namespace", required=True)
    parser.add_argument("--bus-at", default="/etc/nats/keyring", help="where the bus finds its part")
    parser.add_argument("--part", action="append", default=[], metavar="PART=HOST", help="a name or address that a part is called by")
    parser.add_argument("--nodes", action="append", default=[], metavar="LABEL=VALUE", help="Kubernetes nodes that get an identity")
    options = parser.parse_args(arguments)
    names: dict[str, list[str]] = {}
    for text in options.part:
        part, _, host = text.partition("=")
        names.setdefault(part, []).append(host)
    labels = dict(text.partition("=")[::2] for text in options.nodes)
    try:
        client = Client(field_manager="wooly-keyring")
        nodes = _nodes(client, labels) if labels else {}
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            held = {part: _read(client, options, part) for part in (*_PARTS, _NODES)}
            _unpack(folder, held)
            called = {part: [*hosts, *_LOOPBACK] for part, hosts in names.items()}
            called |= {f"{_NODES}/{node}": [*hosts, *_LOOPBACK] for node, hosts in nodes.items()}
            Keyring.make(folder, called, list(nodes), bus_at=options.bus_at)
            made = [part for part, data in _pack(folder).items() if data != held[part] and _write(client, options, part, data)]
    except (KitError, ConfigError, httpx2.HTTPError, OSError) as error:
        print(f"kube-keyring: {error}", file=sys.stderr)
        return 2
    print(f"identities of {len(nodes)} nodes; written: {', '.join(made) or 'nothing, all was there'}")
    return 0


def _nodes(client: Client, labels: dict[str, Any]) -> dict[str, list[str]]:
    """Names and addresses of the nodes."""
    out = {}
    for node in client.list(Node, labels=labels):
        found = (node.status.addresses if node.status is not None else None) or []
        name = str(node.metadata.name if node.metadata is not None else "")
        out[name] = [name, *(one.address for one in found if one.type in _ADDRESSES)]
    return out


def _read(client: Client, options: argparse.Namespace, part: str) -> Data:
    try:
        secret = client.get(Secret, f"{options.name}-{part}", namespace=options.namespace)
    except ApiError as error:
        if error.status.code == 404:
            return {}
        raise
    return {key: base64.b64decode(value) for key, value in (secret.data or {}).items()}


def _write(client: Client, options: argparse.Namespace, part: str, data: Data) -> bool:
    """By server-side apply, which makes the secret where there is none."""
    encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
    name = f"{options.name}-{part}"
    labels = {"app.kubernetes.io/name": "wooly", "app.kubernetes.io/component": "keyring", "app.kubernetes.io/managed-by": "wooly-keyring"}
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "labels": labels}, "type": "Opaque", "data": encoded}
    client.patch(Secret, name, body, namespace=options.namespace, patch_type=PatchType.APPLY, force=True)
    return True


def _unpack(folder: Path, held: dict[str, Data]) -> None:
    for part, data in held.items():
        for key, content in data.items():
            if part == "ca" and key in _ISSUER:
                continue
            path = folder / part / key
            if part == _NODES:
                if key == "ca.pem":
                    continue
                node, _, file = _split(key)
                path = folder / part / node / file
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_private(path, content)


def _split(key: str) -> tuple[str, str, str]:
    """Of NODE.cert.pem: NODE and cert.pem; names of nodes have dots."""
    node, dot, last = key.rpartition(".")
    node, dot, first = node.rpartition(".")
    return node, dot, f"{first}.{last}"


def _pack(folder: Path) -> dict[str, Data]:
    out = {part: {path.name: path.read_bytes() for path in sorted((folder / part).glob("*"))} for part in _PARTS}
    out["ca"] |= {key: out["ca"][file] for key, file in _ISSUER.items()}
    out[_NODES] = {"ca.pem": out["ca"]["ca.pem"]}
    for path in sorted((folder / _NODES).glob("*/*")):
        if path.name != "ca.pem":
            out[_NODES][f"{path.parent.name}.{path.name}"] = path.read_bytes()
    return out


if __name__ == "__main__":
    sys.exit(main())
