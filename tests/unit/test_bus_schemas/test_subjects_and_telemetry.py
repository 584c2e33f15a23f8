"""Which subjects a pattern means, and what a node may say on its own."""

from __future__ import annotations

import msgspec
import pytest

from bus_schemas.subjects import matches, node_requests, telemetry_subject
from bus_schemas.telemetry import Telemetry, encode_telemetry, telemetry_on

SEEN = Telemetry(1, "n1", 1, 0, 1000, 50, 0, 1 << 30, 0)


def test_a_pattern_means_its_own_subjects() -> None:
    pattern = node_requests("n1", "end_task")
    assert matches(pattern, "wooly.node.n1.req.end_task.controller")
    for other in ("wooly.node.n2.req.end_task.controller", "wooly.node.n1.batch.k.local", "wooly.node.n1.req.end_task", f"{pattern}.more"):
        assert not matches(pattern, other)


def test_a_measurement_is_about_the_device_of_its_subject() -> None:
    assert telemetry_on(telemetry_subject("n1", 0), encode_telemetry(SEEN)) == SEEN
    for subject in (telemetry_subject("n2", 0), telemetry_subject("n1", 1), "wooly.node.n1.batch.n1.0"):
        with pytest.raises(msgspec.DecodeError):
            telemetry_on(subject, encode_telemetry(SEEN))
    for node in ("n1.0", "", "*"):
        with pytest.raises(msgspec.DecodeError):
            telemetry_on(telemetry_subject("n1", 0), encode_telemetry(msgspec.structs.replace(SEEN, node=node)))
