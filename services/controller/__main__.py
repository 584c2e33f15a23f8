"""``python -P -m services.controller``: run a controller until SIGTERM or SIGINT.

Environment: WOOLY_NATS_URL (or CONTROLLER_NATS_URL: the bus), WOOLY_HTTP (host:port, default 127.0.0.1:8080), WOOLY_ETCD_URL (configuration
in etcd instead of a bucket on the bus), CONTROLLER_DEFAULT_VRAM_OVERCOMMIT_PERCENT, CONTROLLER_NODE_LEASE_MS, CONTROLLER_START_LEASE_MS.

Bootstrap keys are given to the controller at its start and recorded in the log once; a key of the log, revoked ones too, stays as it is.
WOOLY_BOOTSTRAP_KEY holds an admin key made by ``wooly keys generate`` (``wooly up --secure`` makes one). An operator who has lost every key
sets a new one and restarts the controller. WOOLY_BOOTSTRAP_NODES names a file of the installation's node and viewer keys; it holds hashes,
no secrets.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from billing.tiers import TierBook
from bus_schemas.events import ActionTaken, Event, KeyIssued
from services.controller.actions import TaskActions
from services.controller.app import make_app
from services.controller.bus_guard import BusGuard
from services.controller.configuration import Configuration
from services.controller.journals import Journals
from services.controller.log_projection import LogProjection
from services.controller.metrics import Gauges
from services.controller.oidc import OidcProvider
from services.controller.parts import Parts
from services.controller.personal import PersonalKeys
from services.controller.placer import Placer
from services.controller.reconciler import Reconciler
from services.controller.run_book import BudgetCrossings
from services.controller.runs import Runs
from services.controller.settings import Settings
from services.controller.store import ConfigStore
from services.controller.store.etcd import EtcdStore
from services.controller.store.jetstream import JetStreamStore
from services.controller.syslog import Syslog
from services.controller.web.context import UiContext
from services.controller.web.history import PriceBook
from services.controller.web.site import WEB_ROUTES, Web
from services.controller.writer import Writer
from services.kit.access import AccessView
from services.kit.access.access import Access, hosts_of, open_access
from services.kit.access.tokens import parse_key
from services.kit.at_rest import AT_REST_VARIABLE, read_key_wrap
from services.kit.bus import Bus, connect
from services.kit.credentials import file_text
from services.kit.errors import SettingError
from services.kit.http import serve
from services.kit.keyring import NODES_VARIABLE, NodeKey
from services.kit.log import get_logger
from services.kit.process import history_stays, ready, run_service

BOOTSTRAP_KEY: Final = "WOOLY_BOOTSTRAP_KEY"
_ACTOR: Final = "bootstrap"
_BUCKET: Final = "wooly_config"


async def bootstrap(environment: Mapping[str, str], access: Access, projection: LogProjection, writer: Writer) -> None:
    """Record the key, and warn when no identity can log in. Raises SettingError for an invalid key."""
    if not access.on:
        return
    text = environment.get(BOOTSTRAP_KEY, "").strip() or file_text(environment, f"{BOOTSTRAP_KEY}_FILE")
    if text:
        await _take_over(text, access, projection, writer)
    if not projection.fold(AccessView).ways_in(time.time_ns()):
        get_logger().warning(
            "no user or key can log in: make a key with `wooly keys generate` and start again with it", setting=BOOTSTRAP_KEY
        )


async def _take_over(text: str, access: Access, projection: LogProjection, writer: Writer) -> None:
    key = parse_key(text)
    if key is None:
        raise SettingError(f"{BOOTSTRAP_KEY} is no API key; make one with `wooly keys generate`")
    if key.id in projection.fold(AccessView).keys:
        return
    phc = await access.checker.hasher.hash_secret(key.secret)
    await _record(KeyIssued(time.time_ns(), key.id, "", "", "admin", phc, title="first key"), "issued: admin", writer)


async def _record(issued: KeyIssued, detail: str, writer: Writer) -> None:
    """Append the key, unless the log has it."""

    def decide(view: AccessView) -> tuple[str, list[Event]] | None:
        if issued.key in view.keys:
            return None
        get_logger().info("a bootstrap key becomes valid", key=issued.key, title=issued.title)
        return issued.key, [issued, ActionTaken(issued.at_ns, _ACTOR, "", "key.write", issued.key, detail)]

    await writer.change_access(decide)


def _read(path: str) -> list[NodeKey]:
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=list[NodeKey])
    except (OSError, msgspec.DecodeError) as error:
        raise SettingError(f"{NODES_VARIABLE}={path} cannot be read: {error}") from None


async def bootstrap_nodes(environment: Mapping[str, str], writer: Writer) -> None:
    """Issue the keys that the log does not have. Raises SettingError."""
    path = environment.get(NODES_VARIABLE, "").strip()
    for key in _read(path) if path else ():
        role = "node" if key.node else "viewer"
        issued = KeyIssued(time.time_ns(), key.key, "", "", role, key.secret_hash, title=key.name, node=key.node)
        await _record(issued, f"issued: {key.name}", writer)


def audit_key(environment: Mapping[str, str]) -> Ed25519PrivateKey | None:
    """The key in the file that WOOLY_AUDIT_KEY names; None when it is not set. Raises SettingError."""
    text = file_text(environment, "WOOLY_AUDIT_KEY")
    if not text:
        return None
    try:
        key = load_pem_private_key(text.encode(), None)
    except (ValueError, TypeError) as error:
        raise SettingError(f"WOOLY_AUDIT_KEY holds no private key: {error}") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise SettingError("WOOLY_AUDIT_KEY is no Ed25519 key")
    return key


async def open_store(bus: Bus, etcd_url: str) -> ConfigStore:
    """The store in etcd if ``etcd_url`` names one, else a bucket on the bus. Raises StoreUnavailable when the store does not answer,
    SettingError for a malformed URL, or one in plain text beyond loopback."""
    if etcd_url:
        etcd = EtcdStore(etcd_url, os.environ)
        await etcd.open()
        return etcd
    bucket = JetStreamStore(bus, _BUCKET)
    await bucket.open(_BUCKET)
    return bucket


async def serve_until(stop: asyncio.Event, settings: Settings) -> None:
    """Run every part of a controller until ``stop`` is set. Raises when a part fails."""
    async with contextlib.AsyncExitStack() as stack:
        bus = await connect(settings.nats_url, name="controller")
        stack.push_async_callback(bus.close)
        await bus.ensure_streams()
        store = await open_store(bus, settings.etcd_url)
        stack.push_async_callback(store.close)
        personal = await stack.enter_async_context(PersonalKeys(bus, read_key_wrap(os.environ.get(AT_REST_VARIABLE, "").strip())))
        projection = LogProjection(bus, personal)
        projection.also(TierBook)
        projection.also(PriceBook)
        projection.also(BudgetCrossings)
        with history_stays():
            await stack.enter_async_context(projection)
        access = await open_access(
            bus,
            os.environ,
            listens_on=[settings.address[0], *hosts_of(settings.nats_url)],
            view=lambda: projection.fold(AccessView),
            follows_log=lambda: projection.connected and projection.failure is None,
            pages=True,
        )
        stack.callback(access.close)
        writer = Writer(bus, projection, personal)
        gauges = Gauges(bus)
        placer = Placer(projection, writer)
        tasks = TaskActions(projection, writer, placer)
        runs = Runs(bus, projection, writer, tasks, access)
        reconciler = Reconciler(
            bus=bus,
            store=store,
            projection=projection,
            gauges=gauges,
            writer=writer,
            placer=placer,
            runs=runs,
            node_lease_ms=settings.node_lease_ms,
            start_lease_ms=settings.start_lease_ms,
        )
        await stack.enter_async_context(gauges)
        configuration = Configuration(store, projection, writer)
        await configuration.start(settings.overcommit_percent)
        await bootstrap(os.environ, access, projection, writer)
        await bootstrap_nodes(os.environ, writer)
        guard = await stack.enter_async_context(BusGuard.from_environment(settings.nats_url, bus, access, projection))
        await stack.enter_async_context(runs)
        oidc = OidcProvider.from_environment(os.environ)
        if oidc is not None:
            await stack.enter_async_context(oidc)
        parts = Parts(
            projection=projection,
            gauges=gauges,
            writer=writer,
            configuration=configuration,
            reconciler=reconciler,
            access=access,
            journals=Journals(settings.nats_url),
            runs=runs,
            tasks=tasks,
            guard=guard,
            audit_key=audit_key(os.environ),
            oidc=oidc,
        )
        syslog = Syslog.from_environment(os.environ, store, projection, lambda: reconciler.on_duty)
        context = await stack.enter_async_context(UiContext.from_environment())
        web = Web.over(parts, access, context)
        app = make_app(parts, access, more_routes=WEB_ROUTES)
        app.state.web = web
        http = await stack.enter_async_context(serve(app, settings.address))
        get_logger().info("controller listening", http=http, position=projection.position)
        async with asyncio.TaskGroup() as group:
            beside = [
                group.create_task(reconciler.run()),
                group.create_task(configuration.follow()),
                group.create_task(parts.access_log.record_refusals_forever()),
                group.create_task(web.live.run()),
                *([group.create_task(syslog.run())] if syslog is not None else ()),
                group.create_task(web.read_past(bus)),
            ]
            ready({"http": http})
            await stop.wait()
            for task in beside:
                task.cancel()


if __name__ == "__main__":
    sys.exit(run_service("controller", lambda stop: serve_until(stop, Settings.from_environment())))
