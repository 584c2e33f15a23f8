"""Bus permission table: each subject with the identities that may publish and receive it, written by hand. Data only.

A cell that is not named here is forbidden, and is tried. ``N1`` and ``N2`` are nodes, ``A`` and ``B`` the ids of two clients' keys.
Nodes answer into inboxes, which the bus cannot tell from other subjects of two or three words that begin with no name of ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

__all__ = ["Names", "hearing", "may_hear", "may_publish", "publishing"]


@dataclass(frozen=True)
class Names:
    """Ids of keys: two clients, a watcher of the cluster, two nodes' keys; ids of the nodes."""

    a: str
    b: str
    watcher: str
    key1: str
    key2: str
    n1: str
    n2: str


def publishing(n: Names) -> Mapping[str, str]:
    """Subjects to be published on, by name."""
    out = {f"discover {name}": f"wooly.discover.{who}" for name, who in _people(n).items()}
    for name, who in _people(n).items():
        out[f"read {name}"] = f"wooly.access.read.{who}"
        for verb in ("open", "close", "ping", "model-cache", "stats", "end_task", "set_priority"):
            out[f"{verb} {name}"] = f"wooly.node.{n.n1}.req.{verb}.{who}"
        out[f"batch {name}"] = f"wooly.node.{n.n1}.batch.{who}.{who}-s"
        out[f"inbox {name}"] = f"_INBOX_{who}.x.y"
    for name, node in (("n1", n.n1), ("n2", n.n2)):
        out |= {
            f"done of {name}": f"wooly.session.{node}.{n.b}.{n.b}-s.done",
            f"fact node {name}": f"wooly.evt.node.{node}",
            f"fact usage {name}": f"wooly.evt.usage.{node}",
            f"fact session {name}": f"wooly.evt.session.some.{node}",
            f"telemetry {name}": f"wooly.telemetry.{node}.0",
            f"journal {name}": f"wooly.journal.{node}.0.dispatch",
            f"who {name}": f"wooly.access.who.{node}",
            f"allow {name}": f"wooly.billing.req.allow.{node}",
            f"js info batch {name}": f"$JS.API.STREAM.INFO.WOOLY_BATCH_{node}",
            f"js read batch {name}": f"$JS.API.CONSUMER.CREATE.WOOLY_BATCH_{node}.none",
            f"js pull batch {name}": f"$JS.API.CONSUMER.MSG.NEXT.WOOLY_BATCH_{node}.none",
            f"js flow batch {name}": f"$JS.FC.WOOLY_BATCH_{node}.none.x",
        }
    for area in ("access", "budget", "tier", "config", "group", "task", "placement", "load"):
        out[f"fact {area}"] = f"wooly.evt.{area}.none"
    for area in ("access", "config", "budget", "tier", "task"):
        out[f"js read {area}"] = f"$JS.API.CONSUMER.CREATE.WOOLY_EVENTS.none.wooly.evt.{area}.>"
    for kind in ("script", "state", "log", "beat", "req.sync", "req.report"):
        out[f"run {kind}"] = f"wooly.run.{kind}.none"
    return out | {
        "gone": "wooly.access.gone",
        "lease": "wooly.lease.none",
        "js info events": "$JS.API.STREAM.INFO.WOOLY_EVENTS",
        "js read events": "$JS.API.CONSUMER.CREATE.WOOLY_EVENTS.none",
        "js read events old": "$JS.API.CONSUMER.CREATE.WOOLY_EVENTS",
        "js read events durable": "$JS.API.CONSUMER.DURABLE.CREATE.WOOLY_EVENTS.none",
        "js pull events": "$JS.API.CONSUMER.MSG.NEXT.WOOLY_EVENTS.none",
        "js drop reader": "$JS.API.CONSUMER.DELETE.WOOLY_EVENTS.none",
        "js readers": "$JS.API.CONSUMER.NAMES.WOOLY_EVENTS",
        "js get events": "$JS.API.STREAM.MSG.GET.WOOLY_EVENTS",
        "js direct get events": "$JS.API.DIRECT.GET.WOOLY_EVENTS",
        "js delete": "$JS.API.STREAM.DELETE.NONE",
        "js purge": "$JS.API.STREAM.PURGE.NONE",
        "js delete one": "$JS.API.STREAM.MSG.DELETE.NONE",
        "js create": "$JS.API.STREAM.CREATE.NONE",
        "js update": "$JS.API.STREAM.UPDATE.NONE",
        "js streams": "$JS.API.STREAM.NAMES",
        "js account": "$JS.API.INFO",
        "js ack": "$JS.ACK.WOOLY_EVENTS.none.1.1.1.1.0",
        "js flow": "$JS.FC.WOOLY_EVENTS.none.x",
        "js flow secret": "$JS.FC.KV_wooly_access.none.x",
        "kv secret": "$KV.wooly_access.none",
        "kv config": "$KV.wooly_config.none",
        "kv personal": "$KV.wooly_personal.none",
        "js kv personal": "$JS.API.STREAM.MSG.GET.KV_wooly_personal",
        "js direct kv personal": "$JS.API.DIRECT.GET.KV_wooly_personal",
        "js kv secret": "$JS.API.STREAM.MSG.GET.KV_wooly_access",
        "sys connections": "$SYS.REQ.SERVER.PING.CONNZ",
        "sys callout": "$SYS.REQ.USER.AUTH",
        "sys kick": "$SYS.REQ.SERVER.NONE.KICK",
        "kv short": "$KV.none",
        "sys short": "$SYS.none",
        "js short": "$JS.none",
        "wooly short": "wooly.none",
        "fact short": "wooly.evt.none",
        "telemetry short": "wooly.telemetry.none",
        "anything": "other.subject.of.somebody",
        "two words": "other.subject",
    }


def hearing(n: Names) -> Mapping[str, str]:
    """Subjects to be heard, by name."""
    out = {f"inbox {name}": f"_INBOX_{who}.>" for name, who in _people(n).items()}
    out |= {f"done {name}": f"wooly.session.*.{who}.*.done" for name, who in _people(n).items()}
    out |= {f"batch {name}": f"wooly.node.*.batch.{who}.*" for name, who in _people(n).items()}
    for name, node in (("n1", n.n1), ("n2", n.n2)):
        out |= {f"requests {name}": f"wooly.node.{node}.req.>", f"batches {name}": f"wooly.node.{node}.batch.>"}
    return out | {
        "all": ">", "one token": "*", "wooly": "wooly.>", "facts": "wooly.evt.>", "fact access": "wooly.evt.access.*",
        "discover": "wooly.discover.*", "telemetry": "wooly.telemetry.>", "journal": "wooly.journal.>", "done all": "wooly.session.>",
        "who": "wooly.access.who.*", "gone": "wooly.access.gone", "allow": "wooly.billing.req.allow.*", "lease": "wooly.lease.>",
        "sys": "$SYS.>", "callout": "$SYS.REQ.USER.AUTH", "js": "$JS.>", "advisories": "$JS.EVENT.ADVISORY.>",
        "runs": "wooly.run.>", "run logs": "wooly.run.log.*", "run syncs": "wooly.run.req.sync.*", "run beats": "wooly.run.beat.*",
        "js calls": "$JS.API.>", "read": "wooly.access.read.*", "kv": "$KV.>",
    }  # fmt: skip


def _people(n: Names) -> dict[str, str]:
    return {
        "A": n.a, "B": n.b, "watcher": n.watcher, "node 1": n.key1, "node 2": n.key2, "controller": "controller", "billing": "billing",
        "runner": "runner", "local": "local",
    }  # fmt: skip


def _client(name: str) -> set[str]:
    return {f"discover {name}", f"batch {name}", *(f"{verb} {name}" for verb in ("open", "close", "ping", "model-cache"))}


def _node(name: str, inboxes: Iterable[str]) -> set[str]:
    return {
        *(f"inbox {who}" for who in inboxes), "two words",
        f"done of {name}", f"fact node {name}", f"fact usage {name}", f"fact session {name}", f"telemetry {name}", f"journal {name}",
        f"who {name}", f"allow {name}", f"js flow batch {name}", "js flow",
    }  # fmt: skip


def may_publish(n: Names) -> Mapping[str, set[str]]:
    """Names of ``publishing`` by identity."""
    everything = publishing(n)
    controller = {name for name, subject in everything.items() if subject.startswith(("wooly.evt.", "$JS.API.", "$JS.FC.", "$KV."))}
    controller |= {name for name in everything if name.endswith(" controller") and name.split()[0] not in ("batch", "inbox", "read")}
    return {
        "A": _client("A"),
        "B": _client("B"),
        "watcher": {"discover watcher", "stats watcher"},
        "node 1": _node("n1", _people(n)) | {"ping node 1", "read node 1"},
        "node 2": _node("n2", _people(n)) | {"read node 2"},
        "controller": controller | {"gone", "run script", "run state"},
        "runner": {"run log", "run beat", "run req.sync", "run req.report"},
        "billing": {"fact budget", "fact tier", "lease", "kv secret", "js kv secret", "js info events", "js read events", "js get events",
                    "js flow", "js flow secret", "js drop reader",
                    *(f"js read {area}" for area in ("access", "config", "budget", "tier", "task"))},
    }  # fmt: skip


def may_hear(n: Names) -> Mapping[str, set[str]]:
    """Names of ``hearing`` by identity."""
    return {
        "A": {"inbox A", "done A"},
        "B": {"inbox B", "done B"},
        "watcher": {"inbox watcher", "telemetry"},
        "node 1": {"inbox node 1", "discover", "requests n1", "gone"},
        "node 2": {"inbox node 2", "discover", "requests n2", "gone"},
        "controller": {"inbox controller", "telemetry", "facts", "fact access", "who", "read", "kv", "run logs", "run syncs", "run beats"},
        "runner": {"inbox runner"},
        "billing": {"inbox billing", "allow"},
    }
