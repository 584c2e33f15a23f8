"""Traces: spans that continue a batch's W3C traceparent. Costs nothing for a batch that carries none.

The exporter is OTLP over HTTP when OTEL_EXPORTER_OTLP_ENDPOINT is set; without it every span is a no-op. Sampling is decided once, where
the trace starts (the client): a batch that is not sampled carries no context.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

__all__ = ["Tracing", "parse_traceparent"]

_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
"""Strict: the text comes from clients, and what the exporter cannot encode would cost other spans."""


def parse_traceparent(text: str) -> tuple[int, int] | None:
    """(trace id, span id) of a sampled W3C traceparent, or None when it is absent, malformed or not sampled."""
    match = _TRACEPARENT.fullmatch(text)
    if match is None:
        return None
    trace_id, span_id, flags = (int(part, 16) for part in match.groups())
    return (trace_id, span_id) if trace_id and span_id and flags & 1 else None


class Tracing:
    """The process's tracer. ``enabled`` is false without an endpoint, and then nothing of OpenTelemetry is imported."""

    def __init__(self, service: str) -> None:
        self.enabled = bool(os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT"))
        self._tracer: Any = None
        self._provider: Any = None
        if self.enabled:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor

            self._provider = TracerProvider(resource=Resource.create({"service.name": service}))
            self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
            self._tracer = self._provider.get_tracer("wooly")

    def record(self, traceparent: str, name: str, start_ns: int, end_ns: int, attributes: Mapping[str, Any]) -> None:
        """A finished span [start_ns, end_ns) of Unix time under ``traceparent``; nothing when that is not sampled."""
        parent = self._parent(traceparent)
        if parent is not None:
            self._tracer.start_span(name, context=parent, start_time=start_ns, attributes=dict(attributes)).end(end_time=end_ns)

    @contextlib.contextmanager
    def span(self, traceparent: str, name: str, attributes: Mapping[str, Any]) -> Iterator[None]:
        """A span around the block, under ``traceparent``."""
        parent = self._parent(traceparent)
        if parent is None:
            yield
            return
        with self._tracer.start_as_current_span(name, context=parent, attributes=dict(attributes)):
            yield

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
