"""Authentication of one service: the view of the log, the checker of secrets and the secret of tokens, which all services share, in one
object.

    access = await open_access(bus, os.environ, listens_on=[host], view=lambda: projection.access, follows_log=lambda: projection.connected)
    app = Litestar(handlers, plugins=[AccessPlugin(access)])        # web.py

WOOLY_AUTH is ``on``, ``off``, or unset: off where that is allowed, else on. Off is allowed where everything listens on loopback.

The secret is 32 bytes in a bucket that all replicas and billing read. Where services seal their facts it is derived from those bytes and
their common key, so that a reader of the bus's disk, or a writer of other bytes, cannot compute it. The first service that starts creates
it; then each seal key gives one, and a token counts while the seal key is not retired. Deleting the key
(``nats kv del wooly_access session_secret``) and restarting makes new bytes; every browser then logs in again.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import urlsplit

import msgspec

from bus_schemas.events import decode_events
from bus_schemas.quotas import QUOTAS
from scheduler.buckets import Buckets
from scheduler.quotas import excess_of
from services.kit.access.checker import Checker
from services.kit.access.errors import Unauthenticated
from services.kit.access.rules import Identity, check_grant, local_identity
from services.kit.access.tokens import (
    RELAY_S,
    SESSION_MAX_S,
    SESSION_S,
    LoginFlow,
    Token,
    csrf_token,
    parse_key,
    read_login_flow,
    read_token,
    write_login_flow,
    write_token,
)
from services.kit.access.view import AccessView
from services.kit.bus import Bus
from services.kit.errors import Conflict, LogUnreadable, QuotaReached, SettingError, StartError
from services.kit.projection import Projection
from wooly.shared.tls import is_loopback

__all__ = ["BUCKET", "Access", "AccessProjection", "Network", "authentication_on", "hosts_of", "open_access", "shared_secrets"]

BUCKET: Final = "wooly_access"
_STREAM: Final = f"KV_{BUCKET}"
_SUBJECT: Final = f"$KV.{BUCKET}.session_secret"
_BYTES: Final = 32
_TRIES: Final = 5
_PAUSE_S: Final = 0.1
_SUBJECTS: Final = "wooly.evt.access.*"
_HISTORY_S: Final = 30.0
_PATIENCE_S: Final = 20.0
"""For how long a bus is away before requests are refused; until then they wait. A restart takes some seconds, on a busy machine ten."""


class AccessProjection(Projection):
    """``async with AccessProjection(bus)`` returns once the history is folded. After an unreadable event, which may be a revocation, all
    authentication fails."""

    def __init__(self, bus: Bus) -> None:
        super().__init__(bus, _SUBJECTS)
        self.view = AccessView()

    async def __aenter__(self) -> Self:
        await self.follow()
        async with asyncio.timeout(_HISTORY_S):
            with contextlib.suppress(LogUnreadable):
                await self.wait_for(await self.log_end())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        await self.stop()

    @property
    def receives_revocations(self) -> bool:
        """Whether a revocation would be folded now."""
        return self.connected and self.failure is None

    def apply(self, position: int, subject: str, data: bytes) -> None:
        for event in decode_events(data):
            self.view.apply(position, event)

    def start_over(self) -> None:
        self.view = AccessView()


async def shared_secrets(bus: Bus) -> Callable[[], Sequence[bytes]]:
    """The secrets of tokens at the moment of a call, the one that signs first; made now if there are none. Raises StartError when what is
    there is no secret, BusUnavailable, BusRefused."""
    await bus.ensure_stream(_bucket())
    for _ in range(_TRIES):
        revision, found = await bus.message(_STREAM, last_by_subj=_SUBJECT) or (0, b"")
        if found and bus.seal is not None:
            return partial(bus.seal.secrets, found)
        if found:
            if len(found) != _BYTES:
                raise StartError(f"{_SUBJECT} holds {len(found)} bytes instead of {_BYTES}; delete it and start again")
            return lambda: (found,)
        with contextlib.suppress(Conflict):  # another replica made it at the same moment
            await bus.publish_acked(_SUBJECT, secrets.token_bytes(_BYTES), expect_last_on_subject=revision)
        await asyncio.sleep(_PAUSE_S)
    raise StartError(f"no secret could be stored at {_SUBJECT}; is the bucket full or read-only?")


def _bucket() -> dict[str, Any]:
    return {
        "name": _STREAM,
        "subjects": [f"$KV.{BUCKET}.>"],
        "storage": "file",
        "max_msgs_per_subject": 1,
        "discard": "new",
        "allow_rollup_hdrs": True,
        "deny_delete": True,
        "allow_direct": True,
    }


Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_SESSION_ID_BYTES: Final = 12
"""Sessions of one user or key: thirty at once, then one in ten seconds."""


async def _no_bus() -> None:
    """Nothing to wait for."""


class Access:
    """``on``: whether requests need authentication. ``secrets()``: those of tokens, the one that signs first. ``proxies``: networks whose
    forwarded headers are trusted. ``pages``: whether this service has web pages, a login page among them."""

    def __init__(
        self,
        *,
        on: bool,
        view: Callable[[], AccessView] = AccessView,
        follows_log: Callable[[], bool] = lambda: True,
        reconnected: Callable[[], Awaitable[None]] = _no_bus,
        secrets: Callable[[], Sequence[bytes]] = tuple,
        proxies: Iterable[Network] = (),
        pages: bool = False,
    ) -> None:
        if on and min(map(len, secrets()), default=0) < 32:
            raise ValueError("authentication needs a secret of at least 32 bytes")
        self.on = on
        self.checker = Checker(view, follows_log, reconnected)
        self.proxies = tuple(proxies)
        self.pages = pages
        self._view = view
        self._secrets = secrets
        self._changes: Buckets[str] = Buckets(QUOTAS["changes"].rate())
        self._begun: Buckets[str] = Buckets(QUOTAS["browser_sessions"].rate())

    @property
    def view(self) -> AccessView:
        return self._view()

    def close(self) -> None:
        self.checker.hasher.close()

    # -- identities --------------------------------------------------------------------------------------------------------------------

    async def identity_of_key(self, key: str, secret: str, source: str = "") -> Identity:
        """The identity of a key's id and secret, from address ``source``. Raises Unauthenticated, QuotaReached, Unsure."""
        found = parse_key(f"wk_{key}_{secret}")
        if found is None:
            raise Unauthenticated("the key is not valid")
        return await self.checker.key(found, source)

    async def identity_of_text(self, text: str, source: str = "") -> Identity | None:
        """The identity of a whole key; None for text without the form of one. Raises what ``identity_of_key`` does."""
        key = parse_key(text)
        return None if key is None else await self.checker.key(key, source)

    def resolve(self, who: Identity) -> Identity | None:
        """Re-resolve a cached identity; None if it was revoked. For operations that last longer than a request."""
        return self.view.resolve(who, time.time_ns()) if self.on else local_identity()

    def is_current(self, who: Identity, token: Token | None) -> bool:
        """Whether the identity ``who``, authenticated by the session ``token`` (None: by another proof), is still valid and the same. For
        streams."""
        if token is None:
            return self.resolve(who) == who
        return not self.view.session_ended(token.id) and self._holder(token, time.time_ns()) == who

    # -- sessions and relays -----------------------------------------------------------------------------------------------------------

    def count_change(self, who: Identity) -> None:
        """A request of ``who`` that may write to the log. Raises QuotaReached; the cluster's own identities have no limit."""
        if not self.on or not who.tenant:
            return
        now_ns = time.monotonic_ns()
        excess = excess_of("changes", self._changes, who.tenant, now_ns)
        if excess is not None:
            raise QuotaReached(excess, f"tenant {who.tenant}")
        self._changes.take(who.tenant, now_ns)

    def begin_session(self, who: Identity) -> Token:
        """A new session of an identity that has just been checked. Its id is new, which prevents session fixation. Raises QuotaReached:
        each session is a fact in the log, so their rate is limited."""
        at_ns = time.monotonic_ns()
        excess = excess_of("browser_sessions", self._begun, who.name, at_ns)
        if excess is not None:
            raise QuotaReached(excess, who.name)
        self._begun.take(who.name, at_ns)
        now_s = int(time.time())
        return self._token("session", secrets.token_hex(_SESSION_ID_BYTES), who, now_s, now_s, SESSION_S)

    def renewed(self, token: Token) -> Token:
        """The same session for another quarter of an hour, within its longest duration."""
        now_s = int(time.time())
        expires_s = min(now_s + SESSION_S, token.began_s + SESSION_MAX_S)
        return Token(token.kind, token.id, token.user, token.key, token.stamp, token.began_s, now_s, expires_s)

    def relay(self, who: Identity) -> Token:
        """A token that proves to another service, for a minute, that this caller asks through us."""
        now_s = int(time.time())
        token = self._token("relay", secrets.token_hex(_SESSION_ID_BYTES), who, now_s, now_s, RELAY_S)
        return msgspec.structs.replace(token, scopes=who.scopes)

    def access_token(self, who: Identity, life_s: int, scopes: tuple[str, ...] = ()) -> Token:
        """A token that stands for the key of ``who`` for ``life_s``, and no longer than the key is valid. ``scopes``: narrow it. Raises
        Forbidden when they give a right that the key does not have, QuotaReached: each is recorded in the log."""
        check_grant(who, who.role, who.tenant, scopes or who.scopes)
        session = self.begin_session(who)
        return Token("access", session.id, who.name, who.key, "", session.began_s, session.issued_s, session.issued_s + life_s, scopes)

    def write(self, token: Token) -> str:
        return write_token(self._secrets()[0], token)

    def csrf(self, session: str) -> str:
        return csrf_token(self._secrets()[0], session)

    def csrf_holds(self, session: str, given: str) -> bool:
        """Whether ``given`` is what a page of ``session`` sends with its writes."""
        return any(hmac.compare_digest(csrf_token(secret, session).encode(), given.encode()) for secret in self._secrets())

    def write_login_flow(self, flow: LoginFlow) -> str:
        return write_login_flow(self._secrets()[0], flow)

    def read_login_flow(self, text: str) -> LoginFlow | None:
        """None for an invalid or expired one."""
        found = (read_login_flow(secret, text, int(time.time())) for secret in self._secrets())
        return next((flow for flow in found if flow is not None), None)

    def read(self, text: str, kind: str) -> tuple[Token, Identity] | None:
        """The token and the identity of its holder now; None for an invalid, expired or revoked one. Raises Unsure."""
        now_ns = time.time_ns()
        found = (read_token(secret, text, now_ns // 10**9, kind) for secret in self._secrets())
        token = next((token for token in found if token is not None), None)
        if token is None or self.view.session_ended(token.id):
            return None
        self.checker.require_log()
        who = self._holder(token, now_ns)
        return None if who is None else (token, who)

    def _holder(self, token: Token, now_ns: int) -> Identity | None:
        """The identity of the token's holder at ``now_ns``; None when its key is not valid any more, or the user has another password."""
        if token.key:
            who = self.view.principal(token.key, now_ns)
            return who if who is None or not token.scopes else replace(who, scopes=token.scopes)
        user = self.view.users.get(token.user)
        return self.view.person(token.user) if user is not None and user.stamp == token.stamp else None

    def _token(self, kind: str, name: str, who: Identity, began_s: int, now_s: int, life_s: int) -> Token:
        user = self.view.users.get(who.name)
        stamp = user.stamp if user is not None and not who.key else ""
        assert kind in ("session", "relay")
        return Token("session" if kind == "session" else "relay", name, who.name, who.key, stamp, began_s, now_s, now_s + life_s)


async def open_access(
    bus: Bus,
    environment: Mapping[str, str],
    *,
    listens_on: Iterable[str],
    view: Callable[[], AccessView],
    follows_log: Callable[[], bool],
    pages: bool = False,
) -> Access:
    """As configured by WOOLY_AUTH (on, off), WOOLY_TRUSTED_PROXIES (networks, separated by commas). Raises SettingError."""
    proxies = trusted_proxies(environment.get("WOOLY_TRUSTED_PROXIES", ""))
    if not authentication_on(environment, listens_on):
        return Access(on=False, view=view, follows_log=follows_log, proxies=proxies, pages=pages)
    reconnected, secrets = partial(bus.reconnected, _PATIENCE_S), await shared_secrets(bus)
    return Access(on=True, view=view, follows_log=follows_log, reconnected=reconnected, secrets=secrets, proxies=proxies, pages=pages)


def trusted_proxies(text: str) -> list[Network]:
    """Raises SettingError."""
    try:
        return [ipaddress.ip_network(part.strip()) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise SettingError(f"WOOLY_TRUSTED_PROXIES is {text!r} ({error}); write networks such as 10.0.0.0/8,127.0.0.1") from None


def authentication_on(environment: Mapping[str, str], listens_on: Iterable[str]) -> bool:
    """``listens_on``: every host that this service and its bus listen on. Raises SettingError when it is off and one is not loopback."""
    said = environment.get("WOOLY_AUTH", "").strip().lower()
    if said not in ("", "on", "off"):
        raise SettingError(f"WOOLY_AUTH is {said!r}; write on or off")
    outside = sorted({host for host in listens_on if not is_loopback(host)})
    if said == "off" and outside:
        raise SettingError(
            f"WOOLY_AUTH is off, but {outside[0]} is not a loopback address: any client that reaches it could do anything; "
            "set WOOLY_AUTH=on (and WOOLY_BOOTSTRAP_KEY, made by `wooly keys generate`, for the first admin), "
            "or listen on 127.0.0.1 only (WOOLY_HTTP=127.0.0.1:8080)"
        )
    return said == "on" or bool(outside)


def hosts_of(urls: str) -> list[str]:
    """The hosts in a list of URLs separated by commas, as WOOLY_NATS_URL is one; empty (no loopback) for what is no URL."""
    return [_host(url if "://" in url else f"nats://{url}") for part in urls.split(",") if (url := part.strip())]


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
