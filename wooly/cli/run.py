"""``wooly run script.py``: the script as ``python script.py`` would run it, with the device switched on."""

from __future__ import annotations

import atexit
import builtins
import importlib.machinery
import os
import runpy
import sys
from types import ModuleType, TracebackType
from typing import Any, NoReturn

import click

from wooly import _autoload, outcome
from wooly import config as configuration
from wooly.cli.group import CommandError, echo
from wooly.cli.options import config_flags, given_flags
from wooly.errors import ActivationError, ConfigError, ServiceError

_OURS = (ActivationError, ConfigError, ServiceError)
"""Errors that no line of the script explains: one line instead of a traceback."""


@click.command(context_settings={"allow_interspersed_args": False})
@config_flags
@click.option("--embedded", is_flag=True, help="Start a private stack for the duration of the script, and print its bill last.")
@click.option("--backend", default=None, metavar="NAME", help="With --embedded: the node's backend.")
@click.option("-m", "--module", is_flag=True, help="SCRIPT is the name of a module, as in python -m.")
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(script: str, arguments: tuple[str, ...], embedded: bool, backend: str | None, module: bool, **options: Any) -> None:
    """Run SCRIPT with the remote device switched on; everything after it goes to the script."""
    _launch(script, arguments, embedded, backend, module, given_flags(options))


@click.command(context_settings={"allow_interspersed_args": False})
@config_flags
@click.option("--embedded", is_flag=True, help="Start a private stack for the duration of the script.")
@click.option("-m", "--module", is_flag=True, help="SCRIPT is the name of a module, as in python -m.")
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def profile(script: str, arguments: tuple[str, ...], embedded: bool, module: bool, **options: Any) -> None:
    """Run SCRIPT as `wooly run` does, say what bounds it, and write a timeline (wooly-profile.json, or --profile FILE)."""
    _launch(script, arguments, embedded, None, module, {"WOOLY_PROFILE": "wooly-profile.json", **given_flags(options)})


def _launch(script: str, arguments: tuple[str, ...], embedded: bool, backend: str | None, module: bool, flags: dict[str, str]) -> None:
    if not module and not os.path.isfile(script):
        raise CommandError(f"{script!r} is not a file; give the path of a Python script (or -m and a module's name)")
    if embedded:
        _start_stack(flags, backend)
    settings = configuration.load(flags)
    if not settings.nats_urls:
        raise CommandError("no bus is named: set WOOLY_NATS_URL (or --nats-url), or add --embedded to run on a private stack")
    os.environ.update(flags)  # processes that the script starts get the same device
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "1"
    _autoload.launch(flags)
    sys.argv = [script, *arguments]
    if module:
        _run(lambda: _run_module(script))
    else:
        _run(lambda: _run_file(script))


def _start_stack(flags: dict[str, str], backend: str | None) -> None:
    """A private stack until this process ends; its addresses go into the environment."""
    from wooly.cli.services import Stack, bill_lines

    echo("wooly: starting a private stack ...", err=True)
    stack = Stack(("--backend", backend) if backend else ())
    found = stack.addresses
    flags["WOOLY_NATS_URL"] = found.nats
    flags["WOOLY_BILLING_URL"] = found.billing
    if "GPUS" in flags or os.environ.get("GPUS"):  # devices named by number are asked of the node itself
        os.environ.pop("CONTROLLER_URL", None)
        flags.pop("CONTROLLER_URL", None)
    else:
        flags["CONTROLLER_URL"] = found.controller
    pid = os.getpid()

    def finish() -> None:
        if os.getpid() != pid:
            return  # a forked child's exit handlers; the stack is its parent's
        activation = sys.modules.get("wooly.activation")  # loaded where the script imported torch
        try:
            if activation is not None:
                activation.end_sessions()
            for line in bill_lines(found.billing):
                echo(line, err=True)
        except CommandError as error:
            echo(f"wooly: {error}", err=True)
        finally:
            stack.stop()

    # First registered, so called last: after the script's own handlers have run.
    atexit.register(finish)


def _run_file(script: str) -> None:
    path = os.path.realpath(script)
    _first_on_path(os.path.dirname(path))
    main = ModuleType("__main__")
    loader = importlib.machinery.SourceFileLoader("__main__", script)
    main.__dict__.update(__file__=script, __loader__=loader, __builtins__=builtins, __spec__=None, __package__=None, __cached__=None)
    with open(script, "rb") as file:
        source = file.read()
    sys.modules["__main__"] = main
    exec(compile(source, script, "exec", dont_inherit=True), main.__dict__)


def _run_module(name: str) -> None:
    _first_on_path(os.getcwd())
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def _first_on_path(folder: str) -> None:
    """``folder`` where Python puts the script's own; for a console script the first entry is the folder of `wooly` itself."""
    if sys.flags.safe_path:
        sys.path.insert(0, folder)
    else:
        sys.path[0] = folder


def _run(start: Any) -> None:
    """Call ``start``; an exception ends the process as Python would end it, without our frames in the traceback."""
    try:
        start()
    except SystemExit:
        raise
    except BaseException as error:  # whatever a script may raise; it is shown and becomes the exit code
        outcome.failed_with(error)
        _end(error)


def _end(error: BaseException) -> NoReturn:
    ours = _cause(error)
    if ours is not None:
        raise CommandError(str(ours)) from None
    trace = _without_us(error.__traceback__)
    sys.excepthook(type(error), error.with_traceback(trace), trace)
    raise SystemExit(130 if isinstance(error, KeyboardInterrupt) else 1) from None


def _cause(error: BaseException | None) -> BaseException | None:
    """The error of ours that ``error`` was raised from, if that is why it was raised."""
    while error is not None:
        if isinstance(error, _OURS):
            return error
        error = error.__cause__
    return None


def _without_us(trace: TracebackType | None) -> TracebackType | None:
    """``trace`` from the script's first frame on."""
    mine = (__file__, runpy.__file__, "<frozen runpy>")
    while trace is not None and trace.tb_frame.f_code.co_filename in mine:
        trace = trace.tb_next
    return trace
