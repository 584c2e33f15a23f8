"""Configuration: sources override each other in the documented order, and every bad value is answered by a usable error."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from bus_schemas.runs import LOGS_STREAM, RUNS_STREAM
from bus_schemas.subjects import EVENTS_STREAM, JOURNAL_STREAM, TELEMETRY_STREAM
from services.billing.allowances import LEASES_STREAM
from wooly import config
from wooly.config import KEYS, Config, load
from wooly.errors import ConfigError

BUS = "nats://bus:4222"
STREAMS = {EVENTS_STREAM, TELEMETRY_STREAM, JOURNAL_STREAM, RUNS_STREAM, LOGS_STREAM, LEASES_STREAM}
"""Names that look like those of variables."""


def write(path: Path, text: str) -> dict[str, str]:
    """A config file with ``text``, and the environment that names it."""
    path.write_text(text)
    return {"WOOLYAI_CLIENT_CONFIG": str(path)}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder without a config file."""
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_defaults_are_those_of_the_product() -> None:
    found = load(environ={})
    assert found == Config()
    assert (found.priority, found.gpu_count, found.gpu_mode, found.swap_from_vram, found.weights_dedup) == (2, 1, "Shared", True, False)
    assert found.device_indices == (0,) and found.vram_quota_bytes == 0


def test_flags_over_environment_over_file(tmp_path: Path) -> None:
    environ = write(tmp_path / "config", 'PRIO = 1\nGPU_MODE = "Exclusive"\nWOOLY_TENANT = "file"\n')
    environ |= {"PRIO": "2", "WOOLY_TENANT": "environment"}
    found = load({"PRIO": "3"}, environ)
    assert (found.prio, found.tenant, found.gpu_mode) == (3, "environment", "Exclusive")
    assert found.origin == {
        "PRIO": "from the flag --prio",
        "WOOLY_TENANT": "from the environment",
        "GPU_MODE": f"from {tmp_path / 'config'}",
    }


def test_the_default_file_is_read(home: Path) -> None:
    (home / ".config" / "wooly").mkdir(parents=True)
    (home / ".config" / "wooly" / "config").write_text(f'WOOLY_NATS_URL = "{BUS}"\nREQUIRED_VRAM = 8000\n')
    found = load(environ={})
    assert found.nats_urls == (BUS,) and found.vram_quota_bytes == 8000 << 20
    assert config.is_enabled({})


@pytest.mark.parametrize(
    ("environ", "field", "value"),
    [
        ({"PRIO": "4"}, "prio", 4),
        ({"GPUS": "2,0"}, "gpus", (2, 0)),
        ({"GPU_MODE": "exclusive"}, "gpu_mode", "Exclusive"),
        ({"WOOLYAI_WEIGHTS_DEDUP": "true"}, "weights_dedup", True),
        ({"WOOLYAI_SWAP_FROM_VRAM": "0"}, "swap_from_vram", False),
        ({"WOOLY_CPU_FALLBACK": "0"}, "cpu_fallback", False),
        ({"WOOLY_LOCAL_GPU": "1"}, "local_gpu", True),
        ({"WOOLY_DEBUG": " 1 "}, "debug", True),
        ({"WOOLY_CHECK": "CPU"}, "check", "cpu"),
        ({"WOOLY_CHECK": "off"}, "check", "off"),
        ({"WOOLY_CHECK_DIR": "/tmp/found"}, "check_dir", "/tmp/found"),
        ({"WOOLY_NATS_URL": "nats://a:1, tls://user:pw@b:2"}, "nats_urls", ("nats://a:1", "tls://user:pw@b:2")),
        ({"WOOLY_NATS_URL": "nats://[::1]:4222"}, "nats_urls", ("nats://[::1]:4222",)),
        ({"PRIO": ""}, "prio", None),
        ({"WOOLY_WEIGHT": "250"}, "weight", 250),
        ({"WOOLY_SLA_MS_P99": "20"}, "sla_ms_p99", 20),
        ({"WOOLY_PACE_PERCENT": "30"}, "pace_percent", 30),
        ({"WOOLY_VRAM_WAIT_MS": "0"}, "vram_wait_ms", 0),
    ],
)
def test_values(environ: dict[str, str], field: str, value: Any) -> None:
    assert getattr(load(environ=environ), field) == value


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("PRIO", "5"),
        ("PRIO", "-1"),
        ("PRIO", "high"),
        ("GPU_COUNT", "0"),
        ("GPU_MODE", "both"),
        ("GPUS", "0,0"),
        ("GPUS", "a"),
        ("REQUIRED_VRAM", "8GB"),
        ("REQUIRED_VRAM", "0"),
        ("CONTROLLER_URL", "controller:8080"),
        ("CONTROLLER_URL", "ftp://controller"),
        ("WOOLY_NATS_URL", "bus:4222"),
        ("WOOLY_NATS_URL", "nats://bus:99999"),
        ("WOOLYAI_SWAP_FROM_VRAM", "2"),
        ("WOOLY_TENANT", "a b"),
        ("WOOLY_TENANT", "a.b"),
        ("WOOLY_WEIGHT", "0"),
        ("WOOLY_WEIGHT", "10001"),
        ("WOOLY_SLA_MS_P99", "0"),
        ("WOOLY_PACE_PERCENT", "0"),
        ("WOOLY_PACE_PERCENT", "101"),
        ("WOOLY_VRAM_WAIT_MS", "-1"),
    ],
)
def test_a_bad_value_names_key_value_source_and_what_is_allowed(key: str, value: str) -> None:
    allowed = next(k.allowed for k in KEYS if k.name == key)
    with pytest.raises(ConfigError) as caught:
        load(environ={key: value})
    assert str(caught.value) == f"{key}={value!r} (from the environment) is not allowed; use {allowed}"


def test_errors_keep_passwords_to_themselves() -> None:
    with pytest.raises(ConfigError) as caught:
        load(environ={"WOOLY_NATS_URL": "nats://user:secret@bus:99999"})
    assert "secret" not in str(caught.value) and "bus:99999" in str(caught.value)


@pytest.mark.parametrize(("environ", "priority"), [({}, 2), ({"PRIO": "0"}, 0), ({"PRIO": "4"}, 4), ({"WOOLY_SLA_MS_P99": "20"}, 0)])
def test_the_priority_without_a_controller_is_the_middle(environ: dict[str, str], priority: int) -> None:
    assert load(environ=environ).priority == priority


@pytest.mark.parametrize(("name", "value"), [("WOOLY_QUEUE", "1"), ("WOOLY_TASK_ID", "t1"), ("CONTROLLER_NODE_GROUP_IDS", "red")])
def test_what_only_a_controller_can_do_needs_one(name: str, value: str) -> None:
    with pytest.raises(
        ConfigError, match=f"{name}='{value}' \\(from the environment\\) needs a controller; set CONTROLLER_URL or unset it"
    ):
        load(environ={name: value})
    load(environ={name: value}, task=False)
    load(environ={name: value, "CONTROLLER_URL": "http://c:1"})


@pytest.mark.parametrize(
    ("given", "goes_on"),
    [({}, False), ({"WOOLY_ON_FAILURE": "cpu"}, True), ({"WOOLY_ON_FAILURE": "fail"}, False), ({"WOOLY_ON_FAILURE": "gpu"}, False)],
)
def test_going_on_without_the_device_is_read_by_itself(tmp_path: Path, given: dict[str, str], goes_on: bool) -> None:
    broken = write(tmp_path / "config", "PRIO = 99")
    assert config.goes_on_without({}, {**broken, **given, "GPUS": "nonsense"}) is goes_on
    assert config.goes_on_without(given, broken) is goes_on
    lines = "".join(f'{name} = "{value}"\n' for name, value in given.items())
    assert config.goes_on_without({}, write(tmp_path / "other", lines)) is goes_on
    assert config.goes_on_without({"WOOLY_ON_FAILURE": "fail"}, {**broken, **given}) is False


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({"CONTROLLER_URL": "http://c", "REQUIRED_VRAM": "1", "GPUS": "0"}, "GPUS='0' (from the environment) cannot be combined"),
        ({"CONTROLLER_NODE_GROUP_IDS": "a,b"}, "needs a controller; set CONTROLLER_URL"),
        ({"GPUS": "0,1", "GPU_COUNT": "3"}, "GPU_COUNT=3 (from the environment) disagrees with GPUS='0,1'"),
        (
            {"WOOLY_SLA_MS_P99": "20", "PRIO": "1"},
            "WOOLY_SLA_MS_P99=20 (from the environment) contradicts PRIO=1 (from the environment): a latency target needs PRIO 0",
        ),
        (
            {"WOOLY_SLA_MS_P99": "20", "WOOLY_PACE_PERCENT": "50"},
            "WOOLY_SLA_MS_P99=20 (from the environment) contradicts WOOLY_PACE_PERCENT=50 (from the environment)",
        ),
    ],
)
def test_keys_that_contradict_each_other(environ: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(environ=environ)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("PRIO = ", "is not valid TOML"),
        ("PRIOR = 1", "PRIOR in {path} is not a known key (did you mean PRIO?)"),
        ("PRIO = true", "PRIO=True (from {path}) is not allowed"),
        ("[table]\nPRIO = 1", "table in {path} is not a known key"),
        ("GPUS = [0, [1]]", "GPUS=[0, [1]] (from {path}) is not allowed"),
    ],
)
def test_bad_files(tmp_path: Path, text: str, says: str) -> None:
    environ = write(tmp_path / "config", text)
    with pytest.raises(ConfigError) as caught:
        load(environ=environ)
    assert says.format(path=tmp_path / "config") in str(caught.value)


def test_a_named_file_must_exist(tmp_path: Path) -> None:
    environ = {"WOOLYAI_CLIENT_CONFIG": str(tmp_path / "missing")}
    with pytest.raises(ConfigError, match=r"WOOLYAI_CLIENT_CONFIG names .*missing, which does not exist"):
        load(environ=environ)


def test_a_folder_is_no_config_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load(environ={"WOOLYAI_CLIENT_CONFIG": str(tmp_path)})


def test_off_unless_a_bus_is_named(tmp_path: Path) -> None:
    assert not config.is_enabled({})
    assert not config.is_enabled({"WOOLY_NATS_URL": " ", "PRIO": "1"})
    assert config.is_enabled({"WOOLY_NATS_URL": BUS})
    assert not config.is_enabled(write(tmp_path / "other", "PRIO = 1"))


def test_every_flag_is_its_own() -> None:
    flags = [config.flag_name(key) for key in KEYS]
    assert len(set(flags)) == len(flags)
    assert config.flag_name(next(k for k in KEYS if k.name == "WOOLYAI_SWAP_FROM_VRAM")) == "--swap-from-vram"


def test_a_mistyped_variable_is_named_with_the_nearest() -> None:
    environ = {"WOOLY_WEIGTH": "200", "WOOLY_WEIGHT": "100", "WOOLY_BACKEND": "host", "WOOLYAI_CLIENT_CONFIG": "x", "WOOLYX": "1"}
    assert config.unknown_variables(environ) == [
        "WOOLY_WEIGTH is not a variable that wooly knows, so it does nothing (did you mean WOOLY_WEIGHT?)"
    ]
    assert config.unknown_variables({"WOOLY_QZX": "1"}) == ["WOOLY_QZX is not a variable that wooly knows, so it does nothing"]


def test_every_variable_that_a_service_reads_is_known() -> None:
    root, names = Path(__file__).parents[2], set()
    for package in ("wooly", "services", "jit", "scheduler", "billing", "bus_schemas"):
        for path in (root / package).rglob("*.py"):
            names |= set(re.findall(r"[\"'](WOOLY(?:AI)?_[A-Z0-9_]+)[\"']", path.read_text()))
    assert names > STREAMS and config.unknown_variables(dict.fromkeys(names - STREAMS, "1")) == []
