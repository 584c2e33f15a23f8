"""The Helm chart: what it renders is valid for every Kubernetes that it claims, without privileges, and as the services want it."""

from __future__ import annotations

import functools
import json
import re
import shutil
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from services.kit.keyring import Keyring
from services.kit.nats_server import nats_server_binary
from services.operator.admission import Injection, changed, refusal
from services.operator.objects import GpuPool, TenantPolicy, WoolyCluster, read_object
from services.operator.wanted import Apply, Observed, wanted
from tests.support.kube.helm import CHART, binary, rendered, run_helm
from tests.support.kube.schemas import completed, errors_of
from wooly.shared.variables import VARIABLES
from wooly_server import SERVICES

pytestmark = pytest.mark.skipif(not binary("helm")[0], reason=binary("helm")[1])

VALUES: dict[str, dict[str, Any]] = {
    "default": {},
    "high availability": {
        "nats": {"replicas": 3, "service": {"type": "LoadBalancer"}, "storageClass": "fast"},
        "etcd": {"mode": "embedded"},
        "controller": {"replicas": 3, "env": {"WOOLY_KEY_CONNECTIONS_MAX": 4096}},
        "keyring": {"hosts": ["wooly.example.com"], "nodeSelector": {"woolyai.com/gpu": "yes"}},
        "pools": {
            "a100": {
                "nodeSelector": {"woolyai.com/gpu": "yes"},
                "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
                "groups": ["a100"],
                "devices": 8,
                "overcommitPercent": 50,
                "resources": {"limits": {"memory": "64Gi"}},
            },
            "cpu": {"backend": "host", "vramMb": 8192, "nodeSelector": {"woolyai.com/cpu": "yes"}},
        },
        "tenants": {"research": {"tenant": "research", "namespaces": ["research"], "defaultPriority": 2, "maxVRAM": "40Gi"}},
        "cluster": {"defaultPool": "a100"},
        "tolerations": [{"key": "platform", "operator": "Exists"}],
        "imagePullSecrets": [{"name": "registry"}],
    },
    "observed, with cert-manager": {
        "certManager": {"enabled": True},
        "observe": {"serviceMonitor": True, "alerts": True, "dashboard": True, "labels": {"release": "prometheus"}},
    },
    "bus elsewhere, no operator": {
        "nats": {"externalURLs": ["tls://bus-1:4222", "tls://bus-2:4222"]},
        "etcd": {"mode": "external", "externalURL": "https://etcd:2379"},
        "billing": {"enabled": False},
        "operator": {"enabled": False},
        "networkPolicy": {"enabled": False},
    },
}
EVERY = pytest.mark.parametrize("values", VALUES)
FOREIGN = {"OTEL_EXPORTER_OTLP_ENDPOINT", "CUPY_CACHE_DIR"}
"""Read by libraries."""
RESTRICTED = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}


@functools.cache
def objects(values: str) -> tuple[dict[str, Any], ...]:
    return tuple(rendered(*options(VALUES[values])))


def options(values: dict[str, Any]) -> list[str]:
    return [word for key, value in values.items() for word in ("--set-json", f"{key}={json.dumps(value)}")]


def pods(values: str) -> dict[str, dict[str, Any]]:
    """Specs of pods, by kind and name of what makes them."""
    return {
        f"{one['kind']} {one['metadata']['name']}": one["spec"]["template"]["spec"]
        for one in objects(values)
        if "template" in one.get("spec", {})
    }


def crd(plural: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((CHART / "crds" / f"{plural}.yaml").read_text())
    return found


def schema_of(kind: str) -> dict[str, Any]:
    found = next(
        one
        for one in map(yaml.safe_load, (path.read_text() for path in (CHART / "crds").iterdir()))
        if one["spec"]["names"]["kind"] == kind
    )
    schema: dict[str, Any] = found["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


@EVERY
def test_chart_passes_its_linter(values: str) -> None:
    result = run_helm("lint", "--strict", str(CHART), *options(VALUES[values]))
    assert result.returncode == 0, result.stdout + result.stderr


@EVERY
@pytest.mark.parametrize("version", ["1.29", "1.30", "1.31", "1.32", "1.33", "1.34", "1.35", "1.36", "1.37"])
def test_objects_are_valid_in_every_kubernetes(values: str, version: str) -> None:
    for one in objects(values):
        if one["apiVersion"].split("/")[0] not in ("woolyai.com", "monitoring.coreos.com", "cert-manager.io"):
            kubernetes_validate.validate(one, version, strict=True)


@pytest.mark.parametrize("version", ["1.29", "1.37"])
def test_custom_resource_definitions_are_valid(version: str) -> None:
    for path in (CHART / "crds").iterdir():
        kubernetes_validate.validate(yaml.safe_load(path.read_text()), version, strict=True)


@EVERY
def test_objects_of_ours_fit_their_schemas_and_the_operator(values: str) -> None:
    kinds = {"WoolyCluster": WoolyCluster, "GpuPool": GpuPool, "TenantPolicy": TenantPolicy}
    for one in objects(values):
        if one["apiVersion"] == "woolyai.com/v1alpha1":
            schema = schema_of(one["kind"])
            assert errors_of(one, schema) == []
            assert completed(one, schema)["spec"].keys() >= one["spec"].keys(), "a field is pruned"
            found = read_object({**one, "metadata": {"uid": "u", **one["metadata"]}}, kinds[one["kind"]])
            assert found.name == one["metadata"]["name"]


@pytest.mark.parametrize(
    ("kind", "spec", "why"),
    [
        ("WoolyCluster", {"controllerURL": "wooly", "busURLs": ["tls://b"]}, "spec.controllerURL"),
        ("WoolyCluster", {"controllerURL": "https://wooly:8080", "busURLs": []}, "spec.busURLs"),
        ("WoolyCluster", {"busURLs": ["tls://b"]}, "spec.controllerURL: Required value"),
        ("GpuPool", {"image": "i", "devices": 65}, "spec.devices: Invalid value: 65"),
        (
            "GpuPool",
            {"image": "i", "backend": "rocm"},
            'spec.backend: Unsupported value: "rocm": supported values: "cuda", "opencl", "host"',
        ),
        ("GpuPool", {"image": "i", "tolerations": [{"effect": "Never"}]}, "spec.tolerations[0].effect"),
        ("TenantPolicy", {"tenant": "t", "namespaces": ["n"], "defaultPriority": 5}, "spec.defaultPriority: Invalid value: 5"),
        ("TenantPolicy", {"tenant": "t", "namespaces": ["n"], "maxVRAM": "much"}, "spec.maxVRAM: Invalid value"),
    ],
)
def test_schema_refuses_what_the_operator_could_not_use(kind: str, spec: dict[str, Any], why: str) -> None:
    [error] = errors_of({"spec": spec}, schema_of(kind))
    assert error.startswith(why)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"nats": {"replica": 3}}, "additional properties 'replica' not allowed"),
        ({"nats": {"replicas": 2}}, "/nats/replicas"),
        ({"controler": {}}, "additional properties 'controler' not allowed"),
        ({"etcd": {"mode": "none"}}, "/etcd/mode"),
        ({"controller": {"env": {"wooly": "x"}}}, "invalid propertyName 'wooly'"),
        ({"pools": {"a": {"device": 8}}}, "additional properties 'device' not allowed"),
        ({"tenants": {"a": {"namespaces": ["a"]}}}, "missing property 'tenant'"),
        ({"etcd": {"mode": "external"}}, "etcd.externalURL is needed"),
    ],
)
def test_wrong_values_are_refused_before_anything_is_installed(values: dict[str, Any], why: str) -> None:
    result = run_helm("template", "wooly", str(CHART), *options(values))
    assert result.returncode != 0
    assert why in result.stderr


def test_values_know_every_field_of_pool_and_tenant() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]
    for value, kind in (("pools", "GpuPool"), ("tenants", "TenantPolicy")):
        assert schema[value]["additionalProperties"]["properties"].keys() == schema_of(kind)["properties"]["spec"]["properties"].keys()
    jsonschema.Draft202012Validator.check_schema({"properties": schema})


@EVERY
def test_services_run_with_as_few_rights_as_the_restricted_profile_wants(values: str) -> None:
    assert pods(values)
    for name, spec in pods(values).items():
        context = spec["securityContext"]
        assert context["runAsNonRoot"] and context["runAsUser"] > 0 and context["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys(), name
        assert not [volume for volume in spec.get("volumes", []) if "hostPath" in volume], name
        for container in [*spec["containers"], *spec.get("initContainers", [])]:
            assert container["securityContext"] == RESTRICTED, name
            assert container["resources"]["limits"]["memory"] and container["resources"]["requests"]["cpu"], name


def node_servers() -> list[dict[str, Any]]:
    """The DaemonSets that the operator makes of the chart's pools."""
    read = {kind: [] for kind in ("WoolyCluster", "GpuPool")}
    for one in objects("high availability"):
        if one["kind"] in read:
            shown = {**one, **completed({"spec": one["spec"]}, schema_of(one["kind"])), "metadata": {"uid": "u", **one["metadata"]}}
            read[one["kind"]].append(read_object(shown, {"WoolyCluster": WoolyCluster, "GpuPool": GpuPool}[one["kind"]]))
    [cluster] = read["WoolyCluster"]
    seen = Observed("k", cluster, tuple(read["GpuPool"]), (), (), (), {}, None, "wooly-system")
    return [action.object for action in wanted(seen) if isinstance(action, Apply)]


def test_node_servers_are_valid_and_unprivileged_but_for_the_network_of_their_host() -> None:
    readers = {variable.name: variable.readers for variable in VARIABLES}
    found = node_servers()
    assert [one["metadata"]["name"] for one in found] == ["wooly-node-a100", "wooly-node-cpu"]
    for one in found:
        for version in ("1.29", "1.37"):
            kubernetes_validate.validate(one, version, strict=True)
        spec = one["spec"]["template"]["spec"]
        assert not {"hostPID", "hostIPC"} & spec.keys() and spec["securityContext"]["runAsNonRoot"]
        assert not [volume for volume in spec["volumes"] if "hostPath" in volume]
        [container] = spec["containers"]
        assert container["securityContext"] == RESTRICTED
        assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in spec["volumes"]}
        for variable in container["env"]:
            assert variable["name"] in FOREIGN or "node" in readers.get(variable["name"], ()), variable
        assert container["command"] == ["wooly-server", "server"]
    assert found[0]["spec"]["template"]["spec"]["containers"][0]["image"] == "wooly-gpu:0.1.0"
    assert found[1]["spec"]["template"]["spec"]["containers"][0]["image"] == "wooly:0.1.0"


@EVERY
def test_only_who_asks_kubernetes_has_a_token(values: str) -> None:
    with_token = {name for name, spec in pods(values).items() if spec.get("automountServiceAccountToken") is not False}
    operator = {"Deployment wooly-operator"} if VALUES[values].get("operator", {}).get("enabled", True) else set()
    assert with_token == {"Job wooly-keyring", *operator}


@EVERY
def test_rights_name_what_they_are_for(values: str) -> None:
    """No wildcard; secrets only by name, or their creation."""
    for one in objects(values):
        for rule in one.get("rules", []) if one["kind"] in ("Role", "ClusterRole") else ():
            assert "*" not in (*rule["apiGroups"], *rule["resources"], *rule["verbs"]), one
            if "secrets" in rule["resources"]:
                assert one["kind"] == "Role", one
                assert rule.get("resourceNames") or (rule["verbs"] == ["create"] and "keyring" in one["metadata"]["name"]), one


@EVERY
def test_every_variable_is_one_that_its_service_reads(values: str) -> None:
    readers = {variable.name: variable.readers for variable in VARIABLES}
    ours = 0
    for name, spec in pods(values).items():
        for container in spec["containers"]:
            command = container["command"]
            if command[0] != "wooly-server":
                continue
            ours += 1
            assert command[1] in SERVICES
            for variable in container.get("env", []):
                assert variable["name"] in FOREIGN or command[1] in readers.get(variable["name"], ()), f"{name}: {variable['name']}"
    assert ours >= 2


@EVERY
def test_everything_that_is_mentioned_is_made(values: str) -> None:
    """Secrets by the keyring or cert-manager; services, accounts, config maps and ports by the chart."""
    found = objects(values)
    made = {(one["kind"], one["metadata"]["name"]) for one in found}
    keyring = {f"wooly-keyring-{part}" for part in ("ca", "bus", "controller", "billing", "runner", "watch", "etcd", "nodes")}
    keyring |= {one["spec"]["secretName"] for one in found if one["kind"] == "Certificate"}
    for name, spec in pods(values).items():
        if "serviceAccountName" in spec:
            assert ("ServiceAccount", spec["serviceAccountName"]) in made, name
        volumes = {volume["name"] for volume in spec.get("volumes", [])} | {"data"}
        for volume in spec.get("volumes", []):
            sources = volume.get("projected", {}).get("sources", [volume])
            for source in sources:
                if "secret" in source:
                    assert (source["secret"].get("secretName") or source["secret"].get("name")) in keyring, name
                if "configMap" in source:
                    assert ("ConfigMap", source["configMap"]["name"]) in made, name
        for container in spec["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes, name
            ports = {port["name"] for port in container.get("ports", [])}
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                how = container.get(probe, {})
                assert not how or "exec" in how or how.get("httpGet", how.get("tcpSocket"))["port"] in ports, name
    for one in found:
        if one["kind"] == "Service":
            targets = [spec for spec in found if one["spec"]["selector"].items() <= _labels(spec).items()]
            assert targets, one["metadata"]["name"]
            ports = {port["name"] for port in targets[0]["spec"]["template"]["spec"]["containers"][0]["ports"]}
            assert {port["targetPort"] for port in one["spec"]["ports"]} <= ports
        if one["kind"] in ("NetworkPolicy", "PodDisruptionBudget"):
            selector = (one["spec"].get("podSelector") or one["spec"]["selector"])["matchLabels"]
            assert any(selector.items() <= _labels(spec).items() for spec in found), one["metadata"]["name"]


def _labels(one: dict[str, Any]) -> dict[str, str]:
    labels: dict[str, str] = (
        one.get("spec", {}).get("template", {}).get("metadata", {}).get("labels", {}) if one["kind"] != "NetworkPolicy" else {}
    )
    return labels


@EVERY
def test_certificates_bear_the_names_that_are_called(values: str) -> None:
    [job] = [one for one in objects(values) if one["kind"] == "Job"]
    arguments = job["spec"]["template"]["spec"]["containers"][0]["args"]
    certified = {text.partition("=")[2].partition("=")[2] for text in arguments if text.startswith("--part=")}
    services = {f"{one['metadata']['name']}.wooly-system.svc" for one in objects(values) if one["kind"] == "Service"}
    used = {host for host in services if any(f"//{host}:" in str(one) for one in objects(values))}
    assert used <= certified
    assert used or values.startswith("bus elsewhere")
    routes = [str(one) for one in objects(values) if one["kind"] == "ConfigMap" and "routes:" in str(one)]
    for number in range(3 if routes else 0):
        assert f"wooly-nats-{number}.wooly-nats-servers.wooly-system.svc" in certified
        assert f"nats://wooly-nats-{number}.wooly-nats-servers.wooly-system.svc:6222" in routes[0]


@pytest.mark.parametrize("values", ["default", "high availability"])
def test_bus_accepts_its_configuration(values: str, tmp_path: Path) -> None:
    """The files of the pod's volume, where the pod has them, as nats-server reads them."""
    folder = tmp_path / "nats"
    ring = Keyring.make(tmp_path / "ring", {"bus": ["nats"], "controller": ["c"], "billing": ["b"]}, [], bus_at=str(folder / "keyring"))
    if not (ring.folder / "bus" / "routes.conf").exists():
        pair = {"cert_file": "cert.pem", "key_file": "key.pem", "ca_file": "ca.pem"}
        lines = [f'{key}: "{folder}/keyring/{file}"' for key, file in pair.items()]
        (ring.folder / "bus" / "routes.conf").write_text("tls { " + ", ".join(lines) + " }")
    [volume] = [one for one in pods(values)["StatefulSet wooly-nats"]["volumes"] if one["name"] == "configuration"]
    data = {one["metadata"]["name"]: one["data"] for one in objects(values) if one["kind"] == "ConfigMap"}
    for source in volume["projected"]["sources"]:
        for name, text in data[source["configMap"]["name"]].items() if "configMap" in source else ():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        for item in source.get("secret", {}).get("items", ()):
            (folder / item["path"]).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ring.folder / "bus" / item["key"], folder / item["path"])
    [container] = pods(values)["StatefulSet wooly-nats"]["containers"]
    arguments = [word.replace("/etc/nats", str(folder)).replace("/data", str(tmp_path)) for word in container["args"]]
    result = subprocess.run([nats_server_binary(), *arguments, "-t"], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    assert "is valid" in result.stdout + result.stderr


def test_webhook_sees_pods_that_ask_for_a_device_and_no_others() -> None:
    [configuration] = [one for one in objects("default") if one["kind"] == "MutatingWebhookConfiguration"]
    [webhook] = configuration["webhooks"]
    assert webhook["objectSelector"] == {"matchLabels": {"gpu-runtime": "woolyai"}}
    assert (webhook["failurePolicy"], webhook["timeoutSeconds"], webhook["reinvocationPolicy"]) == ("Fail", 5, "IfNeeded")
    [excluded] = webhook["namespaceSelector"]["matchExpressions"]
    assert excluded == {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system", "wooly-system"]}


def test_examples_of_the_page_are_accepted(tmp_path: Path) -> None:
    page = (CHART.parents[2] / "docs" / "how-to" / "kubernetes.md").read_text()
    examples = [yaml.safe_load(textwrap.dedent(text)) for text in re.findall(r"^ *```yaml\n(.*?)^ *```", page, re.M | re.S)]
    values, pod = next(one for one in examples if "pools" in one), next(one for one in examples if one.get("kind") == "Pod")
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
    found = rendered("--values", str(tmp_path / "values.yaml"))
    for one in found:
        if one["apiVersion"] == "woolyai.com/v1alpha1":
            assert errors_of(one, schema_of(one["kind"])) == []
    given = Injection(
        read_object(next({**one, "metadata": {"name": "w", "uid": "u"}} for one in found if one["kind"] == "WoolyCluster"), WoolyCluster)
    )
    for version in ("1.29", "1.37"):
        assert refusal(pod) == ""
        kubernetes_validate.validate(changed(pod, given), version, strict=True)


def test_alert_rules_and_dashboard_are_those_of_the_platform() -> None:
    found = {one["kind"]: one for one in objects("observed, with cert-manager")}
    root = CHART.parents[1]
    assert found["PrometheusRule"]["spec"] == yaml.safe_load((root / "prometheus" / "alerts.yml").read_text())
    [dashboard] = [one for one in objects("observed, with cert-manager") if one["metadata"]["name"] == "wooly-dashboard"]
    assert json.loads(dashboard["data"]["wooly.json"]) == json.loads((root / "grafana" / "wooly.json").read_text())
