"""A node's configuration: stable identity, short socket paths, errors that name the variable."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from scheduler.dispatch import DispatchConfig
from services.kit.errors import SettingError
from services.server.settings import Settings
from wooly_server.sandbox import EXECUTOR_UID

as_root = pytest.mark.skipif(os.getuid() != 0, reason="another user than root cannot become one")


@as_root
@pytest.mark.parametrize(
    ("environment", "user"),
    [
        ({}, (EXECUTOR_UID, EXECUTOR_UID)),
        ({"WOOLY_EXECUTOR_USER": "daemon"}, pwd.getpwnam("daemon")[2:4]),
        ({"WOOLY_EXECUTOR_USER": "1234"}, (1234, 1234)),
        ({"WOOLY_EXECUTOR_USER": "root"}, None),
        ({"WOOLY_EXECUTOR_USER": "0"}, None),
        ({"WOOLY_SANDBOX": "0"}, None),
    ],
)
def test_the_user_of_executors(environment: dict[str, str], user: tuple[int, int] | None) -> None:
    settings = Settings.from_environment(environment | {"WOOLY_CACHE_DIR": "/cache"})
    executor = settings.executor(0, settings.run_dir())
    assert executor.user == user and executor.cache_dir == ("/cache" if user is None else f"/cache/user-{user[0]}")


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
    ("key", "value"),
    [
        ("WOOLY_DEVICE_THREADS", "0"),
        ("WOOLY_DEVICE_VRAM_MB", "lots"),
        ("WOOLY_LEASE_MS", "-5"),
        ("NODE_ID", "a.b"),
        ("WOOLY_SCHED_POLICY", "random"),
        ("WOOLY_SCHED_QUANTUM_MS", "0"),
        ("WOOLY_SCHED_LOW_SLICE_MS", "0"),
        ("WOOLY_SCHED_AGING_MS", "-1"),
        ("WOOLY_SCHED_RESERVE_PERCENT", "91"),
        ("WOOLY_VRAM_OVERCOMMIT_PERCENT", "1001"),
        ("WOOLY_VRAM_OVERCOMMIT_PERCENT", "-1"),
        ("WOOLY_VRAM_RESERVE_MB", "-1"),
        ("WOOLY_SWAP_IDLE_MS", "soon"),
        ("WOOLY_SWAP_HOST_MB", "-1"),
        ("WOOLY_SWAP_DISK_MB", "1.5"),
        ("WOOLY_DEDUP_TRUST", "a"),
        ("WOOLY_MODEL_CACHE_MB", "-1"),
        ("WOOLY_EXECUTOR_PROCESSES", "-1"),
        pytest.param("WOOLY_EXECUTOR_USER", "no-such-user", marks=as_root),
        ("WOOLY_AT_REST_KEY_FILE", "/absent"),
        ("WOOLY_AT_REST_KEY_FILE", "/dev/null"),
        ("WOOLY_AT_REST_KEY_FILE", __file__),
    ],
)
def test_bad_values_are_named(key: str, value: str) -> None:
    with pytest.raises(SettingError, match=key):
        Settings.from_environment({key: value})


@pytest.mark.parametrize("trust", [";".join(f"a{n},b{n}" for n in range(65)), ",".join(f"a{n}" for n in range(65))])
def test_domains_that_devices_serve_one_at_a_time_are_few_enough_to_be_announced(trust: str) -> None:
    given = {"NODE_NAME": "n", "WOOLY_DEDUP_TRUST": trust}
    assert Settings.from_environment(given).trust.domains
    with pytest.raises(SettingError, match="WOOLY_DEDUP_TRUST: at most 64 groups"):
        Settings.from_environment(given | {"WOOLY_EXECUTOR_PER_DOMAIN": "1"})


def test_memory_of_devices(tmp_path: Path) -> None:
    plain = Settings.from_environment({"NODE_NAME": "n", "WOOLY_DATA_DIR": str(tmp_path)})
    assert plain.memory.reserve_bytes is None and plain.memory.overcommit_percent is None
    assert plain.executor(1, tmp_path).memory.swap_dir == str(tmp_path / "swap" / "gpu1")
    environment = {"WOOLY_VRAM_RESERVE_MB": "0", "WOOLY_VRAM_OVERCOMMIT_PERCENT": "0", "WOOLY_SWAP_DIR": "/swap", "WOOLY_SWAP_HOST_MB": "3"}
    given = Settings.from_environment(environment).memory
    assert (given.reserve_bytes, given.overcommit_percent, given.swap_host_bytes, given.swap_dir) == (0, 0, 3 << 20, "/swap")


def test_how_devices_are_shared() -> None:
    assert Settings.from_environment({"NODE_NAME": "n"}).dispatch == DispatchConfig()
    given = {"POLICY": "fifo", "QUANTUM_MS": "5", "LOW_SLICE_MS": "7", "AGING_MS": "2000", "RESERVE_PERCENT": "5"}
    config = Settings.from_environment({f"WOOLY_SCHED_{key}": value for key, value in given.items()}).dispatch
    assert (config.policy, config.quantum_ns, config.low_slice_ns) == ("fifo", 5_000_000, 7_000_000)
    assert (config.aging_ns, config.reserve_percent) == (2_000_000_000, 5)
