"""The metrics reference: what the three services expose, from the code that exposes it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any, Final, cast
from unittest.mock import patch

from prometheus_client import CollectorRegistry, ProcessCollector

from billing.projection import BillingView
from docs.generate.text import sentence, table
from scheduler.placement import ClusterView
from services.billing.routes import system as billing
from services.controller import metrics as controller
from services.server import metrics as node
from services.server.accounting import Counters

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


def _rows(registry: CollectorRegistry) -> Iterator[tuple[str, ...]]:
    for collector in list(registry._collector_to_names):
        if isinstance(collector, ProcessCollector):
            continue
        names = getattr(collector, "_labelnames", None)
        for metric in collector.collect():
            labels = vars(metric)["_labelnames"] if names is None else names
            name = metric.name + ("_total" if metric.type == "counter" else "")
            yield f"`{name}`", metric.type, ", ".join(labels), sentence(metric.documentation)


@contextlib.contextmanager
def _caught(module: ModuleType) -> Iterator[list[CollectorRegistry]]:
    """The registries that ``module`` would write as text inside the block."""
    found: list[CollectorRegistry] = []

    def keep(registry: CollectorRegistry) -> bytes:
        found.append(registry)
        return b""

    with patch.object(module, "generate_latest", keep):
        yield found


def _controller() -> CollectorRegistry:
    projection = SimpleNamespace(view=ClusterView(), position=0, failure=None, connected=True)
    with _caught(controller) as found:
        controller.metrics_text(cast(Any, projection), cast(Any, SimpleNamespace(last=list)), log_bytes=0, log_copies=(1, 1))
    return found[0]


def _node() -> CollectorRegistry:
    with _caught(node) as found:
        node.metrics_text(node.Standing("", 1, (), Counters(), 0, True, {}))
    return found[0]


def _billing() -> CollectorRegistry:
    parts = SimpleNamespace(projection=SimpleNamespace(view=BillingView(), failure=None, connected=True))
    permitted, with_parts = patch.object(billing, "permit", lambda *_: None), patch.object(billing, "parts_of", lambda _: parts)
    with _caught(billing) as found, permitted, with_parts:
        asyncio.run(cast(Any, billing.metrics.fn)(None))
    return found[0]
