"""API keys for pods: the token of a pod's service account, issued for audience ``wooly``, is exchanged for a key of the tenant of its
namespace, so that no pod is given a secret. A key is good for a week, longer than most jobs run, and is given to all pods of a namespace
that ask within an hour, unless it is revoked: each new key is an event in the log.

Source: the Kubernetes reference of TokenReview (authentication.k8s.io/v1).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import ClassVar, Final

from lightkube import AsyncClient
from lightkube.models.authentication_v1 import TokenReviewSpec
from lightkube.resources.authentication_v1 import TokenReview

from services.kit.errors import RequestError
from services.operator.admission import AUDIENCE
from services.operator.objects import TenantPolicy, policy_of
from services.operator.watching import API_ERRORS
from wooly.api import Client
from wooly.errors import ApiError, WoolyError

__all__ = ["Keys", "NoKey"]

_GOOD_S: Final = 7 * 86_400
_GIVEN_S: Final = 3_600
_TOKEN_CHARS_MAX: Final = 16_384
_ACCOUNT: Final = "system:serviceaccount:"


class NoKey(RequestError):
    """The token is not good for a key."""

    status, kind, title = 403, "forbidden", "No key"


class Away(NoKey):
    """What has to be asked does not answer."""

    status: ClassVar[int] = 503
    kind, title = "unavailable", "Not available now"


class Keys:
    def __init__(self, kube: AsyncClient, policies: Callable[[], tuple[TenantPolicy, ...]], wooly: Callable[[str], Client | None]) -> None:
        """``wooly(key)``: the controller, asked with that key; empty: with one that may make others. None while it is not known."""
        self._kube = kube
        self._policies = policies
        self._wooly = wooly
        #: by namespace and tenant: a key, and the time until which it is given out
        self._held: dict[tuple[str, str], tuple[str, float]] = {}
        self._making = asyncio.Lock()

    async def exchange(self, token: str) -> str:
        """A key of the tenant. Raises NoKey."""
        if not token or len(token) > _TOKEN_CHARS_MAX:
            raise NoKey("send the pod's service account token, for audience wooly, as Authorization: Bearer ...")
        try:
            review = await self._kube.create(TokenReview(spec=TokenReviewSpec(token=token, audiences=[AUDIENCE])))
        except API_ERRORS as error:
            raise Away(f"the API server does not check the token ({error}); repeat it") from None
        status = review.status
        name = (status.user.username if status is not None and status.user is not None else None) or ""
        if status is None or not status.authenticated or AUDIENCE not in (status.audiences or ()) or not name.startswith(_ACCOUNT):
            raise NoKey("the token is not one of a service account of this cluster for audience wooly, or it has expired")
        namespace = name.removeprefix(_ACCOUNT).partition(":")[0]
        policy = policy_of(self._policies(), namespace)
        if policy is None:
            raise NoKey(f"no TenantPolicy names namespace {namespace}; add it to spec.namespaces of one")
        async with self._making:
            return await self._key(namespace, policy.tenant)

    async def _key(self, namespace: str, tenant: str) -> str:
        """Raises Away."""
        now_s = time.monotonic()
        key, until_s = self._held.get((namespace, tenant), ("", 0.0))
        if now_s < until_s and await asyncio.to_thread(self._is_good, key):
            return key
        client = self._wooly("")
        if client is None:
            raise Away("the operator has found no WoolyCluster yet; repeat it")
        title = f"pods of namespace {namespace}"
        create = partial(client.create_key, title=title, tenant=tenant, role="member", scopes=("submit", "bus"), expires_in_s=_GOOD_S)
        try:
            made = await asyncio.to_thread(create)
        except WoolyError as error:
            raise Away(f"the controller makes no key: {error}") from None
        self._held[namespace, tenant] = made.key, now_s + _GIVEN_S
        return made.key

    def _is_good(self, key: str) -> bool:
        """Whether the controller knows the key; while it does not answer, it may. Blocks."""
        try:
            client = self._wooly(key)
            return client is None or bool(client.identity())
        except ApiError as error:
            return error.status != 401
        except WoolyError:
            return True
