"""``wooly doctor``: what is wrong on this machine (Python, torch, configuration) and with the services that it uses (bus, nodes,
controller, billing, clock differences), and the fix.
"""

from __future__ import annotations

import dataclasses
import email.utils
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
import urllib.error
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import click

from bus_schemas.session import NodeInfo
from wooly.cli.bus import discover
from wooly.cli.group import CommandError, echo
from wooly.cli.login import described
from wooly.cli.options import json_flag
from wooly.cli.output import print_json
from wooly.cli.services import missing_server_parts
from wooly.cli.version import installed
from wooly.config import FILE_VARIABLE, Config, config_file, load
from wooly.errors import ConfigError, NoServerError, UnsupportedTorch
from wooly.remedies import INSTALL_CLIENT, INSTALL_PLATFORM, check_version, install_extra
from wooly.rest import UNANSWERED, Credentials, detail_of, open_url

__all__ = ["doctor"]


@dataclass(frozen=True)
class Finding:
    """``fix`` is empty when there is nothing to do."""

    name: str
    state: Literal["ok", "warn", "fail"]
    text: str
    fix: str = ""


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


_ALWAYS_THERE: Final = ("no no_new_privs", "no Landlock", "no seccomp")
"""Layers that need neither privileges nor settings."""


def platform_parts() -> Finding:
    missing = missing_server_parts()
    if missing:
        text = f"not installed (missing: {', '.join(missing)}); only `wooly up`, `run --embedded` and the services need it"
        return Finding("platform", "ok", f"{text}: {INSTALL_PLATFORM}")
    entered = subprocess.run([sys.executable, "-P", "-m", "wooly_server.sandbox"], capture_output=True, text=True, check=False)
    layers = entered.stdout.splitlines()
    text = "; ".join(layers) or "cannot be entered"
    if not layers or any(layer.startswith(_ALWAYS_THERE) for layer in layers):
        fix = "use a Linux kernel with Landlock and seccomp before you run programs of people you do not know"
        return Finding("platform", "warn", f"installed; a node's sandbox is weaker on this machine: {text}", fix)
    return Finding("platform", "ok", f"installed; the sandbox of a node that this user starts: {text}")


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


_REMEDIES: Final = {
    "CERTIFICATE_VERIFY_FAILED": "set WOOLY_TLS_CA to a file with the certificate of its authority (an operator has it)",
    "Authorization Violation": "`wooly login`",
}
_WAIT_S: Final = 1.0
_HTTP_S: Final = 5.0
_SKEW_S: Final = 5.0
_NO_LOGIN: Final = "local"


def bus(config: Config) -> Iterator[Finding]:
    """Does the bus answer, and is a node on it?"""
    if not config.nats_urls:
        fix = "set WOOLY_NATS_URL (an operator knows the address), or try `wooly run --embedded script.py`"
        yield Finding("bus", "fail", "WOOLY_NATS_URL is not set, so the device stays off", fix)
        return
    try:
        found = discover(config.nats_urls, _WAIT_S)
    except NoServerError as error:
        yield Finding("bus", "fail", str(error), _remedy(str(error), "start the bus, or correct WOOLY_NATS_URL"))
        return
    yield Finding("bus", "ok", f"answers at {', '.join(_without_password(url) for url in config.nats_urls)}")
    if not found:
        yield Finding("nodes", "fail", "the bus answers, but no node is on it", "start one with `wooly server`")
        return
    yield Finding("nodes", "ok", ", ".join(f"{node.name} ({seconds * 1e3:.0f} ms)" for node, seconds in found))
    yield from model_caches([node for node, _ in found])
    if config.gpus:
        most = max(len(node.devices) for node, _ in found)
        wrong = [index for index in config.gpus if index >= most]
        if wrong:
            yield Finding("GPUS", "fail", f"names device {wrong[0]}, but no node has more than {most}", "correct GPUS")


def model_caches(nodes: Sequence[NodeInfo]) -> Iterator[Finding]:
    """How the nodes keep models on disk; nothing for nodes without a model cache."""
    names: dict[str, list[str]] = {}
    for node in nodes:
        if node.model_cache:
            names.setdefault(node.model_cache, []).append(node.name)
    if names:
        text = "; ".join(f"{state} on {', '.join(sorted(at))}" for state, at in sorted(names.items()))
        yield Finding("model cache", "ok", f"{text} (WOOLY_AT_REST_KEY_FILE of a node switches encryption on)")


def _without_password(url: str) -> str:
    head, at, tail = url.rpartition("@")
    return f"{head.partition('//')[0]}//***@{tail}" if at else url


def _remedy(error: str, general: str) -> str:
    return next((fix for sign, fix in _REMEDIES.items() if sign in error), general)


def controller(config: Config) -> Iterator[Finding]:
    """Do the services that are configured answer, and do their clocks agree with ours?"""
    for name, base in (("controller", config.controller_url), ("billing", config.billing_url)):
        if not base:
            continue
        try:
            with open_url(base.rstrip("/") + "/health", Credentials(tls_ca=config.tls_ca), timeout_s=_HTTP_S) as answer:
                date = answer.headers.get("Date")
        except UNANSWERED as error:
            code = f"HTTP {error.code}" if isinstance(error, urllib.error.HTTPError) else getattr(error, "reason", error)
            fix = _remedy(str(code), f"start it, or correct the address of the {name}")
            yield Finding(name, "fail", f"{base} does not answer its health check ({code})", fix)
            continue
        yield Finding(name, "ok", f"{base} is healthy")
        if date:
            yield _clock(name, date)
        if name == "controller":
            yield login(config)


def login(config: Config) -> Finding:
    """Whether the controller accepts our API key."""
    url = config.controller_url.rstrip("/") + "/api/v1/session"
    fix = "`wooly login`" if not config.api_key else f"`wooly login` (the key is {config.origin['WOOLY_API_KEY']})"
    try:
        with open_url(url, Credentials.of(config), timeout_s=_HTTP_S) as answer:
            who = json.loads(answer.read())
            return Finding("login", "ok", described(who) if who.get("name") != _NO_LOGIN else "the controller needs no login")
    except urllib.error.HTTPError as error:
        return Finding("login", "fail", f"the controller says: {detail_of(error)}", fix)
    except ConfigError as error:
        return Finding("login", "fail", str(error), "use an address that begins with https://")
    except UNANSWERED as error:
        return Finding("login", "fail", f"{url} does not answer ({getattr(error, 'reason', error)})", "look at the controller's log")


def _clock(name: str, date: str) -> Finding:
    skew_s = time.time() - email.utils.parsedate_to_datetime(date).timestamp()
    if abs(skew_s) > _SKEW_S:
        return Finding("clock", "warn", f"this machine is {skew_s:+.0f} s off the {name}'s clock", "synchronise the clocks (NTP)")
    return Finding("clock", "ok", f"agrees with the {name}'s")


_MARK = {"ok": "ok  ", "warn": "warn", "fail": "FAIL"}


def findings() -> Iterator[Finding]:
    """All checks, in the order in which their fixes make sense."""
    yield python()
    yield torch()
    yield entry_point()
    yield platform_parts()
    yield local_gpu()
    config, finding = configuration()
    yield finding
    if config is None:
        return  # nothing else can be asked without a configuration
    yield fallback(config)
    for check in (bus, controller):
        try:
            yield from check(config)
        except ConfigError as error:
            yield Finding(check.__name__, "fail", str(error), "correct that value")


@click.command()
@json_flag
def doctor(as_json: bool) -> None:
    """Say what is wrong on this machine, and the fix."""
    found = []
    for finding in findings():
        found.append(finding)
        if not as_json:
            echo(f"{_MARK[finding.state]}  {finding.name}: {finding.text}")
            if finding.fix:
                echo(f"      fix: {finding.fix}")
    if as_json:
        print_json([dataclasses.asdict(finding) for finding in found])
    failed = [finding.name for finding in found if finding.state == "fail"]
    if failed:
        raise CommandError(f"{len(failed)} check{'s' if len(failed) > 1 else ''} failed: {', '.join(failed)}")
