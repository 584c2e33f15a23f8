"""Authentication and authorisation in a litestar application: every request has an identity, every route names the action it needs; and
what handlers ask: permissions, visible tenants, audit fields.

app = Litestar(handlers, plugins=[AccessPlugin(access)])
@get("/api/v1/tasks", action="task.read")        # an Action; "anyone": any identity; None: no authentication
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from litestar import Litestar, Request, Response
from litestar.config.app import AppConfig
from litestar.connection import ASGIConnection
from litestar.datastructures import Cookie, MutableScopeHeaders
from litestar.enums import ScopeType
from litestar.handlers import ASGIRouteHandler
from litestar.handlers.base import BaseRouteHandler
from litestar.middleware import ASGIMiddleware
from litestar.plugins import InitPlugin
from litestar.response import Redirect
from litestar.routes import HTTPRoute
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from bus_schemas.events import ActionTaken
from services.kit.access.access import Access
from services.kit.access.errors import CrossSite, Forbidden, Hidden, Unauthenticated
from services.kit.access.headers import (
    FLOW,
    SAFE_METHODS,
    SESSION,
    address_of,
    bearer,
    check_local_host,
    check_same_site,
    cookie_name,
    is_secure,
    read_cookie,
)
from services.kit.access.refusals import DENIED, Refusal
from services.kit.access.rules import ACTIONS, Action, Identity, local_identity, may_at_all
from services.kit.access.tokens import FLOW_S, RENEW_AFTER_S, LoginFlow, Token
from services.kit.access.turns import Turns
from services.kit.addresses import address_group
from services.kit.errors import RequestError
from services.kit.problems import Handlers, refused

__all__ = [
    "ANONYMOUS", "ANYONE", "CSRF_FIELD", "CSRF_HEADER", "HANDLERS", "PUBLIC", "AccessPlugin", "Proof", "audit_record", "check_form_token",
    "end_cookie", "identity_of", "login_flow_cookie", "permit", "proof_of", "relay_authorization", "session_cookie_header", "tenant_filter",

]  # fmt: skip

ANONYMOUS = Identity("", "", "")
"""An unauthenticated caller of a public route; it has no rights."""


@dataclass(frozen=True, slots=True)
class Proof:
    """How an identity was proved; on ``request.auth``."""

    #: ``off`` (no authentication), ``none``, ``key``, ``token`` (of a key), ``session``, ``relay``
    kind: str
    #: the caller's address
    source: str = ""
    #: whether the browser speaks TLS
    secure: bool = False
    #: the token that writes of a session's pages must carry; empty unless ``kind`` is ``session``
    csrf: str = ""
    #: of the session
    token: Token | None = None


def identity_of(connection: Any) -> Identity:
    """The caller's identity. Raises RuntimeError where no AccessPlugin is installed: there is no default identity."""
    found = connection.scope.get("user")
    if not isinstance(found, Identity):
        raise RuntimeError("the application has no AccessPlugin")
    return found


def proof_of(connection: Any) -> Proof:
    found = connection.scope.get("auth")
    if not isinstance(found, Proof):
        raise RuntimeError("the application has no AccessPlugin")
    return found


def permit(connection: Any, action: Action, tenant: str | None = None, *, hidden: str = "", field: str = "") -> Identity:
    """The caller's identity, if it may do ``action`` to something of ``tenant`` (None: to nothing of a tenant's). Else raises Forbidden; or
    Hidden with the text ``hidden`` (the same as for what does not exist) when it is of another tenant."""
    asking = identity_of(connection)
    if asking.may(action, tenant):
        return asking
    if hidden and asking.tenant and tenant is not None and tenant != asking.tenant:
        raise Hidden(hidden)
    raise Forbidden(f"{asking.role} {asking.name} may not do this ({action})", field)


def tenant_filter(connection: Any, action: Action, wanted: str | None = None) -> str | None:
    """The tenant that a list is restricted to: ``wanted`` or none (None) in the cluster, one's own in a tenant. Raises Forbidden."""
    asking = identity_of(connection)
    tenant = wanted if wanted is not None else (asking.tenant or None)
    if tenant is not None:
        permit(connection, action, tenant, field="tenant")
    elif not asking.may(action, ""):
        raise Forbidden(f"{asking.role} {asking.name} may not do this ({action})")
    return tenant


def audit_record(connection: Any, action: str, target: str, detail: str = "", *, tenant: str | None = None) -> ActionTaken:
    """The audit record, to be stored behind the facts of the action. ``tenant``: of the entity (default: the caller's own)."""
    asking = identity_of(connection)
    of = asking.tenant if tenant is None else tenant
    return ActionTaken(time.time_ns(), asking.name, of, action, target, detail, proof_of(connection).source)


def relay_authorization(connection: Any) -> str:
    """The Authorization header with which a service asks another one on behalf of its caller; empty without authentication."""
    access: Access = connection.app.state.access
    return f"Bearer {access.write(access.relay(identity_of(connection)))}" if access.on else ""


ANYONE: Final = "anyone"
PUBLIC: Final = "public"
CSRF_HEADER: Final = b"x-csrf-token"
CSRF_FIELD: Final = "_csrf_token"
"""The form field that plain forms send; their routes declare ``csrf="form"`` and call ``check_form_token``."""
_API: Final = "/api/"
_LASTING: Final = frozenset({"key.write", "user.write", "tenant.write"})
"""Actions by which a short-lived token could make an identity that outlives it."""
_LOGIN: Final = "log in, or send an API key as `Authorization: Bearer <key>`"


class AccessPlugin(InitPlugin):
    """Middleware, guard, problem documents, and a check at start that no route was forgotten."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def on_app_init(self, app_config: AppConfig) -> AppConfig:
        app_config.state["access"] = self._access
        app_config.middleware.insert(0, AccessMiddleware(self._access))
        app_config.guards.insert(0, guard)
        app_config.exception_handlers = {**HANDLERS, **app_config.exception_handlers}
        app_config.on_startup.append(_check_routes)
        return app_config


class AccessMiddleware(ASGIMiddleware):
    """Authenticates every request, and renews sessions that are in use."""

    scopes = (ScopeType.HTTP, ScopeType.WEBSOCKET, ScopeType.ASGI)

    def __init__(self, access: Access) -> None:
        self._access = access
        self._turns = Turns()

    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        secure = is_secure(scope, self._access.proxies)
        source = address_of(scope, self._access.proxies)
        if self._access.on:
            identity, proof = await self._prove(scope, source, secure)
        else:
            check_local_host(scope)
            if scope.get("method", "GET") not in SAFE_METHODS:
                check_same_site(scope)
            identity, proof = local_identity(), Proof("off", source, secure)
        scope["user"], scope["auth"] = identity, proof
        scope["state"]["csrf_token"] = proof.csrf
        sending = self._sending(scope, send, proof)
        if not self._access.on or isinstance(scope.get("route_handler"), ASGIRouteHandler):  # a stream, which others bound
            await next_app(scope, receive, sending)
            return
        party = f"tenant {identity.tenant}" if identity.tenant else identity.name or f"address {address_group(source)}"
        async with self._turns.of(party) as turn:

            async def beginning(message: Message) -> None:
                turn.give()
                await sending(message)

            await next_app(scope, receive, beginning)

    async def _prove(self, scope: Scope, source: str, secure: bool) -> tuple[Identity, Proof]:
        """Authenticate the caller. On public routes a bad cookie or key gives an anonymous identity; elsewhere it is refused."""
        public = needs_of(scope.get("route_handler")) == PUBLIC
        text = "" if public else bearer(scope)
        cookie = "" if text else read_cookie(scope, SESSION, secure)
        if text or cookie:
            await self._access.checker.log_followed()
        if text:
            identity = await self._access.identity_of_text(text, source)
            if identity is not None:
                return identity, Proof("key", source, secure)
            path = str(scope.get("path", ""))
            found = self._access.read(text, "access") if path.startswith(_API) else None  # no pages: their streams outlast a token
            if found is not None:
                return found[1], Proof("token", source, secure)
            # Only services without pages accept relay tokens: one that was sent to such a service is not valid here.
            relayed = None if self._access.pages else self._access.read(text, "relay")
            if relayed is None:
                raise Unauthenticated("the key is not valid")
            return relayed[1], Proof("relay", source, secure)
        found = self._access.read(cookie, "session")
        if found is None:
            return ANONYMOUS, Proof("none", source, secure)
        token, identity = found
        proof = Proof("session", source, secure, self._access.csrf(token.id), token)
        if scope.get("method", "GET") not in SAFE_METHODS:
            check_same_site(scope)
            if not public and not _form_route(scope.get("route_handler")):
                _check_header_token(self._access, scope, proof)
        return identity, proof

    def _sending(self, scope: Scope, send: Send, proof: Proof) -> Send:
        """Renews the cookie where it is time, and keeps answers out of caches and frames."""
        renewed = self._renewed(proof)

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                if message["status"] == 403 and self._access.on:
                    self._note_denial(scope, proof)
                headers = MutableScopeHeaders(message)
                headers.setdefault("x-content-type-options", "nosniff")
                headers.setdefault("x-frame-options", "DENY")
                headers.setdefault("referrer-policy", "same-origin")
                if self._access.on and needs_of(scope.get("route_handler")) != PUBLIC:
                    headers.setdefault("cache-control", "no-store")
                if renewed is not None and not _sets_session(message, proof.secure):
                    headers.add("set-cookie", session_cookie_header(self._access, renewed, proof.secure))
            await send(message)

        return sending

    def _note_denial(self, scope: Scope, proof: Proof) -> None:
        who = scope["user"]
        if who != ANONYMOUS:
            denial = Refusal(DENIED, needs_of(scope.get("route_handler")), "denied", who.name, who.tenant, address_group(proof.source))
            self._access.checker.refusals.add(denial)

    def _renewed(self, proof: Proof) -> Token | None:
        token = proof.token
        if token is None:
            return None
        renewed = self._access.renewed(token)
        return renewed if renewed.issued_s - token.issued_s >= RENEW_AFTER_S else None


def guard(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """Passes callers that may do the route's action to any entity; the handler checks the entity. Raises Unauthenticated, Forbidden."""
    needs = needs_of(handler)
    if needs == PUBLIC:
        return
    identity = identity_of(connection)
    if identity == ANONYMOUS:
        raise Unauthenticated(_LOGIN)
    if needs == ANYONE:
        return
    if needs not in ACTIONS:
        raise Forbidden("this route declares no action")
    if needs in _LASTING and proof_of(connection).kind == "token":
        raise Forbidden(f"a short-lived token may not do this ({needs}); use the key")
    if not may_at_all(identity, needs):  # type: ignore[arg-type]  # it is one of ACTIONS
        raise Forbidden(f"{identity.role} {identity.name} may not do this ({needs})")
    if connection.scope.get("method") not in SAFE_METHODS:
        access: Access = connection.app.state.access
        access.count_change(identity)


def _unauthenticated(request: Request[Any, Any, Any], error: Unauthenticated) -> Response[Any]:
    """For a person with a browser the way to the login page, which leads back to where the request wanted to go."""
    page = not request.url.path.startswith(_API) and request.app.state.access.pages
    if page and request.headers.get("hx-request") == "true":
        return refused(request, error, **{"HX-Redirect": "/login"})
    if page and request.method == "GET" and request.accept.best_match(["application/json", "text/html"]) == "text/html":
        path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        return Redirect(f"/login?next={quote(path, safe='')}", status_code=303)
    return refused(request, error)


HANDLERS: Final[Handlers] = {RequestError: refused, Unauthenticated: _unauthenticated}


def needs_of(handler: Any) -> str:
    """What a route needs: an Action, ``anyone``, ``public``, or empty without a declaration. litestar's own routes declare none and reveal
    nothing: the description of the API and the answer to OPTIONS."""
    options = getattr(handler, "opt", {})
    if "action" in options:
        return PUBLIC if options["action"] is None else str(options["action"])
    return PUBLIC if handler is not None and _of_litestar(handler) else ""


def check_form_token(connection: Any, given: str) -> None:
    """For routes with ``csrf="form"``: raises CrossSite unless ``given`` (the form's field) is the session's token."""
    _compare(connection.app.state.access, proof_of(connection), given)


def session_cookie_header(access: Access, token: Token, secure: bool) -> str:
    """The Set-Cookie of a session."""
    return _cookie(SESSION, access.write(token), max(1, token.expires_s - token.issued_s), secure).to_header(header="")


def end_cookie(secure: bool) -> str:
    """The Set-Cookie that makes a browser forget its session."""
    return _cookie(SESSION, "", 0, secure).to_header(header="")


def login_flow_cookie(access: Access, flow: LoginFlow | None, secure: bool) -> Cookie:
    """The cookie of a login at an OpenID Connect provider; None: the browser forgets it."""
    return _cookie(FLOW, "" if flow is None else access.write_login_flow(flow), 0 if flow is None else FLOW_S, secure)


def _cookie(name: str, value: str, max_age: int, secure: bool) -> Cookie:
    return Cookie(cookie_name(name, secure), value=value, path="/", max_age=max_age, httponly=True, secure=secure, samesite="lax")


def _check_header_token(access: Access, scope: Scope, proof: Proof) -> None:
    given = [value for key, value in scope["headers"] if key.lower() == CSRF_HEADER]
    _compare(access, proof, given[0].decode("latin-1") if len(given) == 1 else "")


def _compare(access: Access, proof: Proof, given: str) -> None:
    if proof.token is not None and not access.csrf_holds(proof.token.id, given):
        raise CrossSite("the page's token is missing or old (header X-CSRF-Token); reload the page")


def _sets_session(message: Any, secure: bool) -> bool:
    start = f"{cookie_name(SESSION, secure)}=".encode()
    return any(key.lower() == b"set-cookie" and value.startswith(start) for key, value in message.get("headers", ()))


def _form_route(handler: Any) -> bool:
    """Whether this route looks for the token in its form itself."""
    return bool(getattr(handler, "opt", {}).get("csrf") == "form")


def _of_litestar(handler: Any) -> bool:
    module = str(getattr(getattr(handler, "fn", None), "__module__", ""))
    return module.startswith("litestar.")


def _check_routes(app: Litestar) -> None:
    """Raises RuntimeError naming the routes that declare no action."""
    silent = sorted(
        f"{handler} at {route.path}"
        for route in app.routes
        for handler in (route.route_handlers if isinstance(route, HTTPRoute) else [route.route_handler])
        if needs_of(handler) not in ACTIONS | {ANYONE, PUBLIC}
    )
    if silent:
        raise RuntimeError(f"routes without action=...: {', '.join(silent)}")
