"""HTTP of the operator: admission of pods, health, and keys for pods (``services.operator.keys``). Admission is answered from memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from litestar import Litestar, Request, Response, get, post

from services.kit.problems import problem
from services.operator.admission import KEY_PATH, Injection, answer
from services.operator.keys import Keys, NoKey

__all__ = ["make_app"]

Json = dict[str, Any]


def make_app(injection: Callable[[], Injection | None], leading: Callable[[], bool], keys: Keys) -> Litestar:
    """``injection()``: what pods are given; None while that is not known."""

    @post("/mutate", status_code=200)
    async def mutate(request: Request[Any, Any, Any]) -> Response[Any]:
        try:
            return Response(answer(await request.json(), injection()))
        except (KeyError, TypeError, AttributeError, ValueError):
            return problem(400, "invalid-body", "The body is not valid", "send an AdmissionReview of a pod (admission.k8s.io/v1)")

    @get("/health")
    async def health() -> Json:
        return {"leading": leading()}

    @post(KEY_PATH, status_code=200)
    async def key(request: Request[Any, Any, Any]) -> Response[Any]:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ").strip()
        try:
            return Response({"key": await keys.exchange(token)})
        except NoKey as error:
            return problem(error.status, error.kind, error.title, str(error))

    return Litestar([mutate, health, key], openapi_config=None, logging_config=None)
