"""Settings of a controller, from environment variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from services.kit.errors import SettingError
from services.kit.http import parse_address
from services.kit.variables import integer


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of one controller."""

    nats_url: str
    etcd_url: str
    address: tuple[str, int]
    overcommit_percent: int
    node_lease_ms: int  #: silence after which a node is lost
    start_lease_ms: int  #: time in which a placed task must open its session

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        """Raises SettingError naming the variable."""
        nats_url = environment.get("WOOLY_NATS_URL") or environment.get("CONTROLLER_NATS_URL", "")
        if not nats_url:
            raise SettingError("WOOLY_NATS_URL is not set; give the address of the bus, for example nats://127.0.0.1:4222")
        return cls(
            nats_url=nats_url,
            etcd_url=environment.get("WOOLY_ETCD_URL", ""),
            address=parse_address(environment.get("WOOLY_HTTP", "127.0.0.1:8080")),
            overcommit_percent=integer(environment, "CONTROLLER_DEFAULT_VRAM_OVERCOMMIT_PERCENT"),
            node_lease_ms=integer(environment, "CONTROLLER_NODE_LEASE_MS"),
            start_lease_ms=integer(environment, "CONTROLLER_START_LEASE_MS"),
        )
