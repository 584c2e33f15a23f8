"""What the pages of /settings share: their tabs, errors of forms, decimal credits."""

from __future__ import annotations

import re
from decimal import Context, Decimal, Inexact, InvalidOperation, Overflow
from typing import Any, Final

from litestar import Response

from services.controller.errors import Invalid, OutOfState, TaskExists
from services.controller.parts import Ask
from services.controller.web.scope import Scope
from services.controller.web.templating import page, scope_of
from services.kit.access import Action

__all__ = ["FORM_ERRORS", "micro_of", "settings_page", "form_error"]

FORM_ERRORS: Final = (Invalid, OutOfState, TaskExists)
"""What a form can get wrong: shown beside the form, with what was typed still in it."""

_EXACT: Final = Context(traps=[InvalidOperation, Overflow, Inexact])
"""Arithmetic that rounds nothing."""
_THOUSANDS: Final = re.compile(r"[+-]?[0-9]{1,3}(,[0-9]{3})+(\.[0-9]*)?")

_TABS: Final[tuple[tuple[str, str, Action], ...]] = (
    ("/settings", "Cluster", "config.read"),
    ("/settings/tiers", "Tiers and prices", "credits.read"),
    ("/settings/keys", "API keys", "key.read"),
    ("/settings/users", "Users", "user.read"),
    ("/settings/tenants", "Tenants", "tenant.read"),
    ("/settings/audit", "Audit", "audit.read"),
)


def settings_page(request: Ask, template: str, *, status: int = 200, **context: Any) -> Response[str]:
    return page(request, template, status=status, tabs=_tabs(scope_of(request)), **context)


def _tabs(scope: Scope) -> list[tuple[str, str]]:
    return [(path, label) for path, label, action in _TABS if scope.may(action)]


def form_error(error: Exception) -> tuple[str, str]:
    """(field or empty, sentence) of one of FORM_ERRORS."""
    field = str(getattr(error, "field", "") or "")
    text = str(error)
    return field, text[:1].upper() + text[1:]


def micro_of(field: str, text: str) -> int:
    """Decimal credits as micro-credits, exact. Commas part thousands and are nothing else: 0,25 is no number. Raises Invalid."""
    if "," in text and _THOUSANDS.fullmatch(text.strip()) is None:
        raise Invalid(field, "write credits with a point, for example 0.25; commas part thousands, as in 1,500")
    try:
        micro = _EXACT.multiply(Decimal(text.replace(",", "")), Decimal(1_000_000))
    except InvalidOperation:
        raise Invalid(field, "write a number of credits, for example 1500 or 0.25") from None
    except Inexact:
        micro = Decimal("NaN")
    if not micro.is_finite() or micro != micro.to_integral_value() or abs(micro) > 10**18:
        raise Invalid(field, "write credits with at most six digits after the point")
    return int(micro)
