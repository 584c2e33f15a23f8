"""Set-up of OpenTelemetry traces (OTLP over HTTP), and W3C trace contexts as text."""

from __future__ import annotations

import re
from typing import Any, Final

_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
"""Strict: the text comes from clients, and what the exporter cannot encode would cost other spans."""


def start_tracing(service: str, token: str = "") -> tuple[Any, Any]:
    """(provider, tracer) that export as OTEL_EXPORTER_OTLP_ENDPOINT says, with ``token`` as bearer token unless it is empty;
    ``provider.shutdown()`` exports what is buffered. Raises ImportError when OpenTelemetry is not installed."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=Resource.create({"service.name": service}), shutdown_on_exit=False)
    headers = {"authorization": f"Bearer {token}"} if token else None
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(headers=headers)))
    return provider, provider.get_tracer("wooly")


def traceparent_of(span: Any) -> str:
    """The W3C traceparent of a sampled span, else an empty string."""
    context = span.get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-01" if context.trace_flags & 1 else ""


def parse_traceparent(text: str) -> tuple[int, int] | None:
    """(trace id, span id) of a sampled W3C traceparent, or None when it is absent, malformed or not sampled."""
    match = _TRACEPARENT.fullmatch(text)
    if match is None:
        return None
    trace_id, span_id, flags = (int(part, 16) for part in match.groups())
    return (trace_id, span_id) if trace_id and span_id and flags & 1 else None
