"""Login of the pages through an OpenID Connect provider: the redirect to it, and the way back."""

from __future__ import annotations

import hmac
import time
from typing import Final
from urllib.parse import urlencode

from litestar import Response, get

from services.controller.errors import NotThere
from services.controller.oidc import LoginRefused, OidcProvider, ProviderUnavailable
from services.controller.parts import Ask, parts_of
from services.controller.routes.access import access_of, begin_session, inside, oidc_identity, redirect_to
from services.kit.access.errors import Unauthenticated
from services.kit.access.headers import FLOW, read_cookie
from services.kit.access.tokens import make_login_flow
from services.kit.access.web import login_flow_cookie, proof_of, session_cookie_header
from services.kit.quotas import QuotaReached

__all__ = ["OIDC"]

_TARGET_CHARS_MAX: Final = 2_000


@get("/login/oidc", action=None, include_in_schema=False)
async def begin(request: Ask) -> Response[None]:
    """``next``: the page to go to after the login."""
    access, provider = access_of(request), _provider(request)
    target = inside(request.query_params.get("next", "/")[:_TARGET_CHARS_MAX])
    if not access.on:
        return redirect_to(target)
    flow = make_login_flow(target, int(time.time()))
    try:
        answer = redirect_to(await provider.login_url(flow, _redirect_uri(request)))
    except ProviderUnavailable:
        return _failed(request, "unavailable", target)
    answer.set_cookie(login_flow_cookie(access, flow, proof_of(request).secure))
    return answer


@get("/login/oidc/callback", action=None, include_in_schema=False)
async def finish(request: Ask) -> Response[None]:
    """The provider sends the browser here, with a code or an error, and with the state that this browser began with."""
    access, provider, proof = access_of(request), _provider(request), proof_of(request)
    flow = access.read_login_flow(read_cookie(request.scope, FLOW, proof.secure)) if access.on else None
    if flow is None or not hmac.compare_digest(flow.state.encode(), request.query_params.get("state", "").encode()):
        return _failed(request, "expired", "/")
    try:
        with access.checker.attempt("oidc", proof.source):
            person = await provider.redeem(request.query_params, flow, _redirect_uri(request))
            who = await oidc_identity(request, person)
        token = await begin_session(request, who, "oidc")
    except ProviderUnavailable:
        return _failed(request, "unavailable", flow.target)
    except QuotaReached as error:
        return _failed(request, "", flow.target, wait_s=error.wait_s)
    except Unauthenticated as error:
        return _failed(request, error.reason if isinstance(error, LoginRefused) else "refused", flow.target)
    return _forgetting(request, redirect_to(flow.target, session_cookie_header(access, token, proof.secure)))


def _failed(request: Ask, reason: str, target: str, *, wait_s: int = 0) -> Response[None]:
    """Back to the login page, which names the reason and offers the other ways."""
    query = {"wait": wait_s} if wait_s else {"oidc": reason}
    return _forgetting(request, redirect_to(f"/login?{urlencode({**query, 'next': target})}"))


def _forgetting(request: Ask, answer: Response[None]) -> Response[None]:
    """With the end of the login's cookie: a state is used once."""
    answer.set_cookie(login_flow_cookie(access_of(request), None, proof_of(request).secure))
    return answer


def _redirect_uri(request: Ask) -> str:
    """Of this controller as the browser names it. The provider redirects only to registered addresses."""
    return f"{'https' if proof_of(request).secure else 'http'}://{request.headers.get('host', '')}/login/oidc/callback"


def _provider(request: Ask) -> OidcProvider:
    found = parts_of(request).oidc
    if found is None:
        raise NotThere("no identity provider is configured (WOOLY_OIDC_ISSUER)")
    return found


OIDC: Final = [begin, finish]
