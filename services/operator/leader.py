"""Which of several operators acts: the holder of a Lease.

A lease that was not renewed for a term, by this process's own clock since it last saw it change, is taken over. A holder that could not
renew for a whole term raises: another one acts by then. Source: the Kubernetes reference of Lease (coordination.k8s.io/v1).
"""

from __future__ import annotations

import asyncio
import datetime
import random
from typing import Final

from lightkube import ApiError, AsyncClient
from lightkube.models.coordination_v1 import LeaseSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.coordination_v1 import Lease

from services.kit.errors import StartError
from services.kit.log import get_logger
from services.operator.watching import API_ERRORS

TERM_S: Final = 5.0
_NAME: Final = "wooly-operator"


class Leader:
    """``leading`` is set while this process holds the lease."""

    def __init__(self, kube: AsyncClient, namespace: str, identity: str, term_s: float = TERM_S) -> None:
        self._kube = kube
        self._namespace = namespace
        self._identity = identity
        self._term_s = term_s
        self._seen: tuple[str, object] = ("", None)
        self._seen_s = self._renewed_s = 0.0
        self.leading = asyncio.Event()

    async def run(self) -> None:
        """Take the lease, and renew it. Raises StartError when it is lost."""
        clock = asyncio.get_running_loop().time
        while True:
            began_s = clock()
            try:
                async with asyncio.timeout(min(self._term_s / 3, self._left_s(began_s))):
                    if await self._take(began_s):
                        self._renewed_s = began_s
                        if not self.leading.is_set():
                            get_logger().info("this operator leads", identity=self._identity)
                        self.leading.set()
            except (*API_ERRORS, TimeoutError) as error:
                get_logger().warning("the lease cannot be read or renewed", error=str(error) or "timeout")
            if self._left_s(clock()) <= 0:
                raise StartError(
                    f"the lease {self._namespace}/{_NAME} was not renewed for {self._term_s:g} s; another operator may hold it"
                )
            await asyncio.sleep(min(self._term_s / 3 * random.uniform(0.8, 1.0), self._left_s(clock())))

    def _left_s(self, now_s: float) -> float:
        """Until another operator may take the lease of this one."""
        return self._renewed_s + self._term_s - now_s if self.leading.is_set() else self._term_s

    async def release(self) -> None:
        """Let another operator take over at once."""
        if self.leading.is_set():
            lease = await self._kube.get(Lease, _NAME, namespace=self._namespace)
            if lease.spec is not None and lease.spec.holderIdentity == self._identity:
                lease.spec.holderIdentity = ""
                await self._kube.replace(lease)

    async def _take(self, now_s: float) -> bool:
        """Whether this process holds the lease now. Raises StartError when it did and another one does, API_ERRORS."""
        now = datetime.datetime.now(datetime.UTC)
        now = now.replace(microsecond=now.microsecond or 1)  # the API server wants the fraction
        try:
            lease = await self._kube.get(Lease, _NAME, namespace=self._namespace)
        except ApiError as error:
            if error.status.code != 404:
                raise
            spec = LeaseSpec(
                holderIdentity=self._identity, leaseDurationSeconds=round(self._term_s), acquireTime=now, renewTime=now, leaseTransitions=0
            )
            return await self._written(Lease(metadata=ObjectMeta(name=_NAME, namespace=self._namespace), spec=spec), new=True)
        held = lease.spec or LeaseSpec()
        holder = held.holderIdentity or ""
        if (holder, held.renewTime) != self._seen:
            self._seen, self._seen_s = (holder, held.renewTime), now_s
        if holder != self._identity:
            if self.leading.is_set():
                raise StartError(f"the lease {self._namespace}/{_NAME} is held by {holder or 'no operator'} now")
            if holder and now_s - self._seen_s < self._term_s:
                return False
            held.acquireTime, held.leaseTransitions = now, (held.leaseTransitions or 0) + 1
        held.holderIdentity, held.renewTime, held.leaseDurationSeconds = self._identity, now, round(self._term_s)
        lease.spec = held
        return await self._written(lease, new=False)

    async def _written(self, lease: Lease, *, new: bool) -> bool:
        """False when another operator was faster. Raises API_ERRORS."""
        try:
            await (self._kube.create(lease) if new else self._kube.replace(lease))
        except ApiError as error:
            if error.status.code == 409:
                return False
            raise
        return True
