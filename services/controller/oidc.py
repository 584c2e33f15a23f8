"""Client of an OpenID Connect provider: discovery, the authorisation code flow with PKCE (pages), the device flow (command line),
validation of ID tokens.

Sources: OpenID Connect Core 1.0 (3.1.3.7: validation), Discovery 1.0, RFC 7636 (PKCE), RFC 8628 (device flow), RFC 9207 (``iss`` of the
response), RFC 8725.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import httpx
import msgspec
from joserfc import jwt
from joserfc.errors import InvalidKeyIdError, JoseError
from joserfc.jwk import KeySet

from bus_schemas.quotas import QUOTAS, Rate
from scheduler.buckets import Buckets
from scheduler.quotas import excess_of
from services.kit.access.errors import Unauthenticated
from services.kit.access.tokens import LoginFlow
from services.kit.addresses import address_group
from services.kit.errors import NotThere, QuotaReached, RequestError, SettingError
from services.kit.log import get_logger
from services.kit.tls import CA_VARIABLE
from wooly.shared.tls import is_loopback, outside_context

__all__ = [
    "ALGORITHMS", "DeviceCode", "LoginPending", "LoginRefused", "OidcProvider", "OidcSettings", "Person", "ProviderUnavailable",
    "person_of", "read_id_token",
]  # fmt: skip

ALGORITHMS: Final = ("RS256", "PS256", "ES256")
"""Signatures of ID tokens that are accepted: asymmetric ones only, so that a public key is never taken for a secret."""
CLAIMS: Final = ("email", "preferred_username")
SCOPE: Final = "openid email profile"
_TIMEOUT_S: Final = 5.0
_CACHED_S: Final = 600.0
_LEEWAY_S: Final = 60
_FRESH_S: Final = 300
"""An ID token is accepted for so long after it was issued."""
_REFETCHES: Final = Rate(1, 5, 60 * 10**9)
"""Of the provider's keys, because a token names an unknown one."""
_DEVICE_GRANT: Final = "urn:ietf:params:oauth:grant-type:device_code"
_INTERVAL_S: Final = 5
"""Between two requests with a device code (RFC 8628, 3.2 and 3.5)."""
T = TypeVar("T")


class ProviderUnavailable(RequestError):
    """The identity provider does not answer, or not as OpenID Connect Discovery and RFC 6749 say."""

    status, kind, title = 503, "unavailable", "Not available now"


class LoginRefused(Unauthenticated):
    """``reason``: ``refused`` (the provider's answer is not valid), ``unknown`` (it is, but no user of ours is meant)."""

    def __init__(self, message: str, reason: str = "refused") -> None:
        super().__init__(message)
        self.reason = reason


class LoginPending(RequestError):
    """The person has not confirmed the login at the provider yet. ``wait_s``: when to ask again."""

    kind, title = "login-pending", "Not confirmed yet"

    def __init__(self, wait_s: int = _INTERVAL_S) -> None:
        super().__init__("the login is not confirmed at the identity provider yet")
        self.wait_s = wait_s

    @property
    def headers(self) -> dict[str, str]:
        return {"Retry-After": str(self.wait_s)}


@dataclass(frozen=True, slots=True)
class OidcSettings:
    issuer: str
    #: a client with a secret, or a public one
    client_id: str
    client_secret: str = field(default="", repr=False)
    #: the claim that names a user at the first login, one of CLAIMS
    claim: str = "email"

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self | None:
        """None without WOOLY_OIDC_ISSUER. Raises SettingError."""
        issuer, client = environment.get("WOOLY_OIDC_ISSUER", "").strip(), environment.get("WOOLY_OIDC_CLIENT_ID", "").strip()
        if not issuer and not client:
            return None
        if not client or not _is_safe(issuer):
            raise SettingError(
                f"WOOLY_OIDC_ISSUER={issuer} and WOOLY_OIDC_CLIENT_ID={client} go together, and the issuer begins with https:// "
                "(http:// on loopback only)"
            )
        claim = environment.get("WOOLY_OIDC_CLAIM", "").strip() or "email"
        if claim not in CLAIMS:
            raise SettingError(f"WOOLY_OIDC_CLAIM is {claim!r}; write {' or '.join(CLAIMS)}")
        path = environment.get("WOOLY_OIDC_CLIENT_SECRET_FILE", "").strip()
        try:
            secret = Path(path).read_text().strip() if path else ""
        except (OSError, UnicodeDecodeError) as error:
            raise SettingError(f"WOOLY_OIDC_CLIENT_SECRET_FILE={path} cannot be read: {error}") from None
        return cls(issuer, client, secret, claim)

    @property
    def host(self) -> str:
        """The provider's name for people."""
        return urlsplit(self.issuer).hostname or self.issuer


def _is_safe(url: str) -> bool:
    parts = urlsplit(url)
    return bool(parts.hostname) and (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or "")))


@dataclass(frozen=True, slots=True)
class Person:
    """The authenticated subject of an ID token."""

    #: issuer and subject, separated by a space: the only claims that are stable
    subject: str
    #: the configured claim; empty: the token has none, or an address that the provider has not verified
    name: str


def person_of(claims: Mapping[str, Any], claim: str) -> Person:
    name = claims.get(claim)
    known = isinstance(name, str) and (claim != "email" or claims.get("email_verified") is True)
    return Person(f"{claims['iss']} {claims['sub']}", str(name) if known else "")


def read_id_token(text: str, keys: KeySet, *, issuer: str, client_id: str, now_s: int, nonce: str | None) -> dict[str, Any]:
    """The claims of an ID token that was issued to ``client_id`` in the last minutes. ``nonce``: of the login that asked for it; None: the
    device flow has none. Raises InvalidKeyIdError for a key that is not in ``keys``, else JoseError or ValueError."""
    claims = jwt.decode(text, keys, algorithms=ALGORITHMS).claims
    jwt.JWTClaimsRegistry(
        now=now_s,
        leeway=_LEEWAY_S,
        iss={"essential": True, "value": issuer},
        aud={"essential": True, "value": client_id},
        sub={"essential": True},
        exp={"essential": True},
        iat={"essential": True},
    ).validate(claims)
    if claims["iat"] < now_s - _FRESH_S - _LEEWAY_S:
        raise ValueError("it was issued too long ago")
    party = claims.get("azp", client_id if isinstance(claims["aud"], str) or len(claims["aud"]) == 1 else None)
    if party != client_id:
        raise ValueError("it was issued to another client")
    if nonce is not None and not (isinstance(claims.get("nonce"), str) and hmac.compare_digest(claims["nonce"].encode(), nonce.encode())):
        raise ValueError("its nonce is not the one of this login")
    return claims


class _Metadata(msgspec.Struct, frozen=True):
    """OpenID Connect Discovery 1.0, section 3."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    #: of the device flow; empty: the provider has none
    device_authorization_endpoint: str = ""


class DeviceCode(msgspec.Struct, frozen=True):
    """RFC 8628, section 3.2. Times are seconds."""

    device_code: str
    user_code: str
    verification_uri: str
    expires_in: int
    verification_uri_complete: str | None = None
    interval: int = _INTERVAL_S


class _Refusal(msgspec.Struct, frozen=True):
    """RFC 6749, section 5.2."""

    error: str = ""


class _Tokens(msgspec.Struct, frozen=True):
    id_token: str


def _refusal(body: bytes) -> RequestError:
    try:
        error = msgspec.json.decode(body, type=_Refusal).error
    except (msgspec.MsgspecError, UnicodeDecodeError):
        error = ""
    if error in ("authorization_pending", "slow_down"):
        return LoginPending(_INTERVAL_S if error == "authorization_pending" else 2 * _INTERVAL_S)
    get_logger().warning("the identity provider refused a request", error=error[:200])
    return LoginRefused("the identity provider does not accept the login, or does not accept it any more")


class OidcProvider:
    """``async with OidcProvider(settings)``. Every method raises ProviderUnavailable, and those that read tokens LoginRefused."""

    def __init__(self, settings: OidcSettings, *, authorities: str = "") -> None:
        """``authorities``: a PEM file of CAs that are trusted beside the system's. Raises SettingError."""
        self.settings = settings
        self._refetches: Buckets[str] = Buckets(_REFETCHES)
        self._device_requests: Buckets[str] = Buckets(QUOTAS["device_logins"].rate())
        self._metadata: _Metadata | None = None
        self._keys: KeySet | None = None
        #: when metadata and keys are fetched again, monotonic
        self._metadata_until_s = self._keys_until_s = 0.0
        try:
            self._verify = outside_context(authorities)
        except ValueError as error:
            raise SettingError(str(error)) from None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self | None:
        """None where no provider is configured. Raises SettingError."""
        settings = OidcSettings.from_environment(environment)
        return None if settings is None else cls(settings, authorities=environment.get(CA_VARIABLE, "").strip())

    async def __aenter__(self) -> Self:
        self._http = httpx.AsyncClient(timeout=_TIMEOUT_S, verify=self._verify, follow_redirects=False)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        await self._http.aclose()

    async def login_url(self, flow: LoginFlow, redirect_uri: str) -> str:
        """Where the browser is sent to log in."""
        challenge = base64.urlsafe_b64encode(hashlib.sha256(flow.verifier.encode()).digest()).decode().rstrip("=")
        asked = {
            "response_type": "code",
            "client_id": self.settings.client_id,
            "redirect_uri": redirect_uri,
            "scope": SCOPE,
            "state": flow.state,
            "nonce": flow.nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        endpoint = (await self._discovered()).authorization_endpoint
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(asked)}"

    async def redeem(self, answer: Mapping[str, str], flow: LoginFlow, redirect_uri: str) -> Person:
        """Exchange the code in the provider's ``answer`` (the query of the callback) for the person who logged in."""
        if answer.get("iss", self.settings.issuer) != self.settings.issuer or not answer.get("code"):
            raise LoginRefused("the identity provider did not confirm the login")
        form = {
            "grant_type": "authorization_code",
            "code": answer["code"],
            "redirect_uri": redirect_uri,
            "client_id": self.settings.client_id,
            "code_verifier": flow.verifier,
        }
        found = await self._sent(_Tokens, (await self._discovered()).token_endpoint, form)
        return await self._person(found.id_token, flow.nonce)

    async def begin_device(self, source: str) -> DeviceCode:
        """Begin a login that a person confirms in any browser. ``source``: the caller's address. Raises NotThere when the provider has no
        device flow, QuotaReached, LoginRefused."""
        self._take_device_request(source)
        endpoint = (await self._discovered()).device_authorization_endpoint
        if not endpoint:
            raise NotThere(f"the identity provider {self.settings.host} has no device flow")
        found = await self._sent(DeviceCode, endpoint, {"client_id": self.settings.client_id, "scope": SCOPE})
        if not all(_is_safe(url) for url in (found.verification_uri, found.verification_uri_complete or found.verification_uri)):
            raise self._unavailable("it names a page for the code without https://")
        return found

    async def redeem_device(self, code: str, source: str) -> Person | LoginPending:
        """Exchange the code of a device for the person who confirmed the login. Raises QuotaReached, LoginRefused."""
        self._take_device_request(source)
        form = {"grant_type": _DEVICE_GRANT, "device_code": code, "client_id": self.settings.client_id}
        try:
            found = await self._sent(_Tokens, (await self._discovered()).token_endpoint, form)
        except LoginPending as pending:
            return pending
        return await self._person(found.id_token, None)

    def _take_device_request(self, source: str) -> None:
        group, now_ns = address_group(source), time.monotonic_ns()
        excess = excess_of("device_logins", self._device_requests, group, now_ns)
        if excess is not None:
            raise QuotaReached(excess, "this address")
        self._device_requests.take(group, now_ns)

    async def _person(self, id_token: str, nonce: str | None) -> Person:
        """The subject of an ID token. A token that names an unknown key makes us fetch the keys once: the
        provider may have new ones."""
        try:
            try:
                claims = self._read(id_token, await self._key_set(), nonce)
            except InvalidKeyIdError:
                claims = self._read(id_token, await self._key_set(again=True), nonce)
        except (JoseError, ValueError) as error:
            get_logger().warning("an ID token was refused", reason=str(error)[:200])
            raise LoginRefused("the ID token is not valid; the controller's log names the reason") from None
        return person_of(claims, self.settings.claim)

    def _read(self, text: str, keys: KeySet, nonce: str | None) -> dict[str, Any]:
        issuer, client_id = self.settings.issuer, self.settings.client_id
        return read_id_token(text, keys, issuer=issuer, client_id=client_id, now_s=int(time.time()), nonce=nonce)

    async def _discovered(self) -> _Metadata:
        if self._metadata is None or time.monotonic() >= self._metadata_until_s:
            found = await self._asked(_Metadata, "GET", self.settings.issuer.rstrip("/") + "/.well-known/openid-configuration")
            if found.issuer != self.settings.issuer:
                raise self._unavailable(f"it calls itself {found.issuer}; set WOOLY_OIDC_ISSUER to exactly that")
            device_url = found.device_authorization_endpoint or found.token_endpoint
            if not all(_is_safe(url) for url in (found.authorization_endpoint, found.token_endpoint, found.jwks_uri, device_url)):
                raise self._unavailable("it names endpoints without https://")
            self._metadata, self._metadata_until_s = found, time.monotonic() + _CACHED_S
        return self._metadata

    async def _key_set(self, *, again: bool = False) -> KeySet:
        if again:
            if self._refetches.wait_ns("", time.monotonic_ns()):
                raise ValueError("its key is unknown")
            self._refetches.take("", time.monotonic_ns())
        if again or self._keys is None or time.monotonic() >= self._keys_until_s:
            found = await self._asked(dict[str, Any], "GET", (await self._discovered()).jwks_uri)
            try:
                self._keys = KeySet.import_key_set(found)  # type: ignore[arg-type]  # checked by this call
            except (JoseError, ValueError, KeyError, TypeError) as error:
                raise self._unavailable(f"its keys cannot be read: {error}") from None
            self._keys_until_s = time.monotonic() + _CACHED_S
        return self._keys

    async def _sent(self, kind: type[T], url: str, form: Mapping[str, str]) -> T:
        """The JSON answer to ``form``, sent with the client's secret if it has one (RFC 6749, 2.3.1)."""
        secret = self.settings.client_secret
        basic = (quote(self.settings.client_id, safe=""), quote(secret, safe="")) if secret else None
        return await self._asked(kind, "POST", url, data=form, auth=basic)

    async def _asked(self, kind: type[T], method: str, url: str, **more: Any) -> T:
        """The JSON answer. A refusal of a code (RFC 6749, 5.2) raises LoginRefused, or LoginPending (RFC 8628, 3.5)."""
        try:
            answer = await self._http.request(method, url, headers={"accept": "application/json"}, **more)
        except httpx.HTTPError as error:
            raise self._unavailable(f"it does not answer ({type(error).__name__})") from None
        if method == "POST" and answer.status_code == 400:
            raise _refusal(answer.content)
        try:
            return msgspec.json.decode(answer.raise_for_status().content, type=kind)
        except (httpx.HTTPStatusError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise self._unavailable(f"{url} answers with status {answer.status_code}: {error}") from None

    def _unavailable(self, reason: str) -> ProviderUnavailable:
        get_logger().warning("the identity provider is not available", issuer=self.settings.issuer, reason=reason[:500])
        return ProviderUnavailable(f"the identity provider {self.settings.host} is not available; use a password or a key, or try again")
