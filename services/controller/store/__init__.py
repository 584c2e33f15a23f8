"""Configuration stores: one protocol, two stores (a JetStream key-value bucket, etcd), one conformance suite for both."""

from services.controller.store.base import (
    Change,
    ConfigStore,
    Entry,
    Lease,
    LeaseLost,
    StoreConflict,
    StoreError,
    StoreUnavailable,
    check_key,
)
from services.controller.store.etcd import EtcdStore
from services.controller.store.jetstream import JetStreamStore
from services.kit.bus import Bus

__all__ = [
    "ConfigStore", "Entry", "Change", "Lease", "StoreError", "StoreConflict", "StoreUnavailable", "LeaseLost", "check_key", "open_store",
]  # fmt: skip

_BUCKET = "wooly_config"


async def open_store(bus: Bus, etcd_url: str) -> ConfigStore:
    """The store in etcd if ``etcd_url`` names one, else a bucket on the bus. Raises StoreUnavailable when the store does not answer,
    SettingError for a malformed URL."""
    if etcd_url:
        etcd = EtcdStore(etcd_url)
        await etcd.open()
        return etcd
    bucket = JetStreamStore(bus, _BUCKET)
    await bucket.open(_BUCKET)
    return bucket
