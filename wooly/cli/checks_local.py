"""Checks of this machine: Python, torch, configuration."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from pathlib import Path
from typing import Final

from wooly.cli.checks import Finding
from wooly.cli.stack import missing_server_parts
from wooly.cli.version import installed
from wooly.config import FILE_VARIABLE, Config, config_file, load
from wooly.errors import ConfigError, UnsupportedTorch
from wooly.remedies import INSTALL_CLIENT, INSTALL_PLATFORM, install_extra
from wooly.torch_support import check_version

__all__ = ["python", "torch", "entry_point", "platform_parts", "local_gpu", "configuration", "fallback"]

_PYTHON_FIRST: Final = (3, 11)


def python() -> Finding:
    found = platform.python_version()
    if sys.version_info < _PYTHON_FIRST:
        return Finding("python", "fail", found, "install Python 3.11 or newer")
    return Finding("python", "ok", f"{found} at {sys.executable}")


def torch() -> Finding:
    found = installed("torch")
    if found is None:
        return Finding("torch", "fail", "not installed in this environment", install_extra("client"))
    try:
        check_version(found)
    except UnsupportedTorch as error:
        return Finding("torch", "fail", str(error), "install a tested version")
    return Finding("torch", "ok", found)


def entry_point() -> Finding:
    names = [point.name for point in importlib.metadata.entry_points(group="torch.backends")]
    if "wooly" not in names:
        return Finding("entry point", "fail", "torch will not find the device: wooly is not installed as a package", INSTALL_CLIENT)
    if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD") == "0":
        fix = "unset TORCH_DEVICE_BACKEND_AUTOLOAD, or use `wooly run`"
        return Finding("entry point", "fail", "TORCH_DEVICE_BACKEND_AUTOLOAD=0 keeps torch from switching the device on", fix)
    others = [name for name in names if name != "wooly"]
    if others:
        text = f"torch loads other backends too ({', '.join(others)}), and a process can have one"
        return Finding("entry point", "warn", text, "uninstall the other, if the device does not appear")
    return Finding("entry point", "ok", "torch finds the device")


def platform_parts() -> Finding:
    missing = missing_server_parts()
    if missing:
        text = f"not installed (missing: {', '.join(missing)}); only `wooly up`, `run --embedded` and the services need it"
        return Finding("platform", "ok", f"{text}: {INSTALL_PLATFORM}")
    return Finding("platform", "ok", "installed")


def local_gpu() -> Finding:
    cuda_build = "+cpu" not in (installed("torch") or "+cpu")
    present = sorted(path.name for path in Path("/dev").glob("nvidia[0-9]*"))
    if not present:
        return Finding("local GPU", "ok", "none")
    if not cuda_build:
        return Finding("local GPU", "ok", f"{', '.join(present)}, which this CPU build of torch does not use")
    if os.environ.get("WOOLY_LOCAL_GPU", "").strip() in ("1", "true"):
        return Finding("local GPU", "ok", f"{', '.join(present)}, hidden by WOOLY_LOCAL_GPU=1")
    text = f"{', '.join(present)}: it is never taken over, so the remote device stays off"
    return Finding("local GPU", "warn", text, "set WOOLY_LOCAL_GPU=1 to use the remote device instead")


def configuration() -> tuple[Config | None, Finding]:
    """The configuration, when it can be read, for the checks that follow."""
    path, _ = config_file(os.environ)
    try:
        found = load(task=False)
    except ConfigError as error:
        return None, Finding("configuration", "fail", str(error), "correct that value")
    try:
        load()
    except ConfigError as error:
        return found, Finding("configuration", "fail", str(error), "correct it before you run a script")
    where = path if os.path.exists(path) else f"no file ({FILE_VARIABLE} or {path})"
    return found, Finding("configuration", "ok", f"{where}; set: {', '.join(sorted(found.origin)) or 'nothing'}")


def fallback(config: Config) -> Finding:
    if config.cpu_fallback:
        return Finding("CPU fallback", "ok", "on: operations the device lacks run on this machine, with one warning each")
    return Finding("CPU fallback", "ok", "off (WOOLY_CPU_FALLBACK=0): operations the device lacks are errors")
