"""Login through an OpenID Connect provider: for pages the redirect to it and the way back, for the command line the device flow."""

from __future__ import annotations

import hmac
import time
from typing import Final
from urllib.parse import urlencode

from litestar import Response, get, post

from services.controller.oidc import LoginRefused, ProviderUnavailable
from services.controller.parts import Ask
from services.controller.presenters import Json
from services.controller.routes import problems
from services.controller.routes.access import access_of, begin_session, inside, oidc_identity, provider_of, redirect_to
from services.kit.access.errors import Unauthenticated
from services.kit.access.headers import FLOW, read_cookie
from services.kit.access.tokens import make_login_flow
from services.kit.access.web import login_flow_cookie, proof_of, session_cookie_header
from services.kit.errors import QuotaReached

__all__ = ["OIDC"]

_TARGET_CHARS_MAX: Final = 2_000


@post("/api/v1/session/oidc", status_code=200, summary="Begin a login at the identity provider, to be confirmed in a browser", action=None,
      responses=problems(404))  # fmt: skip
async def begin_device(request: Ask) -> Json:
    """A person enters ``user_code`` at ``verification_uri``. ``POST /api/v1/session`` with ``device_code`` logs in once that is done; ask
    it every ``interval_s``. 404 when there is no provider, or none with this flow."""
    found = await provider_of(request).begin_device(proof_of(request).source)
    return {
        "device_code": found.device_code,
        "user_code": found.user_code,
        "verification_uri": found.verification_uri,
        "verification_uri_complete": found.verification_uri_complete,
        "interval_s": found.interval,
        "expires_in_s": found.expires_in,
    }


@get("/login/oidc", action=None, include_in_schema=False)
async def begin(request: Ask) -> Response[None]:
    """``next``: the page to go to after the login."""
    access, provider = access_of(request), provider_of(request)
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
    access, provider, proof = access_of(request), provider_of(request), proof_of(request)
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


OIDC: Final = [begin_device, begin, finish]
