"""ID tokens and identities: what is refused, and whose user a person is."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from joserfc import jwt
from joserfc.errors import InvalidKeyIdError, JoseError
from joserfc.jwk import KeySet, OctKey, RSAKey

from bus_schemas.events import UserChanged
from services.controller.actions.access import matching_user
from services.controller.oidc import LoginRefused, OidcProvider, OidcSettings, person_of, read_id_token
from services.kit.access import AccessView
from services.kit.access.tokens import FLOW_S, LoginFlow, Token, make_login_flow, read_login_flow, write_login_flow, write_token
from services.kit.errors import SettingError

ISSUER, CLIENT, NOW_S, NONCE = "https://id.example", "wooly", 2_000_000_000, "n-1"
KEY = RSAKey.generate_key(2048, {"kid": "k1"})
OTHER = RSAKey.generate_key(2048, {"kid": "k2"})
KEYS = KeySet([RSAKey.import_key(KEY.as_dict(private=False))])
CLAIMS = {"iss": ISSUER, "aud": CLIENT, "sub": "248289", "exp": NOW_S + 600, "iat": NOW_S, "nonce": NONCE}


def read(text: str) -> dict[str, Any]:
    return read_id_token(text, KEYS, issuer=ISSUER, client_id=CLIENT, now_s=NOW_S, nonce=NONCE)


def signed(claims: dict[str, Any], key: Any = KEY, alg: str = "RS256", kid: str = "k1") -> str:
    return jwt.encode({"alg": alg, "kid": kid}, claims, key, algorithms=[alg])


def test_a_token_for_this_login_is_read() -> None:
    assert read(signed(CLAIMS))["sub"] == "248289"
    assert read(signed({**CLAIMS, "aud": [CLIENT, "other"], "azp": CLIENT}))["sub"] == "248289"


@pytest.mark.parametrize(
    "wrong",
    [
        {"iss": "https://evil.example"},
        {"aud": "other"},
        {"aud": ["other"]},
        {"aud": [CLIENT, "other"]},
        {"azp": "other"},
        {"exp": NOW_S - 61},
        {"iat": NOW_S - 361},
        {"iat": NOW_S + 600},
        {"nonce": "n-2"},
        {"nonce": [NONCE]},
        {"nonce": None},
        {"sub": None},
        {"exp": None},
        {"iat": "now"},
        {"aud": None},
    ],
)
def test_a_token_with_another_claim_is_refused(wrong: dict[str, Any]) -> None:
    claims = {name: value for name, value in {**CLAIMS, **wrong}.items() if value is not None}
    with pytest.raises((JoseError, ValueError)):
        read(signed(claims))


def test_signatures_of_other_keys_and_kinds_are_refused() -> None:
    bare = signed(CLAIMS).split(".")
    head = base64.urlsafe_b64encode(b'{"alg":"HS256","kid":"k1"}').decode().rstrip("=")
    mac = hmac.digest(KEY.as_pem(private=False), f"{head}.{bare[1]}".encode(), "sha256")
    none = jwt.encode({"alg": "none"}, CLAIMS, OctKey.generate_key(256), algorithms=["none"])
    for text in (
        none,
        f"{head}.{bare[1]}.{base64.urlsafe_b64encode(mac).decode().rstrip('=')}",
        signed(CLAIMS, OTHER),
        f"{bare[0]}.{signed({**CLAIMS, 'sub': 'x'}).split('.')[1]}.{bare[2]}",
        ".".join(bare[:2]) + ".",
        "",
        "a.b.c",
        "\u00e9.b.c",
    ):
        with pytest.raises((JoseError, ValueError)):
            read(text)
    with pytest.raises(InvalidKeyIdError):
        read(signed(CLAIMS, OTHER, kid="k2"))


class _Forger(BaseHTTPRequestHandler):
    """A provider whose tokens are signed by a key that is not in its key set."""

    key_sets_sent = 0

    def do_GET(self) -> None:
        if self.path == "/keys":
            type(self).key_sets_sent += 1
            self._send(KEYS.as_dict())
        else:
            at = f"http://127.0.0.1:{self.server.server_port}"  # type: ignore[attr-defined]  # it is an HTTPServer
            self._send({"issuer": at, "authorization_endpoint": at, "token_endpoint": f"{at}/token", "jwks_uri": f"{at}/keys"})

    def do_POST(self) -> None:
        now_s = int(time.time())
        self._send({"id_token": signed({**CLAIMS, "iat": now_s, "exp": now_s + 600}, OTHER, kid="k2")})

    def _send(self, answer: Any) -> None:
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Drop the line."""


def test_unknown_keys_make_us_fetch_the_key_set_a_few_times_only() -> None:
    async def log_in_often(issuer: str) -> None:
        flow = LoginFlow("s", NONCE, "v", "/", NOW_S)
        async with OidcProvider(OidcSettings(issuer, CLIENT)) as provider:
            for _ in range(20):
                with pytest.raises(LoginRefused):
                    await provider.redeem({"code": "c"}, flow, "http://127.0.0.1/login/oidc/callback")

    with ThreadingHTTPServer(("127.0.0.1", 0), _Forger) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            asyncio.run(log_in_often(f"http://127.0.0.1:{server.server_port}"))
        finally:
            server.shutdown()
    assert _Forger.key_sets_sent == 1 + 5


def test_only_a_verified_address_is_a_name() -> None:
    address = {**CLAIMS, "email": "anna@acme.example"}
    assert person_of({**address, "email_verified": True}, "email").name == "anna@acme.example"
    for unverified in (address, {**address, "email_verified": False}, {**address, "email_verified": "true"}, CLAIMS):
        assert person_of(unverified, "email").name == ""
    assert person_of({**CLAIMS, "preferred_username": "anna"}, "preferred_username").name == "anna"
    assert person_of(CLAIMS, "email").subject == f"{ISSUER} 248289"


def test_a_linked_user_belongs_to_the_subject_whatever_its_name() -> None:
    view = AccessView()
    for fact in (
        UserChanged(1, "anna", "acme", "member", oidc_name="anna@acme.example", oidc_subject="i 1"),
        UserChanged(1, "carl", "acme", "member", oidc_name="carl@acme.example"),
        UserChanged(1, "dora", "acme", "member", oidc_name="dora"),
        UserChanged(1, "emil", "acme", "member"),
    ):
        view.apply(1, fact)
    assert matching_user(view, "i 1", "renamed@acme.example") == "anna"
    assert matching_user(view, "i 2", "anna@acme.example") == ""
    assert matching_user(view, "j 1", "anna@acme.example") == ""
    assert matching_user(view, "i 2", "Carl@ACME.example") == "carl"
    assert matching_user(view, "i 2", "dora") == "dora" and matching_user(view, "i 2", "Dora") == ""
    assert matching_user(view, "i 2", "") == "" and matching_user(view, "i 2", "emil") == ""
    assert matching_user(view, "i 2", "\u212aarl@acme.example") == ""


def test_the_cookie_of_a_login_is_signed_for_that_and_expires() -> None:
    secret = b"s" * 32
    flow = make_login_flow("/tasks", NOW_S)
    text = write_login_flow(secret, flow)
    assert read_login_flow(secret, text, NOW_S) == flow and len({flow.state, flow.nonce, flow.verifier}) == 3
    assert read_login_flow(secret, text, NOW_S + FLOW_S) is None and read_login_flow(b"t" * 32, text, NOW_S) is None
    session = write_token(secret, Token("session", "x", "anna", "", "", NOW_S, NOW_S, NOW_S + 60))
    assert read_login_flow(secret, session, NOW_S) is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"WOOLY_OIDC_ISSUER": "http://id.example"},
        {"WOOLY_OIDC_CLIENT_ID": ""},
        {"WOOLY_OIDC_ISSUER": ""},
        {"WOOLY_OIDC_CLAIM": "sub"},
        {"WOOLY_OIDC_CLIENT_SECRET_FILE": "/no/such/file"},
    ],
)
def test_settings_that_cannot_work_are_refused(wrong: dict[str, str]) -> None:
    good = {"WOOLY_OIDC_ISSUER": ISSUER, "WOOLY_OIDC_CLIENT_ID": CLIENT}
    assert OidcSettings.from_environment(good) == OidcSettings(ISSUER, CLIENT) and OidcSettings.from_environment({}) is None
    with pytest.raises(SettingError):
        OidcSettings.from_environment({**good, **wrong})
