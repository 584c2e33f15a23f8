"""UI context: dependencies of page handlers beside the parts: the clients of billing and of the metrics store, the trace viewer."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

from litestar import Request

from services.controller.web.billing import BillingClient
from services.controller.web.history import MetricsStore
from services.kit.tls import client_context

__all__ = ["UiContext", "context_of"]

TRACE_MARK: Final = "{trace}"


@dataclass(slots=True)
class UiContext:
    """``async with UiContext.from_environment() as context``."""

    billing: BillingClient
    trace_url: str = ""  #: address of one trace, with ``{trace}`` for its id; empty: no trace viewer
    metrics: MetricsStore = field(default_factory=lambda: MetricsStore(""))

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """WOOLY_BILLING_URL: address of billing (WOOLY_TLS_CA: its trusted authorities). WOOLY_TRACE_URL: for example
        ``http://jaeger.example:16686/trace/{trace}``. WOOLY_METRICS_URL: a Prometheus that scrapes the
        controllers. Raises SettingError."""
        url = environment.get("WOOLY_BILLING_URL", "")
        verify = client_context(environment) if url.startswith("https:") else True
        metrics = environment.get("WOOLY_METRICS_URL", "")
        store = MetricsStore(metrics, verify=client_context(environment) if metrics.startswith("https:") else True)
        return cls(BillingClient(url, verify=verify), environment.get("WOOLY_TRACE_URL", ""), store)

    async def __aenter__(self) -> Self:
        await self.billing.__aenter__()
        await self.metrics.__aenter__()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        await self.metrics.__aexit__(kind, value, trace)
        await self.billing.__aexit__(kind, value, trace)

    def trace_of(self, trace: str) -> str:
        """The address of a trace, or empty when no trace viewer is configured or there is no trace."""
        known = self.trace_url.startswith(("http://", "https://")) and TRACE_MARK in self.trace_url
        return self.trace_url.replace(TRACE_MARK, trace) if known and trace else ""


def context_of(request: Request[Any, Any, Any]) -> UiContext:
    found: UiContext = request.app.state.web.context
    return found
