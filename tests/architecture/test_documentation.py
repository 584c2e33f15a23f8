"""The documentation is complete, and leads nowhere into the void: links, navigation, and the reference beside the code."""

from __future__ import annotations

import ast
import posixpath
import re
import subprocess
import typing
from collections.abc import Iterator

import pytest
import yaml

from bus_schemas import events
from docs.generate import OUTSIDE, REFERENCE
from docs.generate.configuration import FOREIGN
from docs.generate.links import anchors, links, repository_path, rewritten, site_path
from services.kit.variables import integer
from services.server.settings import Settings
from tests.support.stack import ROOT
from wooly.config import KEYS, unknown_variables
from wooly.shared.variables import BY_NAME, VARIABLES

PRODUCT = ("wooly", "wis", "bus_schemas", "jit", "scheduler", "billing", "services")
ENVIRONMENTS = {"environ", "environment", "env"}
"""Names that mappings of environment variables have in our code."""


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    """The text of every tracked page and of the generated ones, by where it is (or would be) in the repository."""
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    found = {path: (ROOT / path).read_text() for path in listed if (ROOT / path).exists()}
    return found | {f"docs/{path}": make() for path, make in REFERENCE.items()}


def test_links_and_anchors_resolve(pages: dict[str, str]) -> None:
    dead = []
    for page, text in pages.items():
        for link in links(text):
            target = posixpath.normpath(posixpath.join(posixpath.dirname(page), link.path)) if link.path else page
            source = repository_path(target.removeprefix("docs/")) if target.startswith("docs/") else target
            made = source in pages and page.startswith("docs/")  # outside of the site there are no generated pages
            if not made and not (ROOT / source).exists():
                dead.append(f"{page}: {link.path}")
            elif link.anchor and source in pages and link.anchor not in anchors(pages[source]):
                dead.append(f"{page}: {link.path}#{link.anchor}")
    assert not dead


def test_the_navigation_has_every_page_once(pages: dict[str, str]) -> None:
    def leaves(item: object) -> Iterator[str]:
        if isinstance(item, str):
            yield item
        for below in item if isinstance(item, list) else item.values() if isinstance(item, dict) else ():
            yield from leaves(below)

    class Loader(yaml.SafeLoader):
        """Without the Python objects that mkdocs puts for some tags."""

    Loader.add_multi_constructor("tag:yaml.org,2002:python/name:", lambda *ignored: None)
    named = sorted(leaves(yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)["nav"]))
    there = sorted({path.removeprefix("docs/") for path in pages if path.startswith("docs/")} | set(OUTSIDE.values()))
    assert named == there


def test_links_are_adapted_to_the_site() -> None:
    kept = "`[d](docs/scheduling.md)` [e](https://x/y) [f](void.md)"
    text = f"[a](docs/scheduling.md#rules) [b](wooly/config.py) [c](docs/reference/errors.md) {kept}"
    expected = f"[a](../scheduling.md#rules) b [c](../reference/errors.md) {kept}"
    assert rewritten(text, "explanation/architecture.md") == expected
    assert site_path("ARCHITECTURE.md") == "explanation/architecture.md" and site_path("docs/none.md") is None
    assert anchors("# A `b` c\n```\n# no\n```\n## A b, c!\n") == {"a-b-c", "a-b-c_1"}


def read_variables() -> dict[str, set[str]]:
    """Every environment variable that the product reads, with the packages that do: keys of mappings with the name of an environment,
    and names beside such a mapping in a call. A name that is only known at run time must be a parameter of the function."""
    trees = {path: ast.parse(path.read_text()) for package in PRODUCT for path in sorted((ROOT / package).rglob("*.py"))}
    texts: dict[str, str] = {}
    for tree in trees.values():
        for node in tree.body:
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0] if isinstance(node, ast.Assign) else None
            value = getattr(node, "value", None)
            if isinstance(target, ast.Name) and isinstance(value, ast.Constant) and isinstance(value.value, str) and target.id.isupper():
                texts[target.id] = value.value
    found: dict[str, set[str]] = {}
    for path, tree in trees.items():
        package = path.relative_to(ROOT).parts[0]
        for node in ast.walk(tree):
            for key in keys_of(node):
                name = named(key, texts)
                if name is not None:
                    found.setdefault(name, set()).add(package)
    return found


def is_environment(node: ast.AST) -> bool:
    if isinstance(node, ast.IfExp):  # (os.environ if environ is None else environ).get(...)
        return is_environment(node.body)
    return (isinstance(node, ast.Name) and node.id in ENVIRONMENTS) or (isinstance(node, ast.Attribute) and node.attr == "environ")


def keys_of(node: ast.AST) -> Iterator[ast.expr]:
    """What is looked up in an environment by ``node``."""
    if isinstance(node, ast.Subscript) and is_environment(node.value):
        yield node.slice
    if isinstance(node, ast.Compare) and any(is_environment(part) for part in node.comparators):
        yield node.left
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and is_environment(node.func.value) and node.func.attr in ("get", "pop", "setdefault"):
            yield node.args[0]
        elif len(node.args) > 1 and is_environment(node.args[0]):
            yield node.args[1]


def named(key: ast.expr, texts: dict[str, str]) -> str | None:
    """The variable's name; None when it is a parameter, or no name of a variable."""
    if isinstance(key, ast.Name):
        text = texts.get(key.id, "")
    elif isinstance(key, ast.JoinedStr):  # f"{NAME}_FILE"
        inner = [part.value if isinstance(part, ast.FormattedValue) else part for part in key.values]
        parts = [texts.get(part.id, "") if isinstance(part, ast.Name) else str(getattr(part, "value", "")) for part in inner]
        text = "".join(parts) if all(parts) else ""
    else:
        text = str(key.value) if isinstance(key, ast.Constant) else ""
    return text if re.fullmatch(r"[A-Z][A-Z0-9_]+", text) else None


def test_the_configuration_reference_has_every_variable_that_is_read() -> None:
    read = read_variables()
    client = {key.name for key in KEYS} | set(FOREIGN)
    services = {name for name, packages in read.items() if packages & {"services", "jit"}}
    # These are read through a name that is composed or handed over: as a file, or from the table.
    composed = {"WOOLY_API_KEY_FILE", "WOOLY_SEAL_KEY", "WOOLY_NATS_NKEY"}
    assert services | composed == set(BY_NAME)
    assert {name for name, packages in read.items() if packages & {"wooly"}} - client <= {"WOOLY_DIE_WITH_PARENT"}
    assert set(FOREIGN) <= set(read) | {"WOOLYAI_CLIENT_CONFIG"}
    assert unknown_variables(dict.fromkeys(BY_NAME, "1")) == []  # the client does not warn of them
    page = REFERENCE["reference/configuration.md"]()
    assert all(f"| `{name}`" in page for name in client | set(BY_NAME))


def test_every_word_that_looks_like_a_variable_is_one() -> None:
    """In the compose file and in the pages: a variable that is renamed or removed is not left behind there."""
    known = {key.name for key in KEYS} | set(BY_NAME) | set(FOREIGN)
    compose = (ROOT / "docker-compose.yml").read_text()
    ours = set(re.findall(r"\$\{([A-Z_]+)", compose))  # what compose itself replaces
    explained = (ROOT / "deploy/README.md").read_text() + compose.split("\nname:")[0]
    assert all(name in explained for name in ours)
    streams = {"WOOLY_EVENTS", "WOOLY_TELEMETRY", "WOOLY_JOURNAL", "WOOLY_LEASES", "WOOLY_BATCH_", "WOOLY_RUNS", "WOOLY_RUN_LOGS"}
    listed = subprocess.run(["git", "ls-files", "*.md", "docker-compose.yml"], cwd=ROOT, capture_output=True, text=True, check=True)
    for path in listed.stdout.split():
        if (ROOT / path).exists():
            words = set(re.findall(r"\b(?:WOOLY|WOOLYAI|CONTROLLER|NODE)_[A-Z0-9_]+", (ROOT / path).read_text()))
            assert words <= known | streams | ours, path


def test_defaults_of_the_table_are_those_of_a_node() -> None:
    settings = Settings.from_environment({"NODE_NAME": "n"})
    assert (settings.lease_ms, settings.devices, settings.vram_bytes >> 20) == (
        integer({}, "WOOLY_LEASE_MS"), integer({}, "WOOLY_DEVICES"), integer({}, "WOOLY_DEVICE_VRAM_MB"),
    )  # fmt: skip
    for variable in VARIABLES:
        if variable.kind == "integer" and variable.default.isdigit():
            assert variable.low <= int(variable.default) <= variable.high, variable.name


def test_generated_pages_are_complete(pages: dict[str, str]) -> None:
    from wooly.cli.group import COMMANDS

    commands = pages["docs/reference/command-line.md"]
    assert all(re.search(rf"^#+ wooly {re.escape(name)}$", commands, re.MULTILINE) for name in COMMANDS)
    assert all(f"## {kind.__struct_config__.tag}\n" in pages["docs/reference/events.md"] for kind in typing.get_args(events.Event))
    alerts = (ROOT / "deploy/prometheus/alerts.yml").read_text()
    assert all(name in pages["docs/watching.md"] for name in re.findall(r"alert: (\w+)", alerts))
    shown = set(re.findall(r"`(wooly_[a-z_]+)`", pages["docs/reference/metrics.md"]))
    used = set(re.findall(r"\bwooly_[a-z_]+", re.sub(r"(?m)^\s*#.*$", "", alerts)))
    assert used <= shown
    assert "PATCH /api/v1/tasks/{task}" in pages["docs/reference/rest-controller.md"]
    assert "GET /api/v1/billing/credits" in pages["docs/reference/rest-billing.md"]
    assert all(len(pages[f"docs/{path}"]) > 1000 for path in REFERENCE)
