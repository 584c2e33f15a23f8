"""Dashboard, Nodes and what all pages share, on a real controller: response headers, forms, problems, charts after a restart."""

from __future__ import annotations

import gzip
import http.client
import re
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from urllib.parse import urlencode, urlsplit

import pytest

from bus_schemas.events import DeviceFact, NodeRegistered, TaskSubmitted
from tests.support.plane import GIB, Plane, wait_until

HOSTILE = "<img src=x onerror=alert(1)>\"'</script>"
HOSTILE_QUERY = "q=%3Cscript%3Ealert(1)%3C/script%3E&state=%22%3E%3Cb%3E&sort=%22"
PAGES = (
    "/",
    "/nodes",
    "/nodes/n1",
    "/nodes/hostile",
    f"/nodes?{HOSTILE_QUERY}",
    "/nope%3Cb%3E",
    "/schema/swagger",
    "/schema/swagger?service=billing",
)


@pytest.fixture(scope="module")
def plane() -> Iterator[Plane]:
    with Plane() as running:
        running.register("n1", gib=(10, 10))
        devices = (DeviceFact(0, HOSTILE, HOSTILE, 8, 10 * GIB),)
        running.publish("node", "hostile", NodeRegistered(time.time_ns(), "hostile", HOSTILE, HOSTILE, 1, devices, (HOSTILE,), HOSTILE))
        running.publish("task", "t1", TaskSubmitted(time.time_ns(), "t1", HOSTILE, 2, 99 * GIB, queue=True, title=HOSTILE))
        yield running


class Reply:
    def __init__(self, answer: http.client.HTTPResponse) -> None:
        self.status, self.headers, self.body = answer.status, answer.headers, answer.read()

    @property
    def text(self) -> str:
        return self.body.decode()


def ask(plane: Plane, path: str, method: str = "GET", form: dict[str, str] | None = None, **headers: str) -> Reply:
    """As a browser asks; redirects are not followed."""
    parts = urlsplit(plane.controller.url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
    sent = {"Accept": "text/html", **{name.replace("_", "-"): value for name, value in headers.items()}}
    if form is not None:
        sent["Content-Type"] = "application/x-www-form-urlencoded"
    try:
        connection.request(method, path, urlencode(form) if form is not None else None, sent)
        return Reply(connection.getresponse())
    finally:
        connection.close()


class Document(HTMLParser):
    """What a browser would make of a page, as far as these tests ask: scripts, attributes, ids, headings."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.mark.parametrize("path", PAGES)
def test_a_page_needs_nothing_its_policy_forbids(plane: Plane, path: str) -> None:
    reply = ask(plane, path)
    policy = str(reply.headers["content-security-policy"])
    assert "script-src 'self'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
    assert reply.headers["x-content-type-options"] == "nosniff" and reply.headers["cache-control"] == "no-store"
    document = Document(reply.text)
    for script in document.all("script"):
        assert str(script.get("src")).startswith("/static/") or script.get("type") == "application/json"
    forbidden = [(tag, name) for tag, attributes in document.tags for name in attributes if name == "style" or name.startswith("on")]
    assert forbidden == [] and not document.all("style") and not document.all("img")


@pytest.mark.parametrize("path", PAGES[:4])
def test_a_page_has_landmarks_names_and_unique_ids(plane: Plane, path: str) -> None:
    document = Document(ask(plane, path).text)
    assert len(document.all("h1")) == 1 and len(document.all("main")) == 1 and document.all("nav")
    assert document.all("html")[0]["lang"] == "en"
    ids = [attributes["id"] for _, attributes in document.tags if attributes.get("id")]
    assert len(ids) == len(set(ids))
    labelled = {label["for"] for label in document.all("label") if label.get("for")}
    inputs = [one for one in document.all("input") if one.get("type") not in ("hidden", "radio")]
    assert all(one["id"] in labelled for one in inputs + document.all("select"))


def test_hostile_texts_are_only_texts(plane: Plane) -> None:
    for path in PAGES:
        text = ask(plane, path).text
        assert "<img" not in text and "<script>" not in text and "<b>" not in text
    assert "&lt;img src=x onerror=alert(1)&gt;" in ask(plane, "/nodes/hostile").text
    assert "&lt;img src=x onerror=alert(1)&gt;" in ask(plane, "/").text


def test_the_theme_is_in_the_page_before_it_is_drawn(plane: Plane) -> None:
    assert Document(ask(plane, "/nodes", Cookie="wooly_theme=dark").text).all("html")[0]["data-theme"] == "dark"
    for cookie in ("wooly_theme=system", 'wooly_theme="><script>', "other=1"):
        assert "data-theme" not in Document(ask(plane, "/nodes", Cookie=cookie).text).all("html")[0]


# -- static files ----------------------------------------------------------------------------------------------------------------------


def test_files_are_kept_for_ever_under_a_name_that_changes_with_them(plane: Plane) -> None:
    found = re.findall(r"/static/[0-9a-f]{16}/[a-z0-9./-]+", ask(plane, "/").text)
    assert len(found) > 8
    for path in found:
        reply = ask(plane, path)
        assert reply.status == 200 and "immutable" in str(reply.headers["cache-control"]), path
    style = next(path for path in found if path.endswith("wooly.css"))
    packed = ask(plane, style, Accept_Encoding="gzip")
    assert gzip.decompress(packed.body) == ask(plane, style).body
    assert ask(plane, style, If_None_Match=str(packed.headers["etag"])).status == 304
    assert "immutable" not in str(ask(plane, "/static/0123456789abcdef/wooly.css").headers["cache-control"])


@pytest.mark.parametrize(
    "path", ["../templating.py", "..%2ftemplating.py", "%2e%2e/templating.py", "vendor/../../templating.py", "/etc/passwd", "vendor"]
)
def test_no_path_leads_out_of_the_files(plane: Plane, path: str) -> None:
    reply = ask(plane, f"/static/0/{path}")
    assert reply.status in (400, 404) and b"import" not in reply.body and b"root:" not in reply.body


def test_every_vendored_library_has_its_licence_beside_it(plane: Plane) -> None:
    from services.controller.web.templating import ASSETS

    vendored = {name.removeprefix("vendor/") for name in ASSETS.files if name.startswith("vendor/")}
    licences = {name.removesuffix(".LICENSE") for name in vendored if name.endswith(".LICENSE")}
    assert {name.partition("-")[0] for name in vendored if not name.endswith(".LICENSE")} == licences


# -- API -------------------------------------------------------------------------------------------------------------------------------


def test_the_page_of_the_api_loads_nothing_from_another_host(plane: Plane) -> None:
    text = ask(plane, "/schema/swagger").text
    assert "://" not in text
    for path in re.findall(r'(?:src|href)="([^"]+)"', text):
        assert path.startswith("/") and ask(plane, path).status in (200, 503), path  # no billing here
    assert ask(plane, "/schema/swagger?service=mail").status == 404


@pytest.mark.parametrize("path", ["../../../metrics", "%2e%2e/%2e%2e/%2E%2E/metrics", "x/..%2f..", "./credits"])
def test_the_relay_to_billing_leads_nowhere_else(plane: Plane, path: str) -> None:
    assert ask(plane, f"/api/v1/billing/{path}").status in (400, 404)


def test_the_relay_says_how_to_name_billing(plane: Plane) -> None:
    reply = ask(plane, "/api/v1/billing/credits?by=task")
    assert reply.status == 503 and "start it with WOOLY_BILLING_URL set" in reply.text
    assert reply.headers["content-type"].startswith("application/problem+json")
    assert ask(plane, "/api/v1/billing/grants", "POST", {"a": "b"}).status == 415
    assert ask(plane, "/api/v1/billing/credits", "DELETE").status == 405


# -- problems --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/nope", "/nodes/nobody", "/charts/nodes/nobody/load-0"])
def test_what_is_not_there_is_a_page_for_people_and_a_document_for_programs(plane: Plane, path: str) -> None:
    reply = ask(plane, path)
    assert reply.status == 404 and reply.headers.get_content_type() == "text/html"
    assert "There is nothing here" in reply.text and 'href="/"' in reply.text
    program = ask(plane, path, Accept="application/json")
    assert program.status == 404 and program.headers.get_content_type() == "application/problem+json"


def test_the_api_answers_programs_whatever_they_accept(plane: Plane) -> None:
    reply = ask(plane, "/api/v1/nodes/nobody")
    assert reply.status == 404 and reply.headers.get_content_type() == "application/problem+json"


def test_a_form_from_another_site_is_refused_with_a_page(plane: Plane) -> None:
    reply = ask(plane, "/nodes/n1/drain", "POST", {}, Origin="http://evil.example", Sec_Fetch_Site="cross-site")
    assert reply.status == 403 and "You may not do this" in reply.text
    assert plane.controller.get("/api/v1/nodes/n1")["drained"] is False


# -- nodes -----------------------------------------------------------------------------------------------------------------------------


def revision(plane: Plane, node: str) -> str:
    found = [one for one in Document(ask(plane, f"/nodes/{node}").text).all("input") if one.get("name") == "revision"]
    return str(found[0]["value"])


def test_drain_and_resume(plane: Plane) -> None:
    reply = ask(plane, "/nodes/n1/drain", "POST", {"revision": revision(plane, "n1")})
    assert reply.status == 303 and reply.headers["location"] == "/nodes/n1"
    cookie = str(reply.headers["set-cookie"]).partition(";")[0]
    shown = ask(plane, "/nodes/n1", Cookie=cookie)
    assert "n1-name takes no new tasks" in shown.text and "/nodes/n1/resume" in shown.text
    assert "wooly_flash=" in str(shown.headers["set-cookie"])  # it is said once
    assert 'badge-warn">drained<' in re.sub(r' title="[^"]*"', "", ask(plane, "/nodes").text)
    assert ask(plane, "/nodes/n1/resume", "POST", {"revision": revision(plane, "n1")}).status == 303
    assert plane.controller.get("/api/v1/nodes/n1")["drained"] is False


@pytest.mark.parametrize("percent", ["1001", "-1", "1.5", "a", "٣", "9" * 30])
def test_an_overcommit_that_cannot_be_says_what_can(plane: Plane, percent: str) -> None:
    reply = ask(plane, "/nodes/n1/overcommit", "POST", {"percent": percent, "revision": revision(plane, "n1")})
    assert reply.status == 400 and "from 0 to 1000" in reply.text
    field = next(one for one in Document(reply.text).all("input") if one.get("name") == "percent")
    assert field["value"] == percent and field["aria-invalid"] == "true"


def test_overcommit_is_set_and_goes_back_to_the_global_value(plane: Plane) -> None:
    assert ask(plane, "/nodes/n1/overcommit", "POST", {"percent": "150", "revision": revision(plane, "n1")}).status == 303
    assert plane.controller.get("/api/v1/nodes/n1")["overcommit_vram_percent"] == 150
    assert ask(plane, "/nodes/n1/overcommit", "POST", {"percent": "", "revision": revision(plane, "n1")}).status == 303
    assert plane.controller.get("/api/v1/nodes/n1")["overcommit_vram_percent"] is None


def test_a_form_of_before_somebodys_change_is_not_taken(plane: Plane) -> None:
    old = revision(plane, "n1")
    assert ask(plane, "/nodes/n1/overcommit", "POST", {"percent": "10", "revision": old}).status == 303
    reply = ask(plane, "/nodes/n1/overcommit", "POST", {"percent": "20", "revision": old})
    assert reply.status == 409 and "This node was changed since the page was loaded" in reply.text
    assert plane.controller.get("/api/v1/nodes/n1")["overcommit_vram_percent"] == 10


def test_search_and_filters_have_addresses(plane: Plane) -> None:
    for query, count in (("q=n1-name", 1), ("q=nobody", 0), ("state=lost", 1), ("state=ready", 1), ("state=ready&sort=-tasks", 1)):
        rows = re.findall(r'<tr id="node-', ask(plane, f"/nodes?{query}").text)
        assert len(rows) == count, query
    assert "No node matches" in ask(plane, "/nodes?q=nobody").text


# -- charts ----------------------------------------------------------------------------------------------------------------------------


def test_charts_have_their_hour_again_after_a_restart(plane: Plane) -> None:
    def last() -> float | None:
        values = plane.controller.get("/charts/nodes/n1/load-0")["series"][0]["values"]
        return next((value for value in reversed(values) if value is not None), None)

    plane.measure("n1", utilization=73, used=GIB)
    assert last() is not None
    plane.controller.kill()
    plane.controller.start()
    wait_until(lambda: last() == 73.0)
    assert plane.controller.get("/charts/cluster/chart-vram")["stacked"] is True


def test_an_empty_cluster_says_how_to_begin() -> None:
    with Plane() as empty:
        assert "No node has joined yet" in ask(empty, "/nodes").text and "wooly server" in ask(empty, "/nodes").text
        page = ask(empty, "/").text
        assert "No device has reported yet" in page and "No task is waiting" in page and "Nothing runs" in page
