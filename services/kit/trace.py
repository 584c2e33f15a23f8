"""Traces: spans that continue a batch's W3C traceparent. Costs nothing for a batch that carries none.

The exporter is OTLP over HTTP when OTEL_EXPORTER_OTLP_ENDPOINT is set; without it every span is a no-op. WOOLY_OTLP_TOKEN_FILE names a file
with the bearer token that the collector requires. Sampling is decided once, where
the trace starts (the client): a batch that is not sampled carries no context.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from services.kit.credentials import file_text
from services.kit.tls import plain_allowed
from wooly.shared.trace import parse_traceparent, start_tracing


class Tracing:
    """The process's tracer. ``enabled`` is false without an endpoint, and then nothing of OpenTelemetry is imported."""

    def __init__(self, service: str) -> None:
        """Raises SettingError when the token cannot be read, or would go to another machine in plain text."""
        endpoint = os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "")
        self.enabled = bool(endpoint)
        self._tracer: Any = None
        self._provider: Any = None
        if self.enabled:
            token = file_text(os.environ, "WOOLY_OTLP_TOKEN_FILE")
            if token and urlsplit(endpoint).scheme != "https":
                host = urlsplit(endpoint).hostname or ""
                plain_allowed(os.environ, host, "the token for traces", "write OTEL_EXPORTER_OTLP_ENDPOINT as https://host:port")
            self._provider, self._tracer = start_tracing(service, token)

    def record(self, traceparent: str, name: str, start_ns: int, end_ns: int, attributes: Mapping[str, Any]) -> None:
        """A finished span [start_ns, end_ns) of Unix time under ``traceparent``; nothing when that is not sampled."""
        parent = self._parent(traceparent)
        if parent is not None:
            self._tracer.start_span(name, context=parent, start_time=start_ns, attributes=dict(attributes)).end(end_time=end_ns)

    def close(self) -> None:
        """Export what is buffered."""
        if self._provider is not None:
            self._provider.shutdown()

    def _parent(self, traceparent: str) -> Any:
        ids = parse_traceparent(traceparent) if self.enabled and traceparent else None
        if ids is None:
            return None
        from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

        return set_span_in_context(NonRecordingSpan(SpanContext(ids[0], ids[1], True, TraceFlags(1))))
