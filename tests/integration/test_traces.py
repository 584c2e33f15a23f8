"""One trace from the client's flush through the node to the launch, as an OTLP collector receives it."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from bus_schemas.events import SessionOpenedFact
from services.kit.errors import SettingError
from services.kit.keyring import Keyring
from services.kit.trace import Tracing
from tests.support.node import Node, increment
from wooly.link import Flush


class Collector(ThreadingHTTPServer):
    """Takes OTLP over HTTP; ``spans``: (service, name, trace id, span id, parent id). ``part``: with TLS and the token of this folder."""

    def __init__(self, part: Path | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.spans: list[tuple[str, str, bytes, bytes, bytes]] = []
        self.wanted = f"Bearer {(part / 'otlp.token').read_text()}" if part else None
        self._scheme = "https" if part else "http"
        if part:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(part / "cert.pem", part / "key.pem")
            self.socket = context.wrap_socket(self.socket, server_side=True)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        request = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["Content-Length"])))
        collector = self.server
        assert isinstance(collector, Collector)
        if collector.wanted not in (None, self.headers["Authorization"]):
            self.send_response(401)
            self.end_headers()
            return
        for resource in request.resource_spans:
            (service,) = (a.value.string_value for a in resource.resource.attributes if a.key == "service.name")
            for scope in resource.scope_spans:
                collector.spans += [(service, span.name, span.trace_id, span.span_id, span.parent_span_id) for span in scope.spans]
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Quiet: the test asserts on what came, not on access lines."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as collector:
        yield collector
        collector.shutdown()


def run(node: Node) -> None:
    session = node.open()
    session.wait(session.submit(Flush(uploads=[(1, memoryview(np.zeros(16)).cast("B"))])))
    session.wait(session.submit(increment().flush([1])))
    session.close()


def test_a_session_is_one_trace_and_the_log_names_it(tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "1")
    with Node(tmp_path) as node:
        run(node)
        node.stop_server()
        (opened,) = [event for event in node.events() if isinstance(event, SessionOpenedFact)]
    (session,) = [span for span in collector.spans if span[1] == "wooly.session"]
    assert session[4] == b"", "nothing is above it"
    assert opened.traceparent == f"00-{session[2].hex()}-{session[3].hex()}-01"
    batches = [span for span in collector.spans if span[1] == "wooly.batch"]
    assert len(batches) == 2
    assert all((service, trace, parent) == ("wooly-client", session[2], session[3]) for service, _, trace, _, parent in batches)
    for _, _, trace_id, span_id, _ in batches:
        below = {(service, name) for service, name, trace, _, parent in collector.spans if trace == trace_id and parent == span_id}
        assert below == {("wooly-server", "wooly.queue"), ("wooly-server", "wooly.execute"), ("wooly-server", "wooly.launch")}


def test_a_session_continues_the_trace_of_the_script(tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "1")
    monkeypatch.setenv("TRACEPARENT", f"00-{'ab' * 16}-{'cd' * 8}-01")
    with Node(tmp_path) as node:
        run(node)
        node.stop_server()
        (opened,) = [event for event in node.events() if isinstance(event, SessionOpenedFact)]
    assert {span[2].hex() for span in collector.spans} == {"ab" * 16}
    assert opened.traceparent.split("-")[1] == "ab" * 16
    assert [span[4].hex() for span in collector.spans if span[1] == "wooly.session"] == ["cd" * 8]


def test_unsampled_batches_leave_no_trace(tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0")
    with Node(tmp_path) as node:
        run(node)
        node.stop_server()
        assert [event.traceparent for event in node.events() if isinstance(event, SessionOpenedFact)] == [""]
    assert collector.spans == []


def test_a_node_exports_to_a_collector_that_requires_tls_and_a_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client, which lacks the token, exports nothing: its spans are not among those that came."""
    names = dict.fromkeys(("bus", "controller", "billing", "trace", "nodes/n"), ("127.0.0.1",))
    ring = Keyring.make(tmp_path / "keyring", names, ["n"])
    for variable in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):  # the exporter would believe these authorities alone
        monkeypatch.delenv(variable, raising=False)
    with Collector(ring.folder / "trace") as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(ring.ca))
        monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "1")
        with Node(tmp_path / "node", WOOLY_OTLP_TOKEN_FILE=str(ring.folder / "nodes/n/otlp.token")) as node:
            run(node)
            node.stop_server()
            assert {service for service, *_ in collector.spans} == {"wooly-server"}
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"authorization={collector.wanted}".replace(" ", "%20"))
            node.start_server()
            run(node)
        assert {service for service, *_ in collector.spans} == {"wooly-server", "wooly-client"}
        collector.shutdown()


def test_the_token_stays_out_of_plain_text_beyond_loopback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text("t")
    monkeypatch.setenv("WOOLY_OTLP_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector.example:4318")
    with pytest.raises(SettingError, match="write OTEL_EXPORTER_OTLP_ENDPOINT as https"):
        Tracing("wooly-server")
