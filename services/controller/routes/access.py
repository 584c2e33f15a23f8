"""Sessions of browsers (login, logout, the caller's identity), tenants, users, API keys (the secret is shown once) and audit records. A key
needs no session; programs send it with every request.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Annotated, Final
from urllib.parse import urlencode

import msgspec
from litestar import Response, delete, get, patch, post, put
from litestar.enums import RequestEncodingType
from litestar.params import Body, Parameter
from litestar.response import Stream
from msgspec import UNSET

from bus_schemas.events import ActionTaken
from services.controller.actions.access import (
    KeyValues,
    UserValues,
    exported_actions,
    visible_actions,
    visible_keys,
    visible_tenants,
    visible_users,
)
from services.controller.bodies import (
    KeyBody,
    LoginBody,
    LoginForm,
    LogoutForm,
    NewTenantBody,
    NewUserBody,
    PasswordBody,
    TenantBody,
    TokenBody,
    TotpBody,
    TotpRemovalBody,
    UserBody,
    values_of,
)
from services.controller.errors import Invalid, NotThere, OutOfState
from services.controller.identity import Caller, caller_of
from services.controller.oidc import LoginRefused, OidcProvider, Person
from services.controller.parts import Ask, parts_of
from services.controller.presenters import Json, rfc3339
from services.controller.presenters.access import action_answer, identity_answer, key_answer, tenant_answer, user_answer
from services.controller.presenters.quotas import quota_answer, quota_uses
from services.controller.routes import Limit, Offset, Revision, page, problems, revision_of
from services.kit.access import AccessView
from services.kit.access.access import Access
from services.kit.access.errors import CodeNeeded, Unauthenticated
from services.kit.access.headers import check_same_site
from services.kit.access.rules import AUDITED, Identity, local_identity
from services.kit.access.tokens import Token
from services.kit.access.view import SESSION_END
from services.kit.access.web import check_form_token, end_cookie, proof_of, session_cookie_header
from services.kit.errors import QuotaReached
from services.kit.log import get_logger
from wooly.shared.audit_chain import chained, signature_line

__all__ = [
    "AUDIT", "KEYS", "LOGIN", "TENANTS", "USERS", "access_of", "begin_session", "inside", "oidc_identity", "provider_of", "redirect_to",
    "renewed_session",
]  # fmt: skip

TenantId = Annotated[str, Parameter(description="id of a tenant")]
UserId = Annotated[str, Parameter(description="id of a user")]
KeyId = Annotated[str, Parameter(description="id of a key")]
Moment = Annotated[str | None, Parameter(description="a time such as 2030-01-31T12:00:00Z")]


@get("/api/v1/tenants", summary="List the tenants that the caller may see", action="tenant.read", responses=problems())
async def tenants(request: Ask, limit: Limit = 10_000, offset: Offset = 0) -> Json:
    view = await parts_of(request).fresh_access()
    return page(visible_tenants(view, caller_of(request)), limit, offset, tenant_answer)


@get("/api/v1/tenants/{tenant:str}", summary="Get a tenant", action="tenant.read", responses=problems(404))
async def tenant(request: Ask, tenant: TenantId) -> Json:
    parts = parts_of(request)
    await parts.projection.caught_up()
    return tenant_answer(parts.tenants.seen(caller_of(request), tenant))


@post("/api/v1/tenants", summary="Create a tenant", action="tenant.write", responses=problems(409, 413))
async def post_tenant(request: Ask, data: NewTenantBody) -> Json:
    return tenant_answer(await parts_of(request).tenants.create(caller_of(request), data.id, data.title))


@patch(
    "/api/v1/tenants/{tenant:str}",
    summary="Change a tenant's title or disable it",
    action="tenant.write",
    responses=problems(404, 409, 413),
)
async def patch_tenant(request: Ask, tenant: TenantId, data: TenantBody, if_match: Revision = None) -> Json:
    """Keys and users of a disabled tenant are refused from now on; their earlier actions and usage stay in the log and on the bill."""
    changed = await parts_of(request).tenants.change(
        caller_of(request),
        tenant,
        title=None if data.title is UNSET else data.title,
        disabled=None if data.disabled is UNSET else data.disabled,
        revision=revision_of(if_match),
    )
    return tenant_answer(changed)


@get("/api/v1/quotas", summary="List quotas of the tenants that the caller may see", action="tenant.read", responses=problems())
async def quotas(request: Ask, tenant: str | None = None, limit: Limit = 10_000, offset: Offset = 0) -> Json:
    """``used`` null: it is not reported. Rates say what is used of ``limit`` now."""
    parts, caller = parts_of(request), caller_of(request)
    await parts.projection.caught_up()
    uses = quota_uses(parts, lambda name: caller.may("tenant.read", name) and tenant in (None, name))
    return page(uses, limit, offset, quota_answer)


@post(
    "/api/v1/tenants/{tenant:str}/erase",
    status_code=200,
    summary="Disable a tenant and destroy the key of its and its users' personal fields",
    action="tenant.write",
    responses=problems(404, 409),
)
async def erase_tenant(request: Ask, tenant: TenantId) -> Json:
    """Names and identities can never be read again, anywhere in the log. What the tenant used and owes stays. It cannot be undone."""
    return tenant_answer(await parts_of(request).tenants.erase(caller_of(request), tenant))


@get("/api/v1/users", summary="List the users that the caller may see", action="user.read", responses=problems())
async def users(request: Ask, tenant: str | None = None, limit: Limit = 10_000, offset: Offset = 0) -> Json:
    view = await parts_of(request).fresh_access()
    return page(visible_users(view, caller_of(request), tenant), limit, offset, user_answer)


@get("/api/v1/users/{user:str}", summary="Get a user", action="user.read", responses=problems(404))
async def user(request: Ask, user: UserId) -> Json:
    parts = parts_of(request)
    await parts.projection.caught_up()
    return user_answer(parts.users.seen(caller_of(request), user))


@post("/api/v1/users", summary="Create a user", action="user.write", responses=problems(409, 413))
async def post_user(request: Ask, data: NewUserBody) -> Json:
    """Callers cannot grant privileges beyond their own. Without a password the user can authenticate by API keys only."""
    return user_answer(await parts_of(request).users.create(caller_of(request), data.id, values_of(UserValues, data)))


@patch("/api/v1/users/{user:str}", summary="Change or disable a user", action="user.write", responses=problems(404, 409, 413))
async def patch_user(request: Ask, user: UserId, data: UserBody, if_match: Revision = None) -> Json:
    """A new password ends the user's sessions. 409 also if this would lock out the last admin of the cluster."""
    values = values_of(UserValues, data)
    return user_answer(await parts_of(request).users.change(caller_of(request), user, values, revision=revision_of(if_match)))


@post(
    "/api/v1/users/{user:str}/erase",
    status_code=200,
    summary="Disable a user and destroy the key of the user's personal fields",
    action="user.write",
    responses=problems(404, 409),
)
async def erase_user(request: Ask, user: UserId) -> Json:
    """Name and identity can never be read again, anywhere in the log. It cannot be undone."""
    return user_answer(await parts_of(request).users.erase(caller_of(request), user))


@delete(
    "/api/v1/users/{user:str}/totp",
    status_code=200,
    summary="Remove a user's second factor",
    action="user.write",
    responses=problems(404, 409),
)
async def delete_totp(request: Ask, user: UserId) -> Json:
    """For a user whose app and recovery codes are lost. The user's sessions end; the password alone is enough until the next enrolment."""
    parts = parts_of(request)
    await parts.second_factor.remove(caller_of(request), user)
    return user_answer(parts.projection.fold(AccessView).users[user])


@get("/api/v1/keys", summary="List the caller's keys; for admins also those of others", action="key.read", responses=problems())
async def keys(request: Ask, tenant: str | None = None, user: str | None = None, limit: Limit = 10_000, offset: Offset = 0) -> Json:
    view = await parts_of(request).fresh_access()
    found = visible_keys(view, caller_of(request), tenant=tenant, user=user)
    return page(found, limit, offset, lambda key: key_answer(view, key, time.time_ns()))


@get("/api/v1/keys/{key:str}", summary="Get a key, without its secret", action="key.read", responses=problems(404))
async def key(request: Ask, key: KeyId) -> Json:
    parts = parts_of(request)
    return key_answer(await parts.fresh_access(), parts.keys.seen(caller_of(request), key), time.time_ns())


@post("/api/v1/keys", summary="Create a key; only this answer contains its secret", action="key.write", responses=problems(409, 413))
async def post_key(request: Ask, data: KeyBody) -> Json:
    """For the caller, within the caller's own permissions; admins may also create keys for other users, nodes and services."""
    parts = parts_of(request)
    made, text = await parts.keys.issue(caller_of(request), values_of(KeyValues, data))
    return {**key_answer(parts.projection.fold(AccessView), made, time.time_ns()), "key": text.text}


@delete("/api/v1/keys/{key:str}", status_code=200, summary="Revoke a key immediately", action="key.write", responses=problems(404, 409))
async def delete_key(request: Ask, key: KeyId) -> Json:
    """REST refuses it from now on, and its connections to the bus end. 409 if no other credential of a cluster admin is left."""
    parts = parts_of(request)
    revoked = await parts.keys.revoke(caller_of(request), key)
    return key_answer(parts.projection.fold(AccessView), revoked, time.time_ns())


@post("/api/v1/tokens", status_code=200, summary="Issue a short-lived token of the caller's key", action="anyone",
      responses=problems(409, 413))  # fmt: skip
async def post_token(request: Ask, data: TokenBody) -> Json:
    """REST takes it as ``Authorization: Bearer``, and the bus as password beside the key's id as user, until it expires, the key is
    revoked or expires, or its user or tenant is disabled. It has the rights of the key, or those of them that ``scopes`` allow (403: the
    key does not have them), but creates no tokens, keys, users and tenants. 409 unless the caller sends a key."""
    who = caller_of(request).identity
    if proof_of(request).kind != "key":
        raise OutOfState("tokens are issued for API keys: send one as `Authorization: Bearer <key>`")
    access = access_of(request)
    token = access.access_token(who, data.expires_in_s, tuple(sorted(set(data.scopes))))
    await _note(request, who, "token.issue", token, f"key {who.key}" + (f", only {', '.join(token.scopes)}" if token.scopes else ""))
    expires = rfc3339(token.expires_s * 10**9)
    return {"token": access.write(token), "id": token.id, "key": who.key, "scopes": list(token.scopes or who.scopes), "expires_at": expires}


@get("/api/v1/audit", summary="List audit records, newest first", action="audit.read", responses=problems())
async def audit(
    request: Ask,
    *,
    actor: str | None = None,
    action: str | None = None,
    target: str | None = None,
    tenant: str | None = None,
    after: Moment = None,
    before: Moment = None,
    limit: Limit = 100,
    offset: Offset = 0,
) -> Json:
    """Those of the caller's tenant, or of the whole cluster; the last hundred thousand are kept, and twenty thousand of refusals."""
    if action is not None and action not in AUDITED:
        raise Invalid("action", f"there is no action {action}; there are: {', '.join(sorted(AUDITED))}")
    from_ns, to_ns = _ns("after", after), _ns("before", before)
    view = await parts_of(request).fresh_access()
    found = [
        done
        for done in visible_actions(view, caller_of(request), actor=actor or "", action=action or "")
        if (target is None or done.fact.target == target)
        and (tenant is None or done.fact.tenant == tenant)
        and (from_ns is None or done.fact.at_ns >= from_ns)
        and (to_ns is None or done.fact.at_ns < to_ns)
    ]
    return page(found, limit, offset, action_answer)


Position = Annotated[int, Parameter(ge=0, le=1 << 53, description="only records behind this position of the log")]
Digest = Annotated[str, Parameter(pattern="^([0-9a-f]{64})?$", description="the last digest of the export that this one continues")]
_CHUNK: Final = 256


@get(
    "/api/v1/audit/export",
    summary="Export audit records as signed JSON lines, oldest first",
    action="audit.read",
    media_type="application/x-ndjson",
    responses=problems(409),
)
async def audit_export(request: Ask, position: Position = 0, previous: Digest = "", limit: Limit = 10_000) -> Stream:
    """Those of the caller's tenant, or of the whole cluster. ``wooly audit verify`` checks the digests and the signature. The next export
    continues with the last record's position and the last digest. 409 when the controller has no WOOLY_AUDIT_KEY."""
    parts, caller = parts_of(request), caller_of(request)
    key = parts.audit_key
    if key is None:
        raise OutOfState("exports are signed, and this controller has no key: set WOOLY_AUDIT_KEY")
    found, complete = exported_actions(await parts.fresh_access(), caller, position, limit)
    about = {"version": 1, "after": position, "previous": previous, "complete": complete, "at": rfc3339(time.time_ns())}
    about |= {"by": caller.identity.name, "tenant": caller.identity.tenant or None}

    async def written() -> AsyncIterator[bytes]:
        digest = previous
        for begin in range(0, len(found) + 1, _CHUNK):
            answers = [action_answer(done) for done in found[begin : begin + _CHUNK]]
            lines = [msgspec.json.encode(answer) for answer in ([{"export": about}] if not begin else []) + answers]
            chunk = list(chained(lines, digest))
            digest = chunk[-1][1] if chunk else digest
            yield b"".join(line for line, _ in chunk)
        yield signature_line(digest, key.sign)

    return Stream(written(), media_type="application/x-ndjson")


def _ns(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            raise ValueError("no zone")
        return int(moment.timestamp() * 1_000) * 1_000_000
    except (ValueError, OverflowError) as error:
        raise Invalid(name, f"{text!r} is no time with a zone, such as 2030-01-31T12:00:00Z") from error


TENANTS: Final = [tenants, tenant, post_tenant, patch_tenant, erase_tenant, quotas]
USERS: Final = [users, user, post_user, patch_user, erase_user, delete_totp]
KEYS: Final = [keys, key, post_key, delete_key, post_token]
AUDIT: Final = [audit, audit_export]


_BEGIN: Final = "session.begin"


@get("/api/v1/session", summary="Get the caller's identity and permissions", action="anyone", responses=problems())
async def session(request: Ask) -> Json:
    """``csrf_token``: the value that changes with this session must send in the header X-CSRF-Token; null for API keys."""
    return identity_answer(caller_of(request).identity, csrf_token=proof_of(request).csrf or None)


@post("/api/v1/session", status_code=200, summary="Log in with a password, an API key or a device code; sets a cookie", action=None,
      responses=problems(409, 413))  # fmt: skip
async def post_session(request: Ask, data: LoginBody) -> Response[Json]:
    check_same_site(request.scope)
    who, token = await _log_in(request, data)
    if token is None:
        return Response(identity_answer(who, csrf_token=None))
    access = access_of(request)
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
    await parts_of(request).users.change_own_password(caller_of(request), data.old_password, data.new_password)
    return Response({"changed": True}, headers=await renewed_session(request))


@put("/api/v1/session/totp", summary="Enrol a second factor of the caller", action="anyone", responses=problems(409, 413))
async def put_totp(request: Ask, data: TotpBody) -> Response[Json]:
    """Logins with the password need a code from now on (TOTP, RFC 6238). Only this answer contains the recovery codes, each good for one
    login. All other sessions of the user end; this one gets a new cookie."""
    caller = caller_of(request)
    codes = await parts_of(request).second_factor.enrol(caller, data.password, data.secret, data.code)
    return Response({"recovery_codes": codes}, headers=await renewed_session(request))


@post(
    "/api/v1/session/totp/removal", status_code=200, summary="Remove the caller's second factor", action="anyone", responses=problems(409)
)
async def post_totp_removal(request: Ask, data: TotpRemovalBody) -> Response[Json]:
    """The password alone is enough from now on. All other sessions of the user end; this one gets a new cookie."""
    await parts_of(request).second_factor.remove_own(caller_of(request), data.password, data.code)
    return Response({"removed": True}, headers=await renewed_session(request))


@post("/login", status_code=303, summary="What the login page sends", action=None, include_in_schema=False)
async def post_login(request: Ask, data: Annotated[LoginForm, Body(media_type=RequestEncodingType.URL_ENCODED)]) -> Response[None]:
    check_same_site(request.scope)
    target = inside(data.next)
    try:
        _, token = await _log_in(request, LoginBody(data.user, data.password, data.code, data.key))
    except CodeNeeded:
        return redirect_to(f"/login?{urlencode({'code': 1, 'next': target})}")
    except (Unauthenticated, Invalid):
        return redirect_to(f"/login?{urlencode({'failed': 1, 'next': target})}")
    except QuotaReached as error:
        return redirect_to(f"/login?{urlencode({'wait': error.wait_s, 'next': target})}")
    return redirect_to(target, "" if token is None else session_cookie_header(access_of(request), token, proof_of(request).secure))


@post("/logout", status_code=303, summary="What the button sends", action=None, csrf="form", include_in_schema=False)
async def post_logout(request: Ask, data: Annotated[LogoutForm, Body(media_type=RequestEncodingType.URL_ENCODED)]) -> Response[None]:
    if proof_of(request).token is not None:
        check_form_token(request, data.csrf)
        await _log_out(request)
    return redirect_to("/login", end_cookie(proof_of(request).secure))


async def _log_in(request: Ask, data: LoginBody) -> tuple[Identity, Token | None]:
    """The identity and its new session (None without authentication). Raises Invalid, Unauthenticated, QuotaReached, Unsure; with a device
    code also LoginPending, ProviderUnavailable."""
    access = access_of(request)
    if not access.on:
        return local_identity(), None
    source = proof_of(request).source
    if [bool(data.key), bool(data.user), bool(data.device_code)].count(True) != 1:
        raise Invalid("key" if data.key else "user", "give either a user with a password, or a key, or a device code")
    if data.device_code:
        confirmed = await _confirmed(request, data.device_code)
        return confirmed, await begin_session(request, confirmed, "oidc")
    if data.user:
        who = await parts_of(request).second_factor.log_in(data.user.strip(), data.password, data.code.strip(), source)
        return who, await begin_session(request, who)
    keyed = await access.identity_of_text(data.key.strip(), source)
    if keyed is None:
        raise Unauthenticated("the key is not valid")
    return keyed, await begin_session(request, keyed)


async def renewed_session(request: Ask) -> dict[str, str]:
    """The headers that give a browser a new session in place of one that its user has just ended; none for other callers."""
    if proof_of(request).token is None:
        return {}
    token = await begin_session(request, caller_of(request).identity)
    return {"set-cookie": session_cookie_header(access_of(request), token, proof_of(request).secure)}


async def begin_session(request: Ask, who: Identity, proved_by: str = "") -> Token:
    """A new session, recorded in the log. Its id is new, never one that the browser sent. ``proved_by``: how, for the audit record."""
    token = access_of(request).begin_session(who)
    await _note(request, who, _BEGIN, token, proved_by)
    return token


async def _confirmed(request: Ask, device_code: str) -> Identity:
    """The user that has confirmed the login of a device."""
    source = proof_of(request).source
    with access_of(request).checker.attempt("oidc", source):
        person = await provider_of(request).redeem_device(device_code, source)
        if isinstance(person, Person):
            return await oidc_identity(request, person)
    raise person


def provider_of(request: Ask) -> OidcProvider:
    """Raises NotThere."""
    found = parts_of(request).oidc
    if found is None:
        raise NotThere("no identity provider is configured (WOOLY_OIDC_ISSUER)")
    return found


async def oidc_identity(request: Ask, person: Person) -> Identity:
    """The user that the provider's person is. Raises LoginRefused."""
    who = await parts_of(request).users.holder(person.subject, person.name, proof_of(request).source)
    if who is None:
        get_logger().warning("an identity belongs to no user", subject=person.subject, name=person.name)
        raise LoginRefused("this identity belongs to no user; an administrator names it at the user", "unknown")
    return who


async def _log_out(request: Ask) -> None:
    token = proof_of(request).token
    if token is not None:
        await _note(request, caller_of(request).identity, SESSION_END, token)


async def _note(request: Ask, who: Identity, action: str, token: Token, proved_by: str = "") -> None:
    source = proof_of(request).source
    detail = proved_by or (f"key {who.key}" if who.key else "password")
    done = ActionTaken(time.time_ns(), who.name, who.tenant, action, token.id, detail, source)
    await parts_of(request).access_log.note(Caller(who, source), done)


def inside(target: str) -> str:
    """``target`` if it is a path of this site, else the start page: prevents open redirects."""
    plain = target.isprintable() and target.isascii() and "\\" not in target
    return target if plain and target.startswith("/") and not target.startswith("//") else "/"


def redirect_to(address: str, cookie: str = "") -> Response[None]:
    headers = {"location": address, "cache-control": "no-store"}
    if cookie:
        headers["set-cookie"] = cookie
    return Response(None, status_code=303, headers=headers)


def access_of(request: Ask) -> Access:
    found: Access = request.app.state.access
    return found


LOGIN: Final = [session, post_session, delete_session, post_password, put_totp, post_totp_removal, post_login, post_logout]
