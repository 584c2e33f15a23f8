"""Client of billing's REST API on behalf of the caller: a relay token names the caller, so billing applies their rights.

answer = await client.get("credits", request, by="tenant")      # Unreachable, Refused
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Self

import httpx
from litestar.connection import ASGIConnection

from services.controller.errors import Denied, NotThere
from services.kit.access.web import relay_authorization
from services.kit.streams import ELECTION_S

_PAGE_TIMEOUT_S: Final = 5.0
"""A page shows what it has without billing's figures."""
_TIMEOUT: Final = httpx.Timeout(5.0, read=2 * ELECTION_S + 5.0)
"""Other requests: billing itself waits for the bus, and then for what it wrote, so a shorter wait here would call it unavailable, and a
change that it is making failed."""
_VERIFY: Final = "/api/v1/billing/verify"
_VERIFY_TIMEOUT: Final = httpx.Timeout(5.0, read=600.0)
"""It reads the whole log."""
_MEDIA: Final = "application/json"


class Unreachable(Exception):
    """Billing does not answer, or its URL is not configured. The message is for people."""


class Refused(Exception):
    """Billing refused the request. ``status``: HTTP status; ``field``: the request's wrong field, or empty."""

    def __init__(self, status: int, detail: str, field: str = "") -> None:
        super().__init__(detail)
        self.status = status
        self.field = field


class BillingClient:
    """``async with BillingClient(url)``; url empty: not configured, and every request raises Unreachable."""

    def __init__(self, url: str, *, verify: Any = True) -> None:
        self.url = url.rstrip("/")
        self._verify = verify

    async def __aenter__(self) -> Self:
        self._http = httpx.AsyncClient(base_url=self.url, timeout=_TIMEOUT, verify=self._verify, follow_redirects=False)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        await self._http.aclose()

    async def get(self, path: str, asking: ASGIConnection[Any, Any, Any, Any], **query: str) -> Any:
        """The JSON at ``/api/v1/billing/<path>``. Raises Unreachable, Refused."""
        kept = {name: value for name, value in query.items() if value}
        return (await self._ask("GET", path, asking, params=kept, timeout=_PAGE_TIMEOUT_S)).json()

    async def download(self, path: str, asking: ASGIConnection[Any, Any, Any, Any], accept: str, **query: str) -> httpx.Response:
        """The same in another form (text/csv, text/html)."""
        return await self._ask("GET", path, asking, params={name: value for name, value in query.items() if value}, accept=accept)

    async def send(
        self, method: str, path: str, asking: ASGIConnection[Any, Any, Any, Any], body: Mapping[str, Any], revision: int | None = None
    ) -> Any:
        """PUT or POST a JSON body; ``revision``: the one that the change was made on. Raises Unreachable, Refused (409: stale), and Denied
        or NotThere: what may not be done is no slip of a form."""
        more = {} if revision is None else {"if-match": f'"{revision}"'}
        try:
            answer = await self._ask(method, path, asking, json=dict(body), headers=more)
        except Refused as error:
            if error.status in (403, 404):
                raise (Denied if error.status == 403 else NotThere)(str(error)) from error
            raise
        return answer.json() if answer.content else None

    async def _ask(
        self,
        method: str,
        path: str,
        asking: ASGIConnection[Any, Any, Any, Any],
        *,
        headers: Mapping[str, str] | None = None,
        accept: str = _MEDIA,
        **more: Any,
    ) -> httpx.Response:
        relayed = relay_authorization(asking)
        carried = {"accept": accept, **({"authorization": relayed} if relayed else {}), **(headers or {})}
        answer = await self.send_raw(method, f"/api/v1/billing/{path}", headers=carried, **more)
        if answer.status_code >= 400:
            raise _refused(answer)
        return answer

    async def send_raw(self, method: str, path: str, **more: Any) -> httpx.Response:
        """One request as given, nothing added; the answer whatever its status. Raises Unreachable."""
        if not self.url:
            raise Unreachable("This controller does not know where billing is: start it with WOOLY_BILLING_URL set.")
        if path == _VERIFY:
            more["timeout"] = _VERIFY_TIMEOUT
        try:
            return await self._http.request(method, path, **more)
        except httpx.HTTPError as error:
            raise Unreachable(
                f"Billing does not answer ({type(error).__name__}). Figures come back with it: they are in the log."
            ) from error


def _refused(answer: httpx.Response) -> Refused | Unreachable:
    if answer.status_code >= 500:
        return Unreachable(f"Billing cannot answer now (HTTP {answer.status_code}).")
    try:
        body = answer.json()
        errors = body.get("errors") or [{}]
        return Refused(answer.status_code, str(body.get("detail", "refused")), str(errors[0].get("field", "")))
    except (ValueError, AttributeError, LookupError, TypeError):
        return Refused(answer.status_code, f"HTTP {answer.status_code}")
