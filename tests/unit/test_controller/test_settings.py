"""The environment of a controller: defaults, and a message that names the variable."""

from __future__ import annotations

import pytest

from services.controller.settings import Settings
from services.kit.errors import SettingError

BUS = {"WOOLY_NATS_URL": "nats://a:4222"}


def test_defaults() -> None:
    settings = Settings.from_environment(BUS)
    assert (settings.address, settings.etcd_url, settings.overcommit_percent) == (("127.0.0.1", 8080), "", 0)
    assert (settings.node_lease_ms, settings.start_lease_ms) == (5_000, 120_000)


def test_the_nodes_name_for_the_bus_will_do() -> None:
    assert Settings.from_environment({"CONTROLLER_NATS_URL": "nats://b,nats://c"}).nats_url == "nats://b,nats://c"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CONTROLLER_DEFAULT_VRAM_OVERCOMMIT_PERCENT", "1001"),
        ("CONTROLLER_DEFAULT_VRAM_OVERCOMMIT_PERCENT", "-1"),
        ("CONTROLLER_DEFAULT_VRAM_OVERCOMMIT_PERCENT", "٣"),
        ("CONTROLLER_NODE_LEASE_MS", "5s"),
        ("CONTROLLER_START_LEASE_MS", "0"),
        ("WOOLY_HTTP", ":8080"),
        ("WOOLY_HTTP", "host:99999"),
        ("WOOLY_NATS_URL", ""),
    ],
)
def test_a_bad_value_is_named(name: str, value: str) -> None:
    with pytest.raises(SettingError, match=name):
        Settings.from_environment({**BUS, name: value})
