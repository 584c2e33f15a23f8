"""A batch's way through the node as spans below the client's: once a batch, over all its slices."""

from __future__ import annotations

import time

from services.kit.trace import Tracing
from services.server.protocol import Executed
from services.server.sessions import Pending

__all__ = ["record_spans"]


def record_spans(tracing: Tracing, pending: Pending, done: Executed, gpu: int) -> None:
    """``done``: the report of its last slice, which ``pending`` knows of."""
    offset_ns = time.time_ns() - time.monotonic_ns()
    about = {"wooly.session": done.session, "wooly.seq": done.seq, "wooly.gpu": gpu}
    cost = about | {"wooly.core_ns": pending.core_ns, "wooly.instructions": done.instructions, "wooly.slices": pending.slices}
    for name, start_ns, end_ns, attributes in (
        ("wooly.queue", pending.received_ns, pending.begun_ns, about),
        ("wooly.execute", pending.begun_ns, done.finish_ns, about),
        ("wooly.launch", pending.start_ns, done.end_ns, cost),
    ):
        tracing.record(pending.batch.trace, name, start_ns + offset_ns, max(start_ns, end_ns) + offset_ns, attributes)
