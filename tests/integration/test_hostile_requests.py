"""Bodies, forms, queries and cookies that no description names, on a real controller: a described refusal, never an internal error."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.support.plane import Plane

MANY: Final = 100 if settings.get_current_profile_name() == "fuzz" else 1
"""Times as many examples in ``make fuzz``."""
JSON, FORM = "application/json", "application/x-www-form-urlencoded"
ROUTES: Final = [
    ("POST", "/api/v1/tasks", JSON), ("POST", "/api/v1/placements/query", JSON), ("POST", "/api/v1/runs", JSON),
    ("PATCH", "/api/v1/tasks/t", JSON), ("PUT", "/api/v1/config", JSON), ("PUT", "/api/v1/nodes/n1/config", JSON),
    ("POST", "/api/v1/groups", JSON), ("PUT", "/api/v1/groups/g", JSON), ("POST", "/api/v1/tenants", JSON), ("POST", "/api/v1/users", JSON),
    ("POST", "/api/v1/keys", JSON), ("POST", "/api/v1/session", JSON), ("POST", "/api/v1/billing/grants", JSON),
    ("POST", "/login", FORM), ("POST", "/submit", FORM), ("POST", "/settings/groups", FORM), ("GET", "/tasks", FORM),
    ("GET", "/nodes", FORM), ("GET", "/api/v1/tasks", JSON), ("GET", "/api/v1/audit", JSON),
]  # fmt: skip
NAMES: Final = [
    "id",
    "title",
    "tenant",
    "required_vram_mb",
    "groups",
    "priority",
    "script",
    "key",
    "user",
    "password",
    "limit",
    "offset",
    "next",
]
ANSWER_BYTES_MAX: Final = 256 << 10

name = st.sampled_from(NAMES) | st.text(max_size=6)
leaf = st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats() | st.text(max_size=20)
value = st.recursive(leaf, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(name, inner, max_size=3), max_leaves=8)
documents = st.dictionaries(name, value, max_size=6).map(lambda found: json.dumps(found).encode("utf-8", "surrogatepass"))
bodies = st.one_of(
    documents,
    documents.map(lambda data: data[:-2]),
    st.tuples(documents, st.binary(max_size=8)).map(b"".join),
    st.lists(st.tuples(name, st.text(max_size=12))).map(lambda found: "&".join(f"{key}={text}" for key, text in found).encode()),
    st.binary(max_size=60),
)
query = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="#"), max_size=30)
header = st.text(st.characters(min_codepoint=32, max_codepoint=255, exclude_characters="\x7f"), max_size=40)


@pytest.fixture(scope="module")
def plane() -> Iterator[Plane]:
    with Plane() as plane:
        plane.register("n1")
        yield plane


@settings(max_examples=60 * MANY, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(ROUTES), bodies, query, header)
@example(("POST", "/api/v1/tasks", JSON), b'{"x":' + b"[" * 50_000, "", "")
@example(("POST", "/api/v1/tasks", JSON), b'{"id": "\xff"}', "", "")
@example(("POST", "/api/v1/tasks", JSON), b'{"required_vram_mb": 1e999}', "", "")
@example(("GET", "/tasks", FORM), b"", "", "wooly_flash=" + "W1tb" * 900)
def test_a_request_is_answered_or_refused(plane: Plane, route: tuple[str, str, str], body: bytes, query: str, cookie: str) -> None:
    method, path, kind = route
    where = urlsplit(plane.controller.url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=60)
    try:
        headers = {"Content-Type": kind, "Cookie": cookie, "If-Match": cookie, "Origin": plane.controller.url}
        connection.request(method, f"{path}?{query}", body if method != "GET" else None, headers)
        answer = connection.getresponse()
        data = answer.read(ANSWER_BYTES_MAX + 1)
    finally:
        connection.close()
    assert answer.status < 500 or (path.startswith("/api/v1/billing") and answer.status == 503), (answer.status, data[:300])
    assert len(data) <= ANSWER_BYTES_MAX
    if answer.status >= 400 and path.startswith("/api/"):
        assert json.loads(data)["status"] == answer.status
