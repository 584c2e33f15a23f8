"""Posted forms, checked by the same structs as the bodies of REST, and one message carried over the redirect after them in a cookie.

    values = await form_values(request, lists=("groups",), flags=("queue",))     # the route declares csrf="form"
    body, errors = read_as(TaskBody, values)        # errors: {"priority": "At most 4."}

Messages hold no secrets: every user of the browser can read the cookie.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Collection
from typing import Any, Final, Literal, TypeVar

import msgspec
from litestar import Request
from litestar.datastructures import Cookie
from litestar.response import Redirect

from services.controller.errors import Invalid
from services.kit.access.web import CSRF_FIELD, check_form_token

T = TypeVar("T")
Values = dict[str, Any]
"""Field -> text, or a list of texts where the form may give several."""

_PATH: Final = re.compile(r" - at `\$\.?([A-Za-z_0-9]*).*`$")
_NAMED: Final = re.compile(r"field `([A-Za-z_0-9]+)`")
_SAID: Final = tuple(
    (re.compile(pattern), text)
    for pattern, text in (
        (r"missing required", "This is needed."),
        (r"matching regex", "Use letters, digits, - and _, at most 64."),
        (r"of length <= (\d+)", "At most {} characters or entries."),
        (r"of length >= (\d+)", "At least {} characters or entries."),
        (r"Expected `int` >= (\d+)", "At least {}."),
        (r"Expected `int` <= (\d+)", "At most {}."),
        (r"Expected `int", "Write a whole number."),
        (r"Invalid enum value|Expected `bool", "Choose one of what is offered."),
    )
)
"""msgspec's messages about bad values, and those of forms."""
_FIELDS_MAX: Final = 5_000
COOKIE: Final = "wooly_flash"
Kind = Literal["ok", "warn", "bad"]
_KEPT_S: Final = 30
_LONGEST: Final = 2_000


async def form_values(request: Request[Any, Any, Any], *, lists: Collection[str] = (), flags: Collection[str] = ()) -> Values:
    """The fields that were filled in. ``lists``: names that may come several times; ``flags``: check boxes (there or not).
    For routes with ``csrf="form"``: raises CrossSite without the session's token; Invalid for what no form of ours sends."""
    form = await request.form()
    check_form_token(request, str(form.get(CSRF_FIELD, "")))
    values: Values = {}
    for number, (name, value) in enumerate(form.multi_items()):
        if number >= _FIELDS_MAX or not isinstance(value, str):
            raise Invalid(name, "is not what this form sends")
        if name == CSRF_FIELD:
            continue
        if name in lists:
            values.setdefault(name, []).append(value)
        elif value.strip() or name in flags:
            values[name] = value.strip()
    for name in flags:
        values[name] = name in values
    return values


def read_as(kind: type[T], values: Values) -> tuple[T | None, dict[str, str]]:
    """The struct, or what is wrong with it by field (the first fault found; a struct is read once)."""
    try:
        return msgspec.convert(values, kind, strict=False), {}
    except msgspec.ValidationError as error:
        text = str(error)
        at = _PATH.search(text)
        message = _PATH.sub("", text)
        named = _NAMED.search(message)
        field = at.group(1) if at and at.group(1) else named.group(1) if named else ""
        return None, {field: _form_message(message)}


def _form_message(message: str) -> str:
    """The form's message for one of msgspec's."""
    for pattern, text in _SAID:
        found = pattern.search(message)
        if found:
            return text.format(*found.groups())
    return message


def revision_in(values: Values) -> int | None:
    """The revision that a form was made on, None when it names none. Raises Invalid."""
    text = values.pop("revision", "")
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise Invalid("revision", "is not a revision")
    return int(text)


class _Flash(msgspec.Struct, array_like=True):
    kind: Kind
    text: str


def redirect(to: str, text: str = "", kind: Kind = "ok") -> Redirect:
    """303 to a page of this site, with a message to show there. ``to`` must be a path: values of forms are not trusted."""
    inside = to.startswith("/") and not to.startswith("//") and "\\" not in to and to.isascii() and to.isprintable()
    path = to if inside else "/"
    answer = Redirect(path, status_code=303)
    if text:
        value = urlsafe_b64encode(msgspec.json.encode(_Flash(kind, text[:_LONGEST]))).decode()
        answer.set_cookie(Cookie(COOKIE, value=value, path="/", max_age=_KEPT_S, httponly=True, samesite="lax"))
    return answer


def read_flash(request: Request[Any, Any, Any]) -> tuple[Kind, str] | None:
    """The message that came with the request, None when there is none, or an invalid one."""
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
