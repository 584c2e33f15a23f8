"""Bus permissions of each identity, publish and subscribe: the one table. Pure.

Clients and nodes authenticate by API key (``of_key``); controller, billing and runners are users in the configuration of the bus
(``of_service``). The bus refuses every other subject. docs/security.md has the reason for each line.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from bus_schemas import subjects
from bus_schemas.access import READ_ALL, WHO_ALL, WHO_CHANGED, read_subject, who_subject
from bus_schemas.dataport import MODELS_VERB
from bus_schemas.runs import BEATS, LOG_ALL, REPORTS, SYNCS
from services.kit.access import Identity

CONTROLLER: Final = "controller"
BILLING: Final = "billing"
RUNNER: Final = "runner"

_CLIENT_VERBS: Final = ("open", "close", "ping", MODELS_VERB)
_NODE_READS: Final = ("config", "budget", "tier")
"""Areas of facts that nodes follow."""
_INBOXES: Final = ("*.*", "*.*.*")
"""Every inbox: what nodes answer into. (Inboxes begin with their principal in the first word, and words cannot be named in part.)"""
PUBLIC_STREAMS: Final = (subjects.EVENTS_STREAM, subjects.JOURNAL_STREAM, subjects.TELEMETRY_STREAM)
"""Streams granted by the global-read permission; nodes may ask whether they exist."""
_NO_INBOXES: Final = ("wooly.*", "wooly.*.*", "$JS.*", "$JS.*.*", "$KV.>", "$SYS.>")
"""Non-inbox subjects that match the inbox wildcards."""


@dataclass(frozen=True, slots=True)
class Permissions:
    """Subjects, with wildcards."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    #: exceptions from ``publish``
    forbidden: tuple[str, ...] = ()
    #: may answer a request once on any reply subject: so any requester, itself included, can make it publish on any subject. For services,
    #: whose code checks reply subjects
    replies: bool = False


def of_key(who: Identity) -> Permissions | None:
    """The permissions of a key; None when it may not connect."""
    if who.role == "node":
        return _node(who.key, who.node) if _is_node(who) else None
    client = who.may("bus.client", who.tenant or None)
    watcher = not who.tenant and who.may("cluster.read")
    if not client and not watcher:
        return None
    principal = who.key
    publish = [subjects.discover(principal)]
    subscribe = [f"{subjects.inbox_prefix(principal)}.>"]
    if client:
        publish += [f"wooly.node.*.req.{verb}.{principal}" for verb in _CLIENT_VERBS]
        publish.append(f"wooly.node.*.batch.{principal}.*")
        subscribe.append(subjects.session_done("*", principal))
    if watcher:  # gauges and statistics show every tenant's sessions
        publish.append(f"wooly.node.*.req.stats.{principal}")
        subscribe.append(subjects.TELEMETRY_ALL)
    if _reads_everything(who):
        publish += [read_subject(principal), *_keeps_up(*PUBLIC_STREAMS)]
    return Permissions(tuple(publish), tuple(subscribe))


def may_follow(who: Identity, stream: str, subject: str) -> bool:
    """Whether the consumer proxy delivers messages of ``stream`` on ``subject`` (empty: all) to ``who``."""
    if who.role == "node":
        return _is_node(who) and (stream, subject) in _node_reads(who.node)
    return _reads_everything(who) and stream in PUBLIC_STREAMS


def may_know(who: Identity, stream: str, subject: str) -> bool:
    """Whether the consumer proxy reports to ``who`` the length of ``stream``, and the position of the last message on ``subject`` (empty:
    none)."""
    if who.role == "node":
        return _is_node(who) and not subject and stream in (subjects.batch_stream(who.node), *PUBLIC_STREAMS)
    return _reads_everything(who) and stream in PUBLIC_STREAMS


def _is_node(who: Identity) -> bool:
    return bool(who.node) and who.may("bus.node")


def _reads_everything(who: Identity) -> bool:
    """The global-read permission: for `wooly replay` and `wooly why`."""
    return not who.tenant and who.role != "node" and who.may("cluster.read") and who.may("audit.read")


def _node_reads(node: str) -> tuple[tuple[str, str], ...]:
    """Streams and subjects that a node follows."""
    facts = (*(f"wooly.evt.{area}.>" for area in _NODE_READS), subjects.event_subject("node", node))
    return (subjects.batch_stream(node), ""), *((subjects.EVENTS_STREAM, subject) for subject in facts)


def of_service(name: str) -> Permissions:
    """Of ``controller``, ``billing`` and ``runner``."""
    return _SERVICES[name]


def _node(principal: str, node: str) -> Permissions:
    node = subjects.token(node)
    return Permissions(
        publish=(
            subjects.event_subject("node", node),
            subjects.event_subject("usage", node),
            subjects.session_facts("*", node),
            f"wooly.telemetry.{node}.*",
            f"wooly.journal.{node}.>",
            subjects.session_done("*", "*", node),
            who_subject(node),
            f"wooly.billing.req.allow.{node}",
            subjects.node_request(node, "ping", principal),  # its health check asks it
            read_subject(principal),
            *_keeps_up(subjects.EVENTS_STREAM, subjects.batch_stream(node)),
            *_INBOXES,
        ),
        subscribe=(subjects.DISCOVER_ALL, f"wooly.node.{node}.req.>", WHO_CHANGED, f"{subjects.inbox_prefix(principal)}.>"),
        forbidden=_NO_INBOXES,
    )


def _reads(*streams: str) -> list[str]:
    """Reading whole streams: for services. This permission lets a client have a stream's messages, and JetStream's own answers, delivered
    to any subject, including those of the JetStream API."""
    return [
        f"$JS.API.{verb}"
        for stream in streams
        for verb in (f"STREAM.INFO.{stream}", f"STREAM.MSG.GET.{stream}", f"CONSUMER.CREATE.{stream}.>", f"CONSUMER.DELETE.{stream}.*")
    ] + _keeps_up(*streams)


def _keeps_up(*streams: str) -> list[str]:
    """Telling the broker that one keeps up with what it delivers. It answers nothing."""
    return [f"$JS.FC.{stream}.>" for stream in streams]


_LEASES: Final = "WOOLY_LEASES"

_SERVICES: Final[Mapping[str, Permissions]] = {
    CONTROLLER: Permissions(
        publish=(
            "wooly.evt.>",
            "wooly.node.*.req.*.controller",
            "wooly.run.script.*",
            "wooly.run.state.*",
            subjects.discover(CONTROLLER),
            WHO_CHANGED,
            "$JS.API.>",
            "$JS.FC.>",
            "$JS.SNAPSHOT.>",
            "$KV.>",
        ),
        subscribe=(
            "wooly.telemetry.>",
            "wooly.evt.>",
            WHO_ALL,
            READ_ALL,
            LOG_ALL,
            BEATS,
            SYNCS,
            REPORTS,
            "$KV.>",
            f"{subjects.inbox_prefix(CONTROLLER)}.>",
        ),
        replies=True,
    ),
    BILLING: Permissions(
        publish=(
            "wooly.evt.budget.*",
            "wooly.evt.tier.*",
            "wooly.lease.>",
            "$KV.wooly_access.>",
            *_reads(subjects.EVENTS_STREAM, _LEASES, "KV_wooly_access"),
            f"$JS.API.STREAM.INFO.{subjects.TELEMETRY_STREAM}",
            f"$JS.API.STREAM.INFO.{subjects.JOURNAL_STREAM}",
            *(
                f"$JS.API.STREAM.{verb}.{name}"
                for verb in ("CREATE", "UPDATE")
                for name in (subjects.EVENTS_STREAM, subjects.TELEMETRY_STREAM, subjects.JOURNAL_STREAM, _LEASES, "KV_wooly_access")
            ),
        ),
        subscribe=("wooly.billing.req.>", f"{subjects.inbox_prefix(BILLING)}.>"),
        replies=True,
    ),
    RUNNER: Permissions(publish=(LOG_ALL, BEATS, SYNCS, REPORTS), subscribe=(f"{subjects.inbox_prefix(RUNNER)}.>",)),
}
