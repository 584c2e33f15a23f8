"""``wooly up``, ``wooly server``, ``wooly controller``, ``wooly runner``, ``wooly billing``: starting services, and the embedded stack as a
child process; verifying the bill, and the bill at the end of a run.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Any, Final, NoReturn

import click

from wooly.cli.group import CommandError, echo
from wooly.cli.http import get_json
from wooly.cli.options import billing_flag, json_flag
from wooly.cli.output import print_json
from wooly.remedies import INSTALL_PLATFORM

__all__ = [
    "backup", "become", "bill_lines", "controller", "restore", "runner", "server", "up", "Stack", "missing_server_parts", "require_server",
    "service_command",
]  # fmt: skip

_READY_S: Final = 120.0
_STOP_S: Final = 30.0
_DIE_WITH_PARENT: Final = "WOOLY_DIE_WITH_PARENT"
_TAIL_LINES: Final = 3
_PLATFORM: Final = "wooly-server"


def missing_server_parts() -> list[str]:
    """Distributions that the platform needs and that are not installed: the platform's own, or what it depends on."""
    try:
        requirements = importlib.metadata.requires(_PLATFORM) or ()
    except importlib.metadata.PackageNotFoundError:
        return [_PLATFORM]
    missing = []
    for requirement in requirements:
        name, _, marker = requirement.partition(";")
        if "extra" in marker:
            continue
        package = re.split(r"[\s<>=!~\[(]", name.strip(), maxsplit=1)[0]
        try:
            importlib.metadata.distribution(package)
        except importlib.metadata.PackageNotFoundError:
            missing.append(package)
    return missing


def require_server() -> None:
    """Raises CommandError when the server's parts are missing."""
    missing = missing_server_parts()
    if missing:
        raise CommandError(f"this command needs the platform (not installed: {', '.join(missing)}); {INSTALL_PLATFORM}")


def service_command(module: str, *arguments: str) -> list[str]:
    """The platform's launcher runs ``module``. ``-P`` keeps the current folder off the path: it may hold a package ``services``."""
    return [sys.executable, "-P", "-m", "wooly_server", module, *arguments]


@dataclass(frozen=True)
class Addresses:
    """Where the parts of a stack answer."""

    nats: str
    controller: str
    billing: str
    ca: str = ""
    admin_key_file: str = ""


class Stack:
    """A running embedded stack; a context manager that stops it. It also dies with this process, however that ends."""

    def __init__(self, arguments: Sequence[str] = (), *, show_log: bool = False) -> None:
        """Start it and wait until it is ready. Raises CommandError."""
        require_server()
        self._log: IO[bytes] | None = None if show_log else tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            service_command("services.up", *arguments),
            env={**os.environ, _DIE_WITH_PARENT: str(os.getpid())},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,  # Ctrl-C is ours to handle
        )
        try:
            self.addresses = self._ready()
        except BaseException:
            self.stop()
            raise

    def _ready(self) -> Addresses:
        """The addresses from its ready line."""
        stdout = self._process.stdout
        assert stdout is not None
        line, deadline = b"", time.monotonic() + _READY_S
        while not line.endswith(b"\n"):
            readable, _, _ = select.select([stdout], [], [], max(deadline - time.monotonic(), 0))
            if not readable:
                raise CommandError(f"the embedded stack was not ready within {_READY_S:g} s{self._tail()}")
            part = os.read(stdout.fileno(), 65536)
            if not part:
                code = self._process.wait()
                raise CommandError(f"the embedded stack ended at its start (exit code {code}){self._tail()}")
            line += part
        try:
            said: Mapping[str, Any] = json.loads(line)
            more = {name: str(said[name]) for name in ("ca", "admin_key_file") if name in said}
            return Addresses(nats=said["nats"], controller=said["controller"], billing=said["billing"], **more)
        except (ValueError, KeyError, TypeError):
            raise CommandError(f"the embedded stack said {line!r} where its addresses should be; are all parts of one version?") from None

    def _tail(self) -> str:
        """The end of its log, for an error."""
        if self._log is None:
            return ""
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return "; its log ends with: " + " | ".join(lines[-_TAIL_LINES:]) if lines else ""

    def wait(self) -> int:
        """Until it ends by itself; its exit code."""
        return self._process.wait()

    def stop(self) -> None:
        """End it and wait. Safe to call twice."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        if self._log is not None:
            self._log.close()
            self._log = None

    def __enter__(self) -> Stack:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()


class _Stop(Exception):
    """SIGTERM or SIGINT came."""


@click.command()
@click.option(
    "--dir", "folder", type=click.Path(file_okay=False), default=None, help="Keep state here across restarts (default: temporary)."
)
@click.option("--backend", default=None, metavar="NAME", help="The node's backend: host (default), opencl, cuda or reference.")
@click.option("--secure", is_flag=True, help="TLS and authentication: makes certificates and a first admin key.")
@click.option(
    "--runner", is_flag=True, help="Also start a runner: it executes submitted scripts, other people's Python code, as your own user."
)
@click.option("--listen", default=None, metavar="HOST", help="Listen for other machines too (0.0.0.0: on all addresses); implies --secure.")
@click.option("--cluster", type=click.Choice(["1", "3"]), default="1", help="Servers of the bus: 1 (default), or 3 that store all facts.")
def up(folder: str | None, backend: str | None, secure: bool, runner: bool, listen: str | None, cluster: str) -> None:
    """Start bus, controller, billing and one node on this machine; print how to use them; run until Ctrl-C."""
    arguments = [*(("--dir", folder) if folder else ()), *(("--backend", backend) if backend else ()), *(("--secure",) if secure else ())]
    arguments += [*(("--runner",) if runner else ()), *(("--listen", listen) if listen else ()), "--cluster", cluster]

    def stop(number: int, frame: Any) -> NoReturn:
        # Once: a second signal while the stack is stopping must not interrupt that.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise _Stop

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    try:
        with Stack(arguments, show_log=True) as stack:
            found = stack.addresses
            echo(f"export WOOLY_NATS_URL={found.nats}")
            echo(f"export CONTROLLER_URL={found.controller}")
            echo(f"export WOOLY_BILLING_URL={found.billing}")
            if found.ca:
                echo(f"export WOOLY_TLS_CA={found.ca}")
                echo(f"export WOOLY_API_KEY=$(cat {found.admin_key_file})  # the admin's; make others: wooly keys create")
            echo(f"# controller: {found.controller}   (the dashboard: open it in a browser)   stop with Ctrl-C")
            sys.stdout.flush()
            code = stack.wait()
        raise CommandError(f"the embedded stack ended by itself (exit code {code}); its log above says why")
    except _Stop:
        pass


def become(module: str, *arguments: str) -> NoReturn:
    """Turn this process into a service: same pid, so that signals and containers see the service itself."""
    require_server()
    sys.stdout.flush()
    sys.stderr.flush()
    command = service_command(module, *arguments)
    os.execv(command[0], command)


_DIR = click.option("--dir", "folder", type=click.Path(file_okay=False), default=None, help="Of `wooly up --dir FOLDER`.")
_KEYRING = click.option(
    "--keyring", type=click.Path(file_okay=False), default=None, help="The keyring of the installation, which authenticates."
)


@click.command()
@click.argument("copy", type=click.Path())
@_DIR
@_KEYRING
def backup(copy: str, folder: str | None, keyring: str | None) -> None:
    """Copy event log, configuration, runs, and the keyring, to the new folder COPY, while everything runs. The bus is that of --dir, or of
    WOOLY_NATS_URL. The copy holds secrets if a keyring is in it."""
    become("services.up.backup", "save", copy, *_given(("--dir", folder), ("--keyring", keyring)))


@click.command()
@click.argument("copy", type=click.Path())
@_DIR
@_KEYRING
@click.option("--cluster", type=click.Choice(["1", "3"]), default="1", help="Servers of the bus of --dir.")
def restore(copy: str, folder: str | None, keyring: str | None, cluster: str) -> None:
    """Bring the COPY of `wooly backup` back: with --dir into a new folder for `wooly up --dir`, else into the empty bus at WOOLY_NATS_URL,
    before services are started."""
    become("services.up.backup", "load", copy, *_given(("--dir", folder), ("--keyring", keyring), ("--cluster", cluster)))


def _given(*options: tuple[str, str | None]) -> list[str]:
    return [word for name, value in options if value is not None for word in (name, value)]


@click.command()
def server() -> None:
    """Run a node's server. Settings come from the environment: WOOLY_NATS_URL, NODE_NAME, WOOLY_BACKEND, ..."""
    become("services.server")


@click.command()
def controller() -> None:
    """Run the controller. Settings come from the environment: WOOLY_NATS_URL, WOOLY_HTTP, WOOLY_ETCD_URL, ..."""
    become("services.controller")


@click.command()
def runner() -> None:
    """Run submitted scripts on this machine. IT EXECUTES TENANTS' PYTHON CODE AS ITS OWN UNIX USER: a script can read what that user can
    read, the runner's credentials included, and reach what this machine can reach. Give it a user or a container of its own.

    Settings come from the environment: WOOLY_NATS_URL, CONTROLLER_URL, RUNNER_NAME, RUNNER_SLOTS, RUNNER_TENANTS, ...
    """
    become("services.runner")


_PATH = "/api/v1/billing/credits"
_WHAT = "billing service"
_VERIFY_S: Final = 600.0
"""The whole log is read: some ten thousand messages a second."""


def bill_lines(address: str) -> Iterator[str]:
    """The whole bill of a private stack, for the end of a run. Raises CommandError."""
    total = get_json(address, _PATH, {"by": "tenant"}, what=_WHAT)["total"]
    yield f"wooly: bill: {total['core_credits']} core credits + {total['vram_credits']} VRAM credits"


@click.group(invoke_without_command=True)
@click.pass_context
def billing(context: click.Context) -> None:
    """Run the billing service (settings come from the environment), or verify the bill."""
    if context.invoked_subcommand is None:
        become("services.billing")


@billing.command()
@billing_flag
@json_flag
def verify(billing: str, as_json: bool) -> None:
    """Recompute the whole bill from the log and compare; a difference is an error."""
    result = get_json(billing, "/api/v1/billing/verify", what=_WHAT, timeout_s=_VERIFY_S)
    if as_json:
        print_json(result)
    elif result["ok"]:
        echo(f"the bill is right: {result['rows']} rows recomputed from the log up to event {result['position']}, no difference")
    if not result["ok"]:
        findings = result.get("findings") or []
        first = result.get("first_difference") or (findings[0] if findings else "no detail given")
        raise CommandError(f"the bill differs from the log: {first}")
