"""The streams of the bus: what each keeps, for how long, on which storage, on how many servers. Creating them is idempotent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from bus_schemas import runs, subjects
from services.kit.errors import SettingError

ELECTION_S: Final = 20.0
"""How long a call waits for the leader of a stream. On a cluster of bus servers, electing one takes 4 to 10 s."""
REPLICAS_VARIABLE: Final = "WOOLY_BUS_REPLICAS"
HUB_DOMAIN: Final = "hub"
"""The JetStream domain of the servers that leaf servers connect to."""
LEAF_VARIABLE: Final = "WOOLY_BUS_LEAF"
_BATCHES: Final = subjects.batch_stream("x").removesuffix("x")

_MINUTE_NS: Final = 60 * 10**9
_HOUR_NS: Final = 60 * _MINUTE_NS
_WEEK_NS: Final = 7 * 24 * _HOUR_NS


def replicas(environment: Mapping[str, str]) -> int:
    """On how many bus servers a stream is stored, as the environment says. Raises SettingError."""
    text = environment.get(REPLICAS_VARIABLE, "").strip() or "1"
    if text not in ("1", "3"):
        raise SettingError(f"{REPLICAS_VARIABLE}={text}: must be 1 (one bus server), or 3 (a cluster of three servers or more)")
    return int(text)


def leaf_domain(environment: Mapping[str, str]) -> str:
    """The JetStream domain of the leaf server beside this node; empty: there is none. Raises SettingError."""
    domain = environment.get(LEAF_VARIABLE, "").strip()
    if domain and (not subjects.is_token(domain) or domain == HUB_DOMAIN):
        raise SettingError(f"{LEAF_VARIABLE}={domain}: must be letters, digits, '-' or '_', and not {HUB_DOMAIN!r}")
    return domain


def replicated(config: Mapping[str, Any], copies: int) -> dict[str, Any]:
    """``config`` of a stream as it is stored on ``copies`` servers. Two kinds of stream stay on one: batches, which may not wait for an
    election and are sent again by their sessions; and the nodes' journals, which only replay reads. A stream on several servers cannot be
    written to disk later than it is acknowledged (``persist_mode``)."""
    if copies == 1 or is_batch_stream(config["name"]) or config["name"] == subjects.JOURNAL_STREAM:
        return dict(config)
    return {option: value for option, value in config.items() if option != "persist_mode"} | {"num_replicas": copies}


def is_batch_stream(name: str) -> bool:
    """Whether it holds the batches of a node: it may be created again, empty, when its server is lost."""
    return name.startswith(_BATCHES)


def events_stream_config() -> dict[str, Any]:
    """Facts: without expiry, on disk, deduplicated for ten minutes (longer than any publisher retries)."""
    return {
        "name": subjects.EVENTS_STREAM,
        "subjects": [subjects.EVENTS_ALL],
        "storage": "file",
        "retention": "limits",
        "duplicate_window": 10 * _MINUTE_NS,
        "allow_direct": True,
        "deny_delete": True,
    }


def telemetry_stream_config() -> dict[str, Any]:
    """Gauges: in memory, for an hour; losing them loses nothing that counts."""
    return {
        "name": subjects.TELEMETRY_STREAM,
        "subjects": [subjects.TELEMETRY_ALL],
        "storage": "memory",
        "retention": "limits",
        "max_age": _HOUR_NS,
        "max_bytes": 64 << 20,
        "max_msgs_per_subject": 3600,
        "allow_direct": True,
    }


def journal_stream_config() -> dict[str, Any]:
    """The journals of all nodes' cores: on disk for a week, the oldest parts are evicted. A crash of the broker may lose the last of
    them."""
    return {
        "name": subjects.JOURNAL_STREAM,
        "subjects": [subjects.JOURNAL_ALL],
        "storage": "file",
        "retention": "limits",
        "max_age": _WEEK_NS,
        "max_bytes": 1 << 30,
        "discard": "old",
        "duplicate_window": 10 * _MINUTE_NS,
        "allow_direct": True,
        "persist_mode": "async",
    }


def batch_stream_config(node: str) -> dict[str, Any]:
    """Batches of one node, in order. Sessions send again until the node has answered, so the broker need not sync each to disk
    (``persist_mode: async`` halves the way to the node); what a node has executed it reads no more, so an hour is plenty."""
    return {
        "name": subjects.batch_stream(node),
        "subjects": [subjects.batch_all(node)],
        "storage": "file",
        "retention": "limits",
        "max_age": _HOUR_NS,
        "max_bytes": 4 << 30,
        "discard": "old",
        "duplicate_window": 2 * _MINUTE_NS,
        "persist_mode": "async",
        "no_ack": True,  # an acknowledgement would go to any reply subject that the sender chooses
    }


def runs_stream_config() -> dict[str, Any]:
    """Scripts and states of runs: the last of each, for a week."""
    return {
        "name": runs.RUNS_STREAM,
        "subjects": ["wooly.run.script.*", runs.STATES_ALL],
        "storage": "file",
        "retention": "limits",
        "max_age": _WEEK_NS,
        "max_bytes": 256 << 20,
        "max_msgs_per_subject": 1,
        "discard": "old",
        "duplicate_window": 2 * _MINUTE_NS,
        "allow_direct": True,
    }


def run_logs_stream_config() -> dict[str, Any]:
    """Output of runs, for a week. Runners bound the output of each run."""
    return {
        "name": runs.LOGS_STREAM,
        "subjects": [runs.LOG_ALL],
        "storage": "file",
        "retention": "limits",
        "max_age": _WEEK_NS,
        "max_bytes": 512 << 20,
        "discard": "old",
        "duplicate_window": 2 * _MINUTE_NS,
        "allow_direct": True,
        "persist_mode": "async",
    }
