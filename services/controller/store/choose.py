"""Choice of the configuration store: etcd when WOOLY_ETCD_URL names one, else a bucket on the bus."""

from __future__ import annotations

from services.controller.store.base import ConfigStore
from services.controller.store.etcd import EtcdStore
from services.controller.store.jetstream import JetStreamStore
from services.kit.bus import Bus

__all__ = ["BUCKET", "open_store"]

BUCKET = "wooly_config"


async def open_store(bus: Bus, etcd_url: str) -> ConfigStore:
    """Raises StoreUnavailable when the store does not answer, SettingError for a malformed URL."""
    if etcd_url:
        etcd = EtcdStore(etcd_url)
        await etcd.open()
        return etcd
    bucket = JetStreamStore(bus, BUCKET)
    await bucket.open(BUCKET)
    return bucket
