"""The metrics reference: what the three services expose, from the code that exposes it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, Final, cast
from unittest.mock import patch

from prometheus_client import CollectorRegistry, ProcessCollector

from billing.projection import BillingView
from docs.generate.text import sentence, table
from scheduler.placement import ClusterView
from services.billing.routes import system as billing
from services.controller import metrics as controller
from services.server import metrics as node
from services.server.counters import Counters

__all__ = ["page"]

_HEAD: Final = """# Metrics reference

Every Prometheus metric. Controller and billing serve `/metrics` beside REST (permission `cluster.read`); a node serves it where
`WOOLY_NODE_HTTP` says. Rules and dashboards: [Monitoring](../watching.md). A node also exposes the usual `process_*` metrics.
"""


def page() -> str:
    """The page."""
    parts = [_HEAD]
    for title, registry in (("Controller", _controller()), ("Billing", _billing()), ("Node", _node())):
        parts += [f"\n## {title}\n", table(("Metric", "Type", "Labels", "Meaning"), sorted(_rows(registry)))]
    return "\n".join(parts)


def _rows(registry: CollectorRegistry) -> Iterator[Sequence[str]]:
    for collector in list(registry._collector_to_names):
        if isinstance(collector, ProcessCollector):
            continue
        names = getattr(collector, "_labelnames", None)
        for metric in collector.collect():
            labels = metric._labelnames if names is None else names
            name = metric.name + ("_total" if metric.type == "counter" else "")
            yield f"`{name}`", metric.type, ", ".join(labels), sentence(metric.documentation)


def _controller() -> CollectorRegistry:
    found: list[CollectorRegistry] = []
    mirror = SimpleNamespace(view=ClusterView(), position=0, failure=None, connected=True)
    with patch.object(controller, "generate_latest", lambda registry: found.append(registry) or b""):
        controller.metrics_text(cast(Any, mirror), cast(Any, SimpleNamespace(last=list)), log_bytes=0)
    return found[0]


def _node() -> CollectorRegistry:
    found: list[CollectorRegistry] = []
    with patch.object(node, "generate_latest", lambda registry: found.append(registry) or b""):
        node.metrics_text(node.Standing("", 1, (), Counters(), 0, True))
    return found[0]


def _billing() -> CollectorRegistry:
    found: list[CollectorRegistry] = []
    parts = SimpleNamespace(keeper=SimpleNamespace(view=BillingView(), failure=None, connected=True))
    with (
        patch.object(billing, "generate_latest", lambda registry: found.append(registry) or b""),
        patch.object(billing, "permit", lambda *_: None),
        patch.object(billing, "parts_of", lambda _: parts),
    ):
        asyncio.run(cast(Any, billing.metrics.fn)(None))
    return found[0]
