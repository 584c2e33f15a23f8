"""The lock files pin what the distributions declare: a dependency that is added or moved without ``make lock`` fails here."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.stack import ROOT

LOCKS = ROOT / "deploy/requirements"
CLIENT, PLATFORM = (tomllib.loads((ROOT / path).read_text()) for path in ("pyproject.toml", "wooly_server/pyproject.toml"))
OURS = frozenset({"wooly", "wooly-server"})


def declared(project: dict[str, Any], extra: str = "") -> list[str]:
    return [*project["project"]["dependencies"], *(project["project"]["optional-dependencies"][extra] if extra else ())]


DECLARED = {
    "build": [*CLIENT["build-system"]["requires"], *PLATFORM["build-system"]["requires"]],
    "client": declared(CLIENT),
    "platform": declared(CLIENT) + declared(PLATFORM, "kubernetes"),
    "platform-cuda": declared(CLIENT) + declared(PLATFORM, "cuda"),
}


def locked(text: str) -> list[tuple[Requirement, int]]:
    """Every requirement of a lock, with the number of its hashes."""
    entries = re.split(r"\n(?=\S)", text.strip())
    return [(Requirement(entry.split("\\")[0]), len(re.findall(r"--hash=sha256:[0-9a-f]{64}\b", entry))) for entry in entries]


def missing(wanted: list[str], text: str) -> list[str]:
    """Declared requirements for which the lock pins no version, or one that they refuse."""
    pins: dict[str, list[str]] = {}
    for pin, _ in locked(text):
        pins.setdefault(canonicalize_name(pin.name), []).append(str(pin.specifier).removeprefix("=="))
    requirements = [one for one in map(Requirement, wanted) if canonicalize_name(one.name) not in OURS]
    found = {str(one): pins.get(canonicalize_name(one.name), []) for one in requirements}
    return [str(one) for one in requirements if not found[str(one)] or not all(map(one.specifier.contains, found[str(one)]))]


def test_every_lock_is_known_here() -> None:
    assert {path.stem for path in LOCKS.iterdir()} == set(DECLARED)


@pytest.mark.parametrize("name", DECLARED)
def test_a_lock_covers_what_is_declared(name: str) -> None:
    text = (LOCKS / f"{name}.txt").read_text()
    assert missing(DECLARED[name], text) == []
    assert [str(pin) for pin, hashes in locked(text) if not hashes or not re.fullmatch(r"==[^=*,]+", str(pin.specifier))] == []
    assert "://" not in text and "--index" not in text, "where packages come from is the installer's business"


def test_a_dependency_that_drifted_is_found() -> None:
    text = (LOCKS / "platform.txt").read_text()
    assert missing(["httpx>=9000", "no-such-package", "HTTPX>=0.27", "wooly==0.1.0"], text) == ["httpx>=9000", "no-such-package"]


def test_images_install_only_locked_dependencies() -> None:
    """Every ``pip install`` of the image names a lock and requires hashes, or installs our wheels without dependencies."""
    text = (ROOT / "deploy/Dockerfile").read_text().replace("\\\n", "")
    copied = dict(re.findall(r"^COPY deploy/requirements/(\S+) (\S+)$", text, re.MULTILINE))
    installs = re.findall(r"pip (?:install|wheel) [^&\n]+", text)
    assert set(copied) == {"build.txt", "platform.txt", "platform-cuda.txt"}
    for install in installs:
        ours = "--no-deps" in install and ("/wheels/*.whl" in install or "--no-build-isolation" in install)
        assert ours or ("--require-hashes" in install and install.split()[-1] in copied.values()), install
    assert len(installs) == 6, "in each of three stages: the lock, then our wheels"


def test_the_makefile_locks_the_build_requirements() -> None:
    (requirement,) = set(DECLARED["build"])
    assert f"echo '{requirement}' |" in Path(ROOT / "Makefile").read_text()
