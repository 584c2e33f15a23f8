"""``python -P -m services.operator``: run the Kubernetes operator until SIGTERM or SIGINT.

Environment: OPERATOR_NAMESPACE (the namespace that it runs in), OPERATOR_NAME (default: this machine's name; one process a name),
OPERATOR_SERVICE (the service that leads to it), OPERATOR_WEBHOOK (the MutatingWebhookConfiguration), OPERATOR_START_LEASE_MS,
WOOLY_HTTP (host:port, default 0.0.0.0:8443), CONTROLLER_URL (default: the WoolyCluster's), WOOLY_API_KEY or WOOLY_API_KEY_FILE (the key of
an admin of the Wooly cluster), WOOLY_TLS_CA, WOOLY_DATA_DIR. Access to Kubernetes: the service account of its pod, or KUBECONFIG.

Rights that it needs there, in the whole cluster: list, watch pods, nodes, woolyclusters, gpupools, tenantpolicies, woolytasks; patch
pods, gpupools/status; create, patch events, woolytasks, woolytasks/status, configmaps; get, patch mutatingwebhookconfigurations; create
tokenreviews; get namespaces. In its own namespace: create, patch daemonsets; get, create, update secrets, leases.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
from lightkube import AsyncClient, ConfigError
from litestar import Litestar, Request, Response, get, post

from services.kit.errors import SettingError
from services.kit.http import serve
from services.kit.log import get_logger
from services.kit.problems import problem
from services.kit.process import first_of, ready, run_service
from services.kit.tls import CERT_VARIABLE, KEY_VARIABLE, client_context
from services.operator.admission import KEY_PATH, Injection, answer
from services.operator.certificates import Certificates
from services.operator.keys import Keys, NoKey
from services.operator.leader import Leader
from services.operator.objects import FIELD_MANAGER, WoolyCluster
from services.operator.reconciler import Kubernetes, Reconciler
from services.operator.settings import Settings
from services.operator.watching import API_ERRORS

_API_S = 10.0


async def serve_until(stop: asyncio.Event, settings: Settings) -> None:
    """Everything an operator is, for as long as ``stop`` is not set. Raises SettingError, StartError when it led and leads no more."""
    client_context(os.environ)  # raises SettingError for authorities that cannot be read
    try:
        client = AsyncClient(timeout=httpx2.Timeout(_API_S), field_manager=FIELD_MANAGER)
    except ConfigError as error:
        raise SettingError(f"no access to Kubernetes ({error}); run it in a pod with a service account, or set KUBECONFIG") from None
    certificates = Certificates(client, settings)
    poked = asyncio.Event()
    kube = Kubernetes(client, poked.set)
    reconciler = Reconciler(kube, settings, poked, lambda: _authorities(settings, certificates))
    leader = Leader(client, settings.namespace, settings.name)
    keys = Keys(client, lambda: kube.policies, reconciler.wooly)
    app = make_app(lambda: _injection(settings, kube.cluster), leader.leading.is_set, keys)
    environment = dict(os.environ)
    follow = [*(watched.follow() for watched in kube.all), leader.run()]
    if not environment.get(CERT_VARIABLE, "").strip():
        environment |= {CERT_VARIABLE: str(certificates.files[0]), KEY_VARIABLE: str(certificates.files[1])}
        follow.append(certificates.follow(leader.leading))
    else:
        certificates.ready.set()

    async def work() -> None:
        await kube.synced()
        await certificates.ready.wait()
        async with serve(app, settings.listen, environment) as http:
            get_logger().info("operator listening", http=http, name=settings.name)
            ready({"http": http})
            await leader.leading.wait()
            await reconciler.run()

    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(client.close)
        await first_of(stop, *(asyncio.create_task(one) for one in (*follow, work())))
        with contextlib.suppress(*API_ERRORS):
            await leader.release()


def make_app(injection: Callable[[], Injection | None], leading: Callable[[], bool], keys: Keys) -> Litestar:
    """HTTP of the operator: admission of pods, answered from memory; health; and keys for pods. ``injection()``: what pods are given; None
    while that is not known."""

    @post("/mutate", status_code=200)
    async def mutate(request: Request[Any, Any, Any]) -> Response[Any]:
        try:
            return Response(answer(await request.json(), injection()))
        except (KeyError, TypeError, AttributeError, ValueError):
            return problem(400, "invalid-body", "The body is not valid", "send an AdmissionReview of a pod (admission.k8s.io/v1)")

    @get("/health")
    async def health() -> dict[str, Any]:
        return {"leading": leading()}

    @post(KEY_PATH, status_code=200)
    async def key(request: Request[Any, Any, Any]) -> Response[Any]:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ").strip()
        try:
            return Response({"key": await keys.exchange(token)})
        except NoKey as error:
            return problem(error.status, error.kind, error.title, str(error))

    return Litestar([mutate, health, key], openapi_config=None, logging_config=None)


def _injection(settings: Settings, cluster: WoolyCluster | None) -> Injection | None:
    """What pods are given. They exchange tokens for keys where the operator has a key, over connections that they can verify."""
    trust = bool(settings.tls_ca)
    url = f"https://{settings.host}" if settings.api_key and trust else ""
    return None if cluster is None else Injection(cluster, url, trust)


def _authorities(settings: Settings, certificates: Certificates) -> str:
    """What pods verify the cluster and the operators with; empty: connections are in plain text."""
    return Path(settings.tls_ca).expanduser().read_text() + certificates.authority if settings.tls_ca else ""


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(__doc__)
        sys.exit(0)
    sys.exit(run_service("operator", lambda stop: serve_until(stop, Settings.from_environment())))
