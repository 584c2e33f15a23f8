"""A service held against its own OpenAPI description: schemathesis makes requests of every operation, valid and invalid, and each answer
must be one that the description knows.
"""

from __future__ import annotations

from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from schemathesis import GenerationMode
from schemathesis.checks import load_all_checks, not_a_server_error
from schemathesis.core.failures import Failure, FailureGroup
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance, status_code_conformance

__all__ = ["against_description"]

_CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


def against_description(url: str, *, examples: int, seed: int = 1, skip: tuple[str, ...] = ()) -> tuple[int, list[str]]:
    """``examples`` requests of each operation that the service at ``url`` describes, but those whose path holds one of ``skip``; how many
    answers were looked at, and what of them the description does not know (or was a 5xx)."""
    load_all_checks()
    schema = schemathesis.openapi.from_url(f"{url}/schema/openapi.json")
    schema.config.generation.with_security_parameters = False  # keys: test_access_matrix
    looked_at = 0
    findings: list[str] = []
    for result in schema.get_all_operations():
        assert isinstance(result, Ok), result
        operation = result.ok()
        if any(part in operation.path for part in skip):
            continue
        breakable = bool(operation.body or operation.query or operation.headers)
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE) if breakable else (GenerationMode.POSITIVE,):
            count = [0]
            problem = _one(operation, operation.as_strategy(generation_mode=mode), max(1, examples // 2), seed, count)
            looked_at += count[0]
            if problem:
                findings.append(f"{operation.method.upper()} {operation.path}: {problem}")
    return looked_at, findings


def _one(operation: Any, strategy: Any, examples: int, seed: int, count: list[int]) -> str:
    @seeded(seed)
    @settings(
        max_examples=examples, deadline=None, database=None, phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=strategy)
    def ask(case: Any) -> None:
        count[0] += 1
        case.call_and_validate(checks=_CHECKS, timeout=30)

    try:
        ask()
    except (FailureGroup, Failure) as failure:
        return "; ".join(str(one) for one in getattr(failure, "exceptions", (failure,)))
    return ""
