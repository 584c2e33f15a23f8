"""Steps of a rotation: what is accepted and what signs after each, and that files that were replaced are used without a restart."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import socket
import ssl
import threading
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID

from services.kit import rotation
from services.kit.credentials import Credentials
from services.kit.errors import SettingError
from services.kit.keyring import Keyring
from services.kit.nats_jwt import public_key, read_keys
from services.kit.seal import HEADER, NAME_HEADER, Seal
from services.kit.tls import client_context, server_context

NAMES = {part: ["localhost", "127.0.0.1"] for part in ("bus", "controller", "billing", "nodes/n")}
FACT = ("wooly.evt.access.k", b"fact")


@pytest.fixture
def ring(tmp_path: Path) -> Keyring:
    return Keyring.make(tmp_path / "ring", NAMES, ["n"])


def seal_of(ring: Keyring, service: str) -> Seal:
    seal = Credentials.from_environment(ring.environment(service), "tls://127.0.0.1:1").seal
    assert seal is not None
    return seal


def sealed(seal: Seal) -> dict[str, str]:
    return {NAME_HEADER: "m", HEADER: seal.make(FACT[0], "m", FACT[1])}


def holds(seal: Seal, position: int, headers: dict[str, str]) -> bool:
    return seal.holds(position, FACT[0], headers, FACT[1])


def test_the_seal(ring: Keyring) -> None:
    controller, billing = seal_of(ring, "controller"), seal_of(ring, "billing")
    old, secrets = sealed(controller), controller.secrets(b"s")
    rotation.add(ring.folder, "seal")
    assert sealed(controller) == old
    assert controller.secrets(b"s")[0] == secrets[0]
    rotation.use(ring.folder, "seal")
    new = sealed(controller)
    assert new != old and sealed(billing) == new
    assert all(holds(seal, 9, headers) for seal in (controller, billing) for headers in (old, new))
    assert controller.secrets(b"s")[1:] == secrets
    rotation.retire(ring.folder, "seal", 9)
    assert all(holds(seal, 9, old) and not holds(seal, 10, old) and holds(seal, 10, new) for seal in (controller, billing))
    assert len(controller.secrets(b"s")) == 1 and controller.secrets(b"s") != secrets
    rotation.add(ring.folder, "seal")
    rotation.use(ring.folder, "seal")
    rotation.retire(ring.folder, "seal", 20)
    assert holds(billing, 9, old) and not holds(billing, 10, old) and holds(billing, 20, new) and not holds(billing, 21, new)
    assert [line.partition(" ")[2] for line in rotation.describe(ring.folder, "seal")] == [
        "signs", "accepted up to event 20", "accepted up to event 9",
    ]  # fmt: skip


@pytest.mark.parametrize("kind", rotation.KINDS)
def test_steps_out_of_order_are_refused(ring: Keyring, kind: str) -> None:
    with pytest.raises(SettingError, match="no old key to retire"):
        rotation.retire(ring.folder, kind, 1)
    rotation.add(ring.folder, kind)
    with pytest.raises(SettingError, match="is under way"):
        rotation.add(ring.folder, kind)
    with pytest.raises(SettingError, match="no old key to retire"):
        rotation.retire(ring.folder, kind, 1)
    rotation.use(ring.folder, kind)
    with pytest.raises(SettingError, match="is under way"):
        rotation.add(ring.folder, kind)


def test_the_users_of_the_bus_and_the_issuer_of_its_callout(ring: Keyring) -> None:
    """NATS reloads users, and nothing of the callout: only ``use`` changes that."""
    seed = Credentials.from_environment(ring.environment("billing"), "tls://127.0.0.1:1").nkey_seed
    assert seed is not None
    old, (users, callout) = seed(), bus_config(ring)
    rotation.add(ring.folder, "bus")
    assert seed() == old
    more, same = bus_config(ring)
    assert same == callout and len(more) == 8 and set(users) < set(more)
    rotation.use(ring.folder, "bus")
    assert seed() != old
    assert set(bus_config(ring)[0]) == set(more) and bus_config(ring)[1] != callout
    issuers = read_keys(ring.folder / "controller" / "issuer.nk")
    assert [key in bus_config(ring)[1] for key in issuers] == [True, False]
    used = bus_config(ring)[1]
    rotation.retire(ring.folder, "bus", 0)
    assert set(bus_config(ring)[0]) == set(more) - set(users) and bus_config(ring)[1] == used
    assert public_key(old) in users and public_key(seed()) in bus_config(ring)[0]
    assert "/ring/bus/cert.pem" in (ring.folder / "bus" / "security.conf").read_text()


def bus_config(ring: Keyring) -> tuple[list[str], str]:
    """Public keys of the users, and the callout, as the bus's configuration has them."""
    accounts, callout = (ring.folder / "bus" / "security.conf").read_text().split("system_account")
    return re.findall(r"nkey: (U[A-Z0-9]{55})", accounts), callout


def connects(server: ssl.SSLContext, client: ssl.SSLContext) -> bool:
    """Whether the two shake hands."""
    ours, theirs = socket.socketpair()

    def serve() -> None:
        try:
            server.wrap_socket(theirs, server_side=True).close()
        except OSError:
            theirs.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        client.wrap_socket(ours, server_hostname="localhost").close()
    except ssl.SSLCertVerificationError:
        return False
    finally:
        ours.close()
        thread.join()
    return True


def context_of(ring: Keyring, part: str) -> ssl.SSLContext:
    context = server_context(ring.environment(part))
    assert context is not None
    return context


def test_the_authority(ring: Keyring, tmp_path: Path) -> None:
    stolen = shutil.copytree(ring.folder / "nodes" / "n", tmp_path / "stolen")
    thief = server_context({"WOOLY_TLS_CERT": str(stolen / "cert.pem"), "WOOLY_TLS_KEY": str(stolen / "key.pem")})
    assert thief is not None
    node, billing, client = context_of(ring, "nodes/n"), context_of(ring, "billing"), client_context(ring.environment("controller"))
    unaware = client_context({"WOOLY_TLS_CA": str(shutil.copyfile(ring.ca, tmp_path / "before.pem"))})
    assert connects(node, client) and connects(thief, client)
    rotation.add(ring.folder, "ca")
    assert connects(node, client) and connects(node, unaware)
    rotation.use(ring.folder, "ca")
    assert connects(node, client) and connects(billing, client) and connects(thief, client)
    assert not connects(node, unaware), "its certificate is of the new authority"
    rotation.retire(ring.folder, "ca", 0)
    assert connects(node, client) and connects(billing, client) and not connects(thief, client)


def test_certificates_keep_their_names_and_uses_and_the_bus_accepts_routes_of_its_own_alone(ring: Keyring) -> None:
    def uses() -> dict[str, tuple[list[str], bool]]:
        found = {}
        for part in NAMES:
            certificate = x509.load_pem_x509_certificate((ring.folder / part / "cert.pem").read_bytes())
            names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
            found[part] = (sorted(str(name.value) for name in names), ExtendedKeyUsageOID.CLIENT_AUTH in usage)
        return found

    def pins() -> list[str]:
        return re.findall(r"[0-9a-f]{64}", (ring.folder / "bus" / "routes.conf").read_text())

    def own() -> str:
        key = x509.load_pem_x509_certificate((ring.folder / "bus" / "cert.pem").read_bytes()).public_key()
        return hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()

    before, first = uses(), own()
    assert before["bus"] == (["127.0.0.1", "localhost"], True) and before["billing"][1] is False
    assert pins() == [first]
    rotation.add(ring.folder, "ca")
    rotation.use(ring.folder, "ca")
    assert uses() == before
    assert pins() == [own(), first] and own() != first
    rotation.retire(ring.folder, "ca", 0)
    assert pins() == [own()]


def test_certificates_are_renewed_under_the_same_authority(ring: Keyring) -> None:
    node, client, before = context_of(ring, "nodes/n"), client_context(ring.environment("billing")), ring.ca.read_bytes()
    old = (ring.folder / "nodes" / "n" / "cert.pem").read_bytes()
    rotation.use(ring.folder, "ca")
    assert (ring.folder / "nodes" / "n" / "cert.pem").read_bytes() != old
    assert ring.ca.read_bytes() == before
    assert connects(node, client)


def test_a_certificate_without_its_key_is_not_used(ring: Keyring) -> None:
    """The key is replaced before the certificate: a connection in between gets the old ones."""
    node, client = context_of(ring, "nodes/n"), client_context(ring.environment("billing"))
    own = ring.folder / "nodes" / "n"
    key = (own / "key.pem").read_bytes()
    os.replace(ring.folder / "billing" / "key.pem", own / "key.pem")
    assert connects(node, client)
    (own / "key.pem").write_bytes(key)
    assert connects(node, client)
