"""One message carried over a redirect, in a cookie that the next page reads and drops: "n1 takes no new tasks".

May live here: that. May not: secrets: messages can be read by every user of the browser.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any, Final, Literal

import msgspec
from litestar import Request
from litestar.datastructures import Cookie
from litestar.response import Redirect

__all__ = ["COOKIE", "Kind", "forget_cookie", "read_flash", "redirect"]

COOKIE: Final = "wooly_flash"
Kind = Literal["ok", "warn", "bad"]
_KEPT_S: Final = 30
_LONGEST: Final = 2_000


class _Flash(msgspec.Struct, array_like=True):
    kind: Kind
    text: str


def redirect(to: str, text: str = "", kind: Kind = "ok") -> Redirect:
    """303 to one of our own pages, with a message to show there. ``to`` must be a path: what a form says is not trusted."""
    inside = to.startswith("/") and not to.startswith("//") and "\\" not in to and to.isascii() and to.isprintable()
    path = to if inside else "/"
    answer = Redirect(path, status_code=303)
    if text:
        value = urlsafe_b64encode(msgspec.json.encode(_Flash(kind, text[:_LONGEST]))).decode()
        answer.set_cookie(Cookie(COOKIE, value=value, path="/", max_age=_KEPT_S, httponly=True, samesite="lax"))
    return answer


def read_flash(request: Request[Any, Any, Any]) -> tuple[Kind, str] | None:
    """The message that came with the request, None when there is none or it is not one of ours."""
    value = request.cookies.get(COOKIE, "")
    if not value:
        return None
    try:
        found = msgspec.json.decode(urlsafe_b64decode(value), type=_Flash)
    except (ValueError, msgspec.MsgspecError):
        return None
    return found.kind, found.text


def forget_cookie() -> Cookie:
    return Cookie(COOKIE, value="", path="/", max_age=0, httponly=True, samesite="lax")
