"""A node's configuration: stable identity, short socket paths, errors that name the variable."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.kit.errors import SettingError
from services.server.settings import Settings


def test_identity_follows_the_name() -> None:
    one = Settings.from_environment({"NODE_NAME": "gpu-1"})
    assert one.node_id == Settings.from_environment({"NODE_NAME": "gpu-1", "NODE_ADDRESS": "10.0.0.1"}).node_id
    assert one.node_id != Settings.from_environment({"NODE_NAME": "gpu-2"}).node_id
    assert Settings.from_environment({"NODE_ID": "chosen"}).node_id == "chosen"


def test_the_controllers_bus_comes_first() -> None:
    urls = {"WOOLY_NATS_URL": "nats://a:1", "CONTROLLER_NATS_URL": "nats://b:1,nats://c:1"}
    assert Settings.from_environment(urls).nats_url == "nats://b:1,nats://c:1"


def test_socket_paths_fit_the_kernel_however_deep_the_folder(tmp_path: Path) -> None:
    settings = Settings.from_environment({"NODE_NAME": "n", "WOOLY_DATA_DIR": str(tmp_path / ("deep" * 50))})
    executor = settings.executor(0, settings.run_dir())
    assert len(executor.data_socket.encode()) < 100
    other = Settings.from_environment({"NODE_NAME": "n", "WOOLY_DATA_DIR": str(tmp_path)})
    assert other.run_dir() != settings.run_dir()


@pytest.mark.parametrize(
    ("key", "value"), [("WOOLY_DEVICE_THREADS", "0"), ("WOOLY_DEVICE_VRAM_MB", "lots"), ("WOOLY_LEASE_MS", "-5"), ("NODE_ID", "a.b")]
)
def test_bad_values_are_named(key: str, value: str) -> None:
    with pytest.raises(SettingError, match=key):
        Settings.from_environment({key: value})
