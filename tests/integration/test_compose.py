"""docker-compose.yml says how our services are started; here each is started so, and its own health check asked."""

from __future__ import annotations

import json
import re
import shutil
import ssl
import subprocess
import sysconfig
import tomllib
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from services.kit.nats_server import MAX_PAYLOAD_BYTES
from services.kit.process import free_port, spawn, stop_process
from tests.support.compose import ROOT, Compose, LocalService, interpolate
from tests.support.etcd import Etcd, etcd_binary, tls_options
from tests.support.plane import wait_until

DOCUMENT: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, Any] = DOCUMENT["services"]


def nats_here(compose: Compose, folder: Path) -> None:
    """The configuration of the bus of the compose file; only folders are this machine's."""
    (folder / "etc").mkdir()
    (folder / "etc/keyring").symlink_to(compose.volume("keyring-bus"))
    for path in (ROOT / "deploy/nats").glob("*.conf"):
        shutil.copy(path, folder / "etc")
    for config in (folder / "etc/keyring").glob("*.conf"):
        config.write_text(config.read_text().replace("/etc/nats/keyring", str(folder / "etc/keyring")))


def start_nats(service: str, folder: Path, port: int, monitor: int, **environment: str) -> subprocess.Popen[bytes]:
    """A server of the bus, with the command of the compose file."""
    command = [str(Path(sysconfig.get_path("scripts")) / "nats-server")]
    for word in SERVICES[service]["command"]:
        text = interpolate(word, environment).replace("/etc/nats/", f"{folder}/etc/")
        command.append(re.sub("^/data", str(folder / f"store-{service}"), text))
    command += ["-a", "127.0.0.1", "-p", str(port), "-m", str(monitor)]
    with (folder / "nats.log").open("ab") as log:
        return spawn(command, stdout=log, stderr=log)


def wait_for_nats(monitor: int) -> None:
    def up() -> bool:
        try:
            path = SERVICES["nats"]["healthcheck"]["test"][-1].split()[-1].replace(":8222", f":{monitor}")
            with urllib.request.urlopen(path, timeout=1) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    wait_until(up)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Compose, dict[str, LocalService]]]:
    """Every service of ours, started and healthy. Without an etcd to be had, the controller's WOOLY_ETCD_URL is left out."""
    folder = tmp_path_factory.mktemp("compose")
    port, monitor = free_port(), free_port()
    with ExitStack() as stack:
        elsewhere = {("nats", 4222): port}
        binary, _ = etcd_binary()
        etcd = Etcd(binary, folder / "etcd", folder / "volumes/keyring-etcd")
        elsewhere["etcd", 2379] = int(etcd.url.rsplit(":", 1)[1])
        compose = Compose(folder, elsewhere, frozenset() if binary else frozenset({"etcd"}))
        made = compose.run_once("keyring")
        assert made.returncode == 0, made.stderr.decode()
        if binary:
            stack.enter_context(etcd)
        nats_here(compose, folder)
        stack.callback(stop_process, start_nats("nats", folder, port, monitor))
        wait_for_nats(monitor)
        services: dict[str, LocalService] = {}
        for name in compose.ours():
            if name == "keyring":
                continue
            services[name] = compose.start(name)
            stack.callback(services[name].stop)
        for service in services.values():
            service.wait_healthy(90)
        yield compose, services


def get(compose: Compose, service: str, port: int, path: str) -> Any:
    """As the first admin, who believes the certificate that clients are given."""
    part = compose.volume("keyring-controller")
    context = ssl.create_default_context(cafile=str(part / "ca.pem"))
    url = f"https://127.0.0.1:{compose.local_port(service, port)}{path}"
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {(part / 'admin.key').read_text()}"})
    with urllib.request.urlopen(request, timeout=30, context=context) as answer:
        return json.loads(answer.read())


def test_every_service_of_ours_is_healthy_as_written(running: tuple[Compose, dict[str, LocalService]]) -> None:
    _, services = running
    assert set(services) == {"controller", "billing", "server"}
    assert all(service.healthy() for service in services.values())


def test_the_node_is_known_to_the_controller_by_its_compose_name(running: tuple[Compose, dict[str, LocalService]]) -> None:
    compose, _ = running
    (node,) = get(compose, "controller", 8080, "/api/v1/nodes")["items"]
    environment = SERVICES["server"]["environment"]
    assert (node["name"], node["state"]) == (environment["NODE_NAME"], "ready")
    assert node["address"] == interpolate(environment["NODE_ADDRESS"], {})
    vram_mb = int(interpolate(environment["WOOLY_DEVICE_VRAM_MB"], {}))
    assert node["devices"][0]["vram_bytes"] == vram_mb << 20
    assert get(compose, "controller", 8080, "/api/v1/config")["default_vram_overcommit_percent"] == 0
    assert get(compose, "billing", 8082, "/health")["status"] == "ok"


def test_a_health_check_fails_when_its_service_is_down_and_all_end_cleanly(running: tuple[Compose, dict[str, LocalService]]) -> None:
    """Last in this file: it stops what the others use."""
    _, services = running
    codes = {name: service.stop() for name, service in services.items()}
    assert codes == dict.fromkeys(services, 0)
    assert not any(service.healthy() for service in services.values())


def test_three_servers_of_the_bus_find_each_other(tmp_path: Path) -> None:
    """With deploy/ha.env: each knows the two others, over TLS, and all agree on a stream."""
    given = dict(line.split("=", 1) for line in (ROOT / "deploy/ha.env").read_text().splitlines() if not line.startswith("#"))
    names = [name for name, service in SERVICES.items() if name == "nats" or given["COMPOSE_PROFILES"] in service.get("profiles", [])]
    assert given["WOOLY_BUS_URLS"].split(",") == [f"tls://{name}:4222" for name in names] and given["WOOLY_BUS_REPLICAS"] == "3"
    assert interpolate(SERVICES["controller"]["environment"]["WOOLY_NATS_URL"], given) == given["WOOLY_BUS_URLS"]
    compose = Compose(tmp_path, {})
    assert compose.run_once("keyring").returncode == 0
    nats_here(compose, tmp_path)
    ports, config = {name: (free_port(), free_port(), free_port()) for name in names}, (tmp_path / "etc/servers-3.conf")
    written = config.read_text()
    with ExitStack() as stack:
        for name, (port, monitor, route) in ports.items():
            text = written.replace("0.0.0.0:6222", f"127.0.0.1:{route}")
            for other in reversed(names):
                text = text.replace(f"//{other}:6222", f"//127.0.0.1:{ports[other][2]}")
            config.write_text(text)
            stack.callback(stop_process, start_nats(name, tmp_path, port, monitor, **given))
            wait_until(lambda monitor=monitor: _monitored(monitor, "varz") is not None)  # type: ignore[misc]  # bound now
        for _, monitor, _ in ports.values():
            wait_until(lambda monitor=monitor: _members(monitor) == set(names))  # type: ignore[misc]  # bound now
            assert {"tls_required": True, "tls_verify": True}.items() <= _monitored(monitor, "varz")["cluster"].items()
            wait_for_nats(monitor)


def _monitored(monitor: int, path: str) -> Any:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{monitor}/{path}", timeout=1) as answer:
            return json.loads(answer.read())
    except OSError:
        return None


def _members(monitor: int) -> set[str]:
    """The servers that this one has in its cluster, itself among them, once there is a leader."""
    meta = (_monitored(monitor, "jsz") or {}).get("meta_cluster") or {}
    own = (_monitored(monitor, "varz") or {}).get("server_name")
    return {own} | {route["remote_name"] for route in (_monitored(monitor, "routez") or {})["routes"]} if meta.get("leader") else set()


def test_the_file_holds_together() -> None:
    """What is mounted exists, what is depended on is there and can be healthy, volumes are declared, profiles are the three."""
    volumes: set[str] = set()
    for name, service in SERVICES.items():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("./"):
                assert (ROOT / source).is_file(), f"{name}: {source}"
            else:
                volumes.add(source)
        for other, condition in service.get("depends_on", {}).items():
            if other == "keyring":
                assert condition == {"condition": "service_completed_successfully"}
                continue
            assert condition == {"condition": "service_healthy"}
            assert "healthcheck" in SERVICES[other]
        assert set(service.get("profiles", [])) <= {"gpu", "observe", "ha"}
    assert volumes == set(DOCUMENT["volumes"])
    assert SERVICES["server-gpu"]["profiles"] == ["gpu"]
    assert {name for name, service in SERVICES.items() if service.get("profiles") == ["observe"]} == {
        "otel-collector",
        "prometheus",
        "alertmanager",
        "grafana",
    }


def test_etcd_requires_the_certificates_that_its_test_requires() -> None:
    words = set(SERVICES["etcd"]["command"])
    assert words >= {*tls_options(Path("/keyring/etcd")), "--listen-client-urls=https://0.0.0.0:2379"}
    assert not any("http://" in word for word in words) and "ports" not in SERVICES["etcd"]


def test_the_image_makes_every_folder_of_the_keyring() -> None:
    """A volume takes its owner from the folder of the image; else the keyring could not write into it."""
    made = re.findall(r"/keyring/[\w/-]+", (ROOT / "deploy/Dockerfile").read_text())
    mounted = [volume.split(":")[1] for volume in SERVICES["keyring"]["volumes"]]
    assert sorted(made) == sorted(mounted)


def test_only_ports_with_tls_are_published_beyond_this_machine() -> None:
    published = {name for name, service in SERVICES.items() for port in service.get("ports", []) if not port.startswith("127.0.0.1:")}
    assert published == {"nats", "nats-2", "nats-3", "controller", "billing", "server", "server-gpu"}


@pytest.mark.parametrize("name", SERVICES)
def test_every_container_is_confined(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True and service["tmpfs"] == ["/tmp"]
    assert service["cap_drop"] == ["ALL"] and set(service.get("cap_add", [])) <= {"DAC_OVERRIDE"}
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert set(service["logging"]["options"]) == {"max-size", "max-file"}
    assert "memory" in service["deploy"]["resources"]["limits"]
    assert "healthcheck" in service or name in ("keyring", "otel-collector")
    if "image" in service:
        assert re.search(r":v?\d+\.\d+\.\d+(-\w+)?$", service["image"]), service["image"]


def test_base_images_have_exact_versions() -> None:
    bases = re.findall(r"^FROM (\S+) AS", (ROOT / "deploy/Dockerfile").read_text(), re.MULTILINE)
    assert bases and all(re.search(r":\d+\.\d+\.\d+", base) for base in bases)


def test_a_node_may_use_more_memory_than_its_device_has() -> None:
    limit = interpolate(SERVICES["server"]["deploy"]["resources"]["limits"]["memory"], {})
    assert int(limit.removesuffix("g")) << 10 >= 2 * int(interpolate(SERVICES["server"]["environment"]["WOOLY_DEVICE_VRAM_MB"], {}))


def test_grafanas_password_is_a_secret() -> None:
    grafana = SERVICES["grafana"]
    assert not any("PASSWORD" in key and not key.endswith("__FILE") for key in grafana["environment"])
    (secret,) = grafana["secrets"]
    assert grafana["environment"]["GF_SECURITY_ADMIN_PASSWORD__FILE"] == f"/run/secrets/{secret}"
    path = interpolate(DOCUMENT["secrets"][secret]["file"], {})
    assert subprocess.run(["git", "check-ignore", "-q", path], cwd=ROOT, check=False).returncode == 0


def alertmanager(tmp_path: Path, **environment: str) -> tuple[int, Any, str]:
    """Exit code, configuration and standard error of the start script, with a program in Alertmanager's place that shows its arguments."""
    program = tmp_path / "alertmanager"
    program.write_text('#!/bin/sh\necho "$@"\n')
    program.chmod(0o755)
    config = tmp_path / "alertmanager.yml"
    environment |= {"PATH": f"{tmp_path}:/usr/bin:/bin", "ALERT_CONFIG": str(config)}
    script = ROOT / SERVICES["alertmanager"]["volumes"][0].split(":")[0]
    done = subprocess.run(["/bin/sh", str(script)], env=environment, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode or done.stdout == f"--config.file={config} --storage.path=/alertmanager\n"
    return done.returncode, yaml.safe_load(config.read_text()), done.stderr


def test_alerts_go_where_the_environment_says(tmp_path: Path) -> None:
    _, config, _ = alertmanager(tmp_path)
    assert config["receivers"] == [{"name": config["route"]["receiver"]}]
    mail = {"ALERT_EMAIL_TO": "ops@example.org", "ALERT_SMTP_HOST": "mail:587", "ALERT_SMTP_USER": "u", "ALERT_SMTP_PASSWORD": "it's: #1"}
    _, config, _ = alertmanager(tmp_path, ALERT_WEBHOOK_URL="https://example.org/?a=1&b='2'", **mail)
    (receiver,) = config["receivers"]
    assert receiver["webhook_configs"] == [{"url": "https://example.org/?a=1&b='2'"}]
    assert receiver["email_configs"] == [
        {
            "to": "ops@example.org",
            "from": "ops@example.org",
            "smarthost": "mail:587",
            "auth_username": "u",
            "auth_password": "it's: #1",
            "send_resolved": True,
        }
    ]
    code, _, said = alertmanager(tmp_path, ALERT_EMAIL_TO="ops@example.org")
    assert code == 2 and "ALERT_SMTP_HOST" in said


def test_images_have_the_targets_and_all_packages() -> None:
    text = (ROOT / "deploy/Dockerfile").read_text()
    targets = set(re.findall(r"^FROM \S+ AS (\S+)$", text, re.MULTILINE))
    built = [service["build"] for service in SERVICES.values() if "build" in service]
    assert {build["target"] for build in built} <= targets
    assert {build["dockerfile"] for build in built} == {"deploy/Dockerfile"}
    packages = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["root_packages"])
    copied = set(re.findall(r"^COPY (\S+) \1$", text, re.MULTILINE))
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert copied == packages == kept - {"pyproject.toml", "README.md", "LICENSE", "deploy/requirements"}


def test_prometheus_scrapes_ports_that_are_served() -> None:
    config = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    targets = {target for job in config["scrape_configs"] for static in job["static_configs"] for target in static["targets"]}
    served = {f"{name}:{SERVICES[name]['environment']['WOOLY_HTTP'].rsplit(':', 1)[1]}" for name in ("controller", "billing")}
    port = SERVICES["server"]["environment"]["WOOLY_NODE_HTTP"].rsplit(":", 1)[1]
    assert SERVICES["server-gpu"]["environment"]["WOOLY_NODE_HTTP"].endswith(f":{port}")
    served |= {f"{name}:{port}" for name in ("server", "server-gpu")}
    managers = {target for one in config["alerting"]["alertmanagers"] for static in one["static_configs"] for target in static["targets"]}
    assert managers == {"alertmanager:" + SERVICES["alertmanager"]["ports"][0].rsplit(":", 1)[1]}
    mounted = {volume.split(":")[1] for volume in SERVICES["prometheus"]["volumes"]}
    assert set(config["rule_files"]) <= mounted
    collector = yaml.safe_load((ROOT / "deploy/otel/collector.yaml").read_text())
    reader = collector["service"]["telemetry"]["metrics"]["readers"][0]["pull"]["exporter"]["prometheus"]
    assert targets == served | {f"otel-collector:{reader['port']}"}


def test_the_collector_uses_only_what_it_defines() -> None:
    collector = yaml.safe_load((ROOT / "deploy/otel/collector.yaml").read_text())
    for pipeline in collector["service"]["pipelines"].values():
        for kind, names in pipeline.items():
            assert set(names) <= set(collector[kind])
    assert set(collector["service"]["extensions"]) == set(collector["extensions"])
    http = collector["receivers"]["otlp"]["protocols"]["http"]
    assert http["endpoint"].endswith(":4318") and http["auth"]["authenticator"] in collector["extensions"]
    assert {http["tls"]["cert_file"], http["tls"]["key_file"]} == {"/keyring/trace/cert.pem", "/keyring/trace/key.pem"}
    assert "keyring-trace:/keyring/trace:ro" in SERVICES["otel-collector"]["volumes"]
    assert "127.0.0.1:4318:4318" in SERVICES["otel-collector"]["ports"]


def test_the_bus_has_the_limits_of_the_embedded_one() -> None:
    text = (ROOT / "deploy/nats/nats.conf").read_text()
    found = re.search(r"max_payload: (\d+)", text)
    assert found is not None
    assert int(found[1]) == MAX_PAYLOAD_BYTES
    assert "sync_interval: always" in text


def test_interpolation_is_composes() -> None:
    assert interpolate("a ${X:-1} ${Y:-} ${Z}", {"X": "9", "Z": "z"}) == "a 9  z"
    assert interpolate("${X:-1}", {"X": ""}) == "1"
