"""What the environment says about who a process is on the wire, and where plain text may go."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from services.kit.access.tokens import make_key
from services.kit.credentials import Credentials
from services.kit.errors import SettingError
from services.kit.keyring import Keyring
from services.kit.tls import plain_allowed, server_context

KEY = make_key()
NAMES = {part: ["here", "127.0.0.1"] for part in ("bus", "controller", "billing", "nodes/n")}


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory) -> Keyring:
    return Keyring.make(tmp_path_factory.mktemp("ring"), NAMES, ["n"])


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "[::1]", "127.9.9.9"])
def test_plain_text_stays_on_this_machine(host: str) -> None:
    plain_allowed({}, host, "the bus", "set something")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "nats", "localhost.example"])
def test_plain_text_goes_nowhere_else(host: str) -> None:
    with pytest.raises(SettingError, match=r"plain text: set X, or stay on 127\.0\.0\.1 .*WOOLY_INSECURE=1"):
        plain_allowed({}, host, "the bus", "set X")
    plain_allowed({"WOOLY_INSECURE": "1"}, host, "the bus", "set X")
    with pytest.raises(SettingError):
        plain_allowed({"WOOLY_INSECURE": "yes"}, host, "the bus", "set X")


def test_no_credentials_on_loopback() -> None:
    shown = Credentials.from_environment({}, "nats://127.0.0.1:4222")
    assert (shown.principal, shown.tls, shown.options()) == ("local", None, {})


def test_a_key_over_tls(ring: Keyring) -> None:
    shown = Credentials.from_environment({"WOOLY_API_KEY": KEY.text, "WOOLY_TLS_CA": str(ring.ca)}, "tls://bus:4222")
    options = shown.options()
    assert shown.principal == options["user"] == KEY.id
    assert options["password"] == KEY.secret
    assert options["tls_handshake_first"]
    assert options["tls"].verify_mode is ssl.CERT_REQUIRED
    assert options["tls"].check_hostname
    assert options["tls"].minimum_version is ssl.TLSVersion.TLSv1_3
    assert KEY.secret not in repr(shown)


@pytest.mark.parametrize("text", ["", "\n", "no digits"])
def test_a_seal_without_a_key_is_a_slip(tmp_path: Path, text: str) -> None:
    file = tmp_path / "seal.key"
    file.write_text(text)
    with pytest.raises(SettingError, match="holds no key"):
        Credentials.from_environment({"WOOLY_SEAL_KEY": str(file)}, "nats://127.0.0.1:4222")


def test_a_service_shows_its_own_key_and_seals(ring: Keyring) -> None:
    shown = Credentials.from_environment(ring.environment("controller"), "tls://127.0.0.1:1")
    other = Credentials.from_environment(ring.environment("billing"), "tls://127.0.0.1:1")
    assert shown.nkey_seed is not None and other.nkey_seed is not None
    assert shown.nkey_seed().startswith("SU")
    assert shown.nkey_seed() != other.nkey_seed()
    assert shown.seal is not None and other.seal is not None
    assert shown.seal.make("a", "b", b"c") == other.seal.make("a", "b", b"c")
    assert shown.nkey_seed() not in repr(shown)
    assert not Credentials.from_environment(ring.environment("nodes/n"), "tls://127.0.0.1:1").seal


@pytest.mark.parametrize(
    ("environment", "url", "says"),
    [
        ({}, "nats://bus:4222", "write its address as tls://"),
        ({}, "tls://a:1,nats://127.0.0.1:1", "some addresses of the bus are encrypted and some are not"),
        ({"WOOLY_API_KEY": "wk_short"}, "nats://127.0.0.1:1", "WOOLY_API_KEY is not a key"),
        ({"WOOLY_API_KEY_FILE": "/nowhere"}, "nats://127.0.0.1:1", "WOOLY_API_KEY_FILE=/nowhere cannot be read"),
        ({"WOOLY_NATS_NKEY": "/nowhere"}, "nats://127.0.0.1:1", "WOOLY_NATS_NKEY=/nowhere cannot be read"),
        ({"WOOLY_TLS_CA": "/nowhere"}, "tls://bus:1", "WOOLY_TLS_CA=/nowhere cannot be used"),
    ],
)
def test_bad_settings_are_named(environment: dict[str, str], url: str, says: str) -> None:
    with pytest.raises(SettingError, match=says):
        Credentials.from_environment(environment, url)


def test_certificate_and_key_go_together(ring: Keyring) -> None:
    whole = ring.environment("controller")
    assert server_context(whole) is not None
    assert server_context({}) is None
    with pytest.raises(SettingError, match="go together"):
        server_context({"WOOLY_TLS_CERT": whole["WOOLY_TLS_CERT"]})
    with pytest.raises(SettingError, match="cannot be used"):
        server_context({**whole, "WOOLY_TLS_KEY": ring.environment("billing")["WOOLY_TLS_KEY"]})


class TestKeyring:
    def test_made_once(self, ring: Keyring) -> None:
        def contents() -> dict[Path, bytes]:
            return {path: path.read_bytes() for path in ring.folder.rglob("*") if path.is_file()}

        before = contents()
        Keyring.make(ring.folder, NAMES, ["n"])
        assert contents() == before

    def test_other_names_make_other_certificates_and_no_other_keys(self, tmp_path: Path) -> None:
        ring = Keyring.make(tmp_path / "r", NAMES, ["n"])
        before = {name: (tmp_path / "r" / name).read_bytes() for name in ("bus/cert.pem", "ca/ca.key", "controller/nats.nk")}
        Keyring.make(tmp_path / "r", {**NAMES, "bus": ["elsewhere"]}, ["n", "m"])
        after = {name: (tmp_path / "r" / name).read_bytes() for name in before}
        assert [name for name in before if before[name] != after[name]] == ["bus/cert.pem"]
        assert ring.node_key("m") != ring.node_key("n")

    def test_secrets_are_private(self, ring: Keyring) -> None:
        secret = [path for path in ring.folder.rglob("*") if path.suffix in (".key", ".nk") or path.name in ("key.pem", "nodes.json")]
        assert len(secret) >= 12
        assert all(path.stat().st_mode & 0o077 == 0 for path in secret)

    def test_the_bus_gets_no_secrets(self, ring: Keyring) -> None:
        config = (ring.folder / "bus" / "security.conf").read_text()
        for path in ring.folder.rglob("*"):
            if path.suffix in (".nk", ".key") and path.name != "ca.key":
                assert path.read_text().strip() not in config
        assert ring.node_key("n").split("_")[2] not in (ring.folder / "controller" / "nodes.json").read_text()
