"""Sessions of browsers: login, logout, the caller's identity. A key needs no session; programs send it with every request."""

from __future__ import annotations

import time
from typing import Annotated, Final
from urllib.parse import urlencode

from litestar import Response, delete, get, post
from litestar.enums import RequestEncodingType
from litestar.params import Body

from bus_schemas.events import ActionTaken
from services.controller.bodies import LoginBody, LoginForm, LogoutForm, PasswordBody
from services.controller.errors import Invalid
from services.controller.identity import Caller, caller_of
from services.controller.parts import Ask, parts_of
from services.controller.presenters.access import identity_answer
from services.controller.presenters.common import Json
from services.controller.routes.described import problems
from services.kit.access.access import Access
from services.kit.access.errors import TooMany, Unauthenticated
from services.kit.access.headers import check_same_site
from services.kit.access.requests import proof_of
from services.kit.access.rules import Identity, local_identity
from services.kit.access.tokens import Token
from services.kit.access.view import SESSION_END
from services.kit.access.web import check_form_token, end_cookie, session_cookie_header

__all__ = ["ROUTES"]

_BEGIN: Final = "session.begin"


@get("/api/v1/session", summary="Get the caller's identity and permissions", action="anyone", responses=problems())
async def session(request: Ask) -> Json:
    """``csrf_token``: the value that changes with this session must send in the header X-CSRF-Token; null for API keys."""
    return identity_answer(caller_of(request).identity, csrf_token=proof_of(request).csrf or None)


@post("/api/v1/session", status_code=200, summary="Log in with an API key, or with user and password; sets a cookie", action=None,
      responses=problems(413))  # fmt: skip
async def post_session(request: Ask, data: LoginBody) -> Response[Json]:
    check_same_site(request.scope)
    who, token = await _log_in(request, data.user, data.password, data.key)
    if token is None:
        return Response(identity_answer(who, csrf_token=None))
    access = _access(request)
    headers = {"set-cookie": session_cookie_header(access, token, proof_of(request).secure)}
    return Response(identity_answer(who, csrf_token=access.csrf(token.id)), headers=headers)


@delete("/api/v1/session", status_code=200, summary="Log out", action="anyone", responses=problems())
async def delete_session(request: Ask) -> Response[Json]:
    """The session's token is invalid from now on, including copies of it."""
    await _log_out(request)
    return Response({"ended": True}, headers={"set-cookie": end_cookie(proof_of(request).secure)})


@post("/api/v1/session/password", status_code=200, summary="Change the caller's password", action="anyone", responses=problems(409, 413))
async def post_password(request: Ask, data: PasswordBody) -> Response[Json]:
    """All other sessions of the user end; this one gets a new cookie."""
    caller = caller_of(request)
    await parts_of(request).users.change_own_password(caller, data.old_password, data.new_password)
    headers = {}
    if proof_of(request).token is not None:
        token = await _begin(request, caller.identity)
        headers = {"set-cookie": session_cookie_header(_access(request), token, proof_of(request).secure)}
    return Response({"changed": True}, headers=headers)


@post("/login", status_code=303, summary="What the login page sends", action=None, include_in_schema=False)
async def post_login(request: Ask, data: Annotated[LoginForm, Body(media_type=RequestEncodingType.URL_ENCODED)]) -> Response[None]:
    check_same_site(request.scope)
    target = _inside(data.next)
    try:
        _, token = await _log_in(request, data.user, data.password, data.key)
    except (Unauthenticated, Invalid):
        return _to(f"/login?{urlencode({'failed': 1, 'next': target})}")
    except TooMany as error:
        return _to(f"/login?{urlencode({'wait': error.wait_s, 'next': target})}")
    return _to(target, "" if token is None else session_cookie_header(_access(request), token, proof_of(request).secure))


@post("/logout", status_code=303, summary="What the button sends", action=None, csrf="form", include_in_schema=False)
async def post_logout(request: Ask, data: Annotated[LogoutForm, Body(media_type=RequestEncodingType.URL_ENCODED)]) -> Response[None]:
    if proof_of(request).token is not None:
        check_form_token(request, data.csrf)
        await _log_out(request)
    return _to("/login", end_cookie(proof_of(request).secure))


async def _log_in(request: Ask, user: str, password: str, key: str) -> tuple[Identity, Token | None]:
    """The identity and its new session (None without authentication). Raises Invalid, Unauthenticated, TooMany, Unsure."""
    access = _access(request)
    if not access.on:
        return local_identity(), None
    source = proof_of(request).source
    if bool(key) == bool(user):
        raise Invalid("key" if key else "user", "give either a user with a password, or a key")
    who = await (access.identity_of_text(key.strip(), source) if key else access.checker.password(user.strip(), password, source))
    if who is None:
        raise Unauthenticated("the key is not valid")
    return who, await _begin(request, who)


async def _begin(request: Ask, who: Identity) -> Token:
    """A new session, recorded in the log. Its id is new, never one that the browser sent."""
    token = _access(request).begin_session(who)
    await _note(request, who, _BEGIN, token)
    return token


async def _log_out(request: Ask) -> None:
    token = proof_of(request).token
    if token is not None:
        await _note(request, caller_of(request).identity, SESSION_END, token)


async def _note(request: Ask, who: Identity, action: str, token: Token) -> None:
    source = proof_of(request).source
    done = ActionTaken(time.time_ns(), who.name, who.tenant, action, token.id, f"key {who.key}" if who.key else "password", source)
    await parts_of(request).access_log.note(Caller(who, source), done)


def _inside(target: str) -> str:
    """``target`` if it is a path of this site, else the start page: prevents open redirects."""
    plain = target.isprintable() and target.isascii() and "\\" not in target
    return target if plain and target.startswith("/") and not target.startswith("//") else "/"


def _to(address: str, cookie: str = "") -> Response[None]:
    headers = {"location": address, "cache-control": "no-store"}
    if cookie:
        headers["set-cookie"] = cookie
    return Response(None, status_code=303, headers=headers)


def _access(request: Ask) -> Access:
    found: Access = request.app.state.access
    return found


ROUTES: Final = [session, post_session, delete_session, post_password, post_login, post_logout]
