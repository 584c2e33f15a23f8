"""Problem documents of the controller, beside those that all services have (services.kit.problems)."""

from __future__ import annotations

from typing import Any, Final

from litestar import Request, Response

from bus_schemas.events import TaskRefused
from scheduler.placement import ClusterView
from services.controller.presenters import Shown
from services.controller.presenters.tasks import refusal_sentence, refusals_answer
from services.controller.store import StoreUnavailable
from services.kit import problems
from services.kit.problems import Handlers, invalid, problem

__all__ = ["HANDLERS", "field_problem", "no_fit", "problem"]


def field_problem(field: str, reason: str) -> Response[dict[str, Any]]:
    """400: a field that is well-formed and cannot be granted."""
    return invalid("body", [(field, reason)])


def no_fit(view: ClusterView, decision: TaskRefused, shown: Shown) -> Response[dict[str, Any]]:
    """409: a task that no device can serve. ``shown``: whether the caller may know of a tenant's tasks."""
    members = {"task": decision.task, "refusals": refusals_answer(decision.refusals, shown)}
    return problem(409, "no-placement", "No device fits", refusal_sentence(view, decision, shown), members=members)


def _unavailable(_: Request[Any, Any, Any], error: StoreUnavailable) -> Response[dict[str, Any]]:
    return problem(503, "unavailable", "Not available now", str(error))


HANDLERS: Final[Handlers] = {**problems.HANDLERS, StoreUnavailable: _unavailable}
