"""Traces from the client: one trace a session, in it one span a sampled batch, from submit to its Done; the node's spans hang below that.

On when OTEL_EXPORTER_OTLP_ENDPOINT is set and the extra ``trace`` is installed; the share of batches is OTEL_TRACES_SAMPLER_ARG
(default 0.01; with 0 there is no trace). A W3C traceparent in TRACEPARENT is continued. Off, it costs one attribute test a batch.
"""

from __future__ import annotations

import os
import random
import time
from typing import Any, Final

from wooly.errors import ConfigError
from wooly.remedies import install_extra
from wooly.shared.trace import start_tracing, traceparent_of

_RATIO_DEFAULT: Final = "0.01"


class Tracer:
    """Spans of one session. ``begin`` and ``end`` may be called from different threads."""

    def __init__(self, service: str) -> None:
        self._tracer: Any = None
        self._provider: Any = None
        self._spans: dict[str, Any] = {}
        self._session: Any = None
        self._context: Any = None
        self._ratio = 0.0
        if os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT"):
            self._start(service)

    def open(self, title: str) -> str:
        """The span of the whole session, above those of its batches, ends with ``close``; its traceparent, empty: none."""
        if self._tracer is None or not self._ratio:
            return ""
        from opentelemetry.trace import set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        above = TraceContextTextMapPropagator().extract({"traceparent": os.environ.get("TRACEPARENT", "")})
        self._session = self._tracer.start_span("wooly.session", context=above, attributes={"wooly.title": title})
        self._context = set_span_in_context(self._session)
        return traceparent_of(self._session)

    def begin(self, seq: int, n_ops: int) -> str:
        """A span for batch ``seq`` if it is sampled: its traceparent, else an empty string."""
        if self._tracer is None or random.random() >= self._ratio:
            return ""
        about = {"wooly.seq": seq, "wooly.ops": n_ops}
        span = self._tracer.start_span("wooly.batch", context=self._context, start_time=time.time_ns(), attributes=about)
        traceparent = traceparent_of(span)
        self._spans[traceparent] = span
        return traceparent

    def end(self, traceparent: str, core_ns: int) -> None:
        """The batch is done."""
        span = self._spans.pop(traceparent, None) if traceparent else None
        if span is not None:
            span.set_attribute("wooly.core_ns", core_ns)
            span.end(end_time=time.time_ns())

    def close(self) -> None:
        """End the session's span, and export what is buffered."""
        if self._session is not None:
            self._session.end()
            self._session = None
        if self._provider is not None:
            self._provider.shutdown()

    def _start(self, service: str) -> None:
        text = os.environ.get("OTEL_TRACES_SAMPLER_ARG", _RATIO_DEFAULT)
        try:
            self._ratio = float(text)
        except ValueError:
            raise ConfigError(f"OTEL_TRACES_SAMPLER_ARG={text}: must be a number from 0 to 1") from None
        try:
            self._provider, self._tracer = start_tracing(service)
        except ImportError:
            raise ConfigError(f"OTEL_EXPORTER_OTLP_ENDPOINT is set, but OpenTelemetry is missing; {install_extra('trace')}") from None
