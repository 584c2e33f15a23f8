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
from services.controller.store.choose import open_store

__all__ = [
    "ConfigStore", "Entry", "Change", "Lease", "StoreError", "StoreConflict", "StoreUnavailable", "LeaseLost", "check_key", "open_store",
]  # fmt: skip
