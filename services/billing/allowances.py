"""Grants nodes leases on the budgets of their tenants. Any replica may answer; the leases are in a stream."""

from __future__ import annotations

import time
from typing import Any, Final

import blake3
import msgspec

from billing.allowance import Leases, binding, lend, unlimited
from bus_schemas.allowance import ALLOWANCE_ALL, MICRO_MAX, Allowance, AllowancesGiven, AskAllowances, TenantUse
from bus_schemas.limits import MALFORMED
from services.billing.projection import BillingProjection
from services.kit.bus import Bus
from services.kit.errors import BusRefused, BusUnavailable, Conflict
from services.kit.log import get_logger

LEASES_STREAM: Final = "WOOLY_LEASES"
_SUBJECT: Final = "wooly.lease.allow."
_QUEUE: Final = "billing"
_ATTEMPTS: Final = 20
_HOUR_NS: Final = 3_600 * 10**9
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(AskAllowances).decode
_write: Final = msgspec.json.Encoder().encode
_read: Final = msgspec.json.Decoder(Leases).decode


def _stream_config() -> dict[str, Any]:
    """The leases of each tenant as one value: only the last counts, and not for long."""
    return {
        "name": LEASES_STREAM,
        "subjects": [_SUBJECT + "*"],
        "storage": "file",
        "retention": "limits",
        "max_msgs_per_subject": 1,
        "max_age": _HOUR_NS,
        "allow_direct": True,
    }


class Allowances:
    """The request handler; call ``start`` once the view is caught up."""

    def __init__(self, bus: Bus, projection: BillingProjection) -> None:
        self._bus = bus
        self._projection = projection
        self._known: dict[str, tuple[int, Leases]] = {}

    async def start(self) -> None:
        await self._bus.ensure_stream(_stream_config())
        await self._bus.serve(ALLOWANCE_ALL, self._asked, queue=_QUEUE)

    async def _asked(self, subject: str, data: bytes) -> bytes | None:
        """The answer; None (silence) while there is none: the node then asks again."""
        node = subject.rsplit(".", 1)[1]
        try:
            asked = _decode(data)
        except MALFORMED:
            return None
        if asked.node != node or self._projection.failure is not None:
            return None
        serials = self._serials(asked)
        try:
            answers = [await self._allowance(asked, use, dict(serials)) for use in asked.tenants]
        except (BusUnavailable, BusRefused) as error:
            get_logger().warning("an allowance could not be given", node=node, problem=str(error))
            return None
        return _encode(AllowancesGiven(serials, tuple(answers)))

    def _serials(self, asked: AskAllowances) -> tuple[tuple[int, int], ...]:
        """The last usage fact of each device of the node that the view holds."""
        devices = self._projection.view.devices
        return tuple(
            (gpu, device.usage_serial) for (node, epoch, gpu), device in devices.items() if (node, epoch) == (asked.node, asked.epoch)
        )

    async def _allowance(self, asked: AskAllowances, use: TenantUse, serials: dict[int, int]) -> Allowance:
        """``serials``: the facts that the answer holds beyond; the view may have later ones by now."""
        subject = _SUBJECT + blake3.blake3(use.tenant.encode()).hexdigest()[:32]
        for _ in range(_ATTEMPTS):
            position, leases = await self._leases(subject)
            # The view may have changed while the leases were read: budgets and facts are taken from one view, after that.
            budgets, charged = self._projection.view.budgets, dict(self._serials(asked))
            now_ns = time.time_ns()
            left = binding(budgets, use.tenant, now_ns)
            if left is None:
                return unlimited(use.tenant)
            billed = {node: spent.total_micro for node, spent in budgets.spent.get(use.tenant, {}).items()}
            unbilled = use.running_micro + sum(micro for gpu, serial, micro in use.facts if serial > charged.get(gpu, 0))
            leases, allowance = lend(
                leases, asked.node, now_ns // 10**6, left=left, billed=billed, unbilled_micro=unbilled, busy=use.busy, tenant=use.tenant
            )
            since = sum(micro for gpu, serial, micro in use.facts if serials.get(gpu, 0) < serial <= charged.get(gpu, 0))
            allowance = msgspec.structs.replace(allowance, micro=min(allowance.micro + since, MICRO_MAX))
            try:
                position = await self._bus.publish_acked(subject, _write(leases), expect_last_on_subject=position, deadline_s=2.0)
            except Conflict:
                self._known.pop(subject, None)  # another replica has lent meanwhile
                continue
            self._known[subject] = position, leases
            return allowance
        raise BusUnavailable(f"the leases of tenant {use.tenant!r} are written by too many at once")

    async def _leases(self, subject: str) -> tuple[int, Leases]:
        """The leases as this replica wrote them last, or as the bus holds them. An unreadable record counts as no lease: the amounts lent
        before are forgotten, so a tenant may overrun its budget by them once, until those leases would have expired."""
        known = self._known.get(subject)
        if known is not None:
            return known
        position, data = await self._bus.message(LEASES_STREAM, last_by_subj=subject) or (0, b"")
        try:
            return position, _read(data) if data else Leases()
        except MALFORMED as error:
            get_logger().warning("leases that cannot be read are taken for none", subject=subject, problem=str(error))
            return position, Leases()
