"""The command group: finds commands by name, imports only the one that runs, and turns errors into one line and exit code 2.
``wooly completion`` prints the script that makes a shell complete its commands and flags.
"""

from __future__ import annotations

import difflib
import errno
import importlib
import os
import sys
from typing import Any, Final

import click

from bus_schemas.texts import printable
from wooly import __version__
from wooly.errors import WoolyError


class CommandError(Exception):
    """The message is one line that says what to do."""


def echo(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print ``text``, which may hold words of other parties: every command prints by this or by ``output``."""
    click.echo(encodable(printable(text)), err=err, nl=nl)


def encodable(text: str) -> str:
    """``text`` with the letters escaped that the encoding of standard output lacks."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


EXIT_ERROR: Final = 2

COMMANDS: Final = {
    "run": ("wooly.cli.run", "run", "Run a script with the remote device switched on."),
    "profile": ("wooly.cli.run", "profile", "Run a script and say where its time goes."),
    "debug": ("wooly.cli.debug", "debug", "Rebuild the memory of a recorded script; find its NaN."),
    "submit": ("wooly.cli.submit", "submit", "Have a runner execute a script."),
    "logs": ("wooly.cli.submit", "logs", "Show what a submitted script has written."),
    "reserve": ("wooly.cli.reserve", "reserve", "Hold a place on a device for a job of another scheduler."),
    "release": ("wooly.cli.reserve", "release", "End a reservation."),
    "slurm": ("wooly.cli.slurm", "slurm", "Reservations for the jobs of a Slurm cluster."),
    "up": ("wooly.cli.services", "up", "Start bus, controller, billing and a node on this machine."),
    "backup": ("wooly.cli.services", "backup", "Copy the state of a running installation to a folder."),
    "restore": ("wooly.cli.services", "restore", "Bring a copy back, into an empty bus."),
    "server": ("wooly.cli.services", "server", "Run a node's server (for compose files)."),
    "controller": ("wooly.cli.services", "controller", "Run the controller (for compose files)."),
    "runner": ("wooly.cli.services", "runner", "Run submitted scripts on this machine."),
    "billing": ("wooly.cli.services", "billing", "Run billing, or verify the bill."),
    "ping": ("wooly.cli.bus", "ping", "Ask every node on the bus for an answer."),
    "top": ("wooly.cli.top", "top", "Watch tasks: priority, share, waits, memory, credits a second."),
    "nodes": ("wooly.cli.reports", "nodes", "List nodes and their GPUs; drain, resume."),
    "tasks": ("wooly.cli.reports", "tasks", "List tasks; cancel, change priority."),
    "groups": ("wooly.cli.reports", "groups", "List groups of nodes: create, edit, delete."),
    "replay": ("wooly.cli.replay", "replay", "Make recorded decisions again, or by another policy."),
    "why": ("wooly.cli.replay", "why", "Show why a task waited, and what ran instead."),
    "login": ("wooly.cli.login", "login", "Log in: store an API key for these services."),
    "logout": ("wooly.cli.login", "logout", "Revoke the stored key and forget it."),
    "keys": ("wooly.cli.access", "keys", "API keys: list, create, revoke."),
    "tenants": ("wooly.cli.access", "tenants", "Tenants: list, create, disable."),
    "quotas": ("wooly.cli.access", "quotas", "Quotas of tenants: used, limit."),
    "users": ("wooly.cli.access", "users", "Users: list, create, change, disable."),
    "audit": ("wooly.cli.audit", "audit", "Audit records: export signed, verify offline."),
    "credits": ("wooly.cli.credits", "credits_", "Credits: used, granted, budgets, statements."),
    "utilization": ("wooly.cli.utilization", "utilization", "States of devices, waste and its cost; watch other GPUs."),
    "model-cache": ("wooly.cli.model_cache", "model_cache", "Keep models on a node: list, add, delete."),
    "wis": ("wooly.cli.wis_tools", "wis", "Assemble, disassemble and verify WIS programs."),
    "doctor": ("wooly.cli.doctor", "doctor", "Say what is wrong on this machine, and the fix."),
    "completion": ("wooly.cli.group", "completion", "Print the completion script of bash, zsh or fish."),
    "version": ("wooly.cli.version", "version", "Show versions."),
}
"""name: (module, attribute, one line of help)."""


class _Group(click.Group):
    """Commands by name, imported when asked for; the list of commands needs no import at all."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-") and not ctx.resilient_parsing:
            close = difflib.get_close_matches(name, COMMANDS, n=1)
            ctx.fail(f"No such command {name!r}." + (f" Did you mean {close[0]!r}?" if close else ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in COMMANDS.items()])


@click.command(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="wooly")
def app() -> None:
    """Run unmodified PyTorch programs on remote GPUs, and see where they ran and what they cost."""


@click.command()
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
def completion(shell: str) -> None:
    """Print the completion script of SHELL.

    \b
    bash:  eval "$(wooly completion bash)"   in ~/.bashrc
    zsh:   eval "$(wooly completion zsh)"    in ~/.zshrc
    fish:  wooly completion fish > ~/.config/fish/completions/wooly.fish
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None  # click has the three that the argument allows
    echo(kind(app, {}, "wooly", "_WOOLY_COMPLETE").source())


def _fail(message: str) -> int:
    echo(f"wooly: {message}", err=True)
    return EXIT_ERROR


def main(arguments: list[str] | None = None, command: click.Command = app, name: str = "wooly") -> Any:
    """Entry point of ``command``: exits with 0, with 2 after an error of ours or of usage, with 130 after Ctrl-C, or with the script's own
    code."""
    try:
        code = command.main(arguments, prog_name=name, standalone_mode=False)
    except click.ClickException as error:
        error.show()
        code = EXIT_ERROR
    except click.Abort:
        code = 130
    except (CommandError, WoolyError) as error:
        code = _fail(str(error))
    except OSError as error:
        if error.filename is not None or error.errno not in (errno.EPIPE, errno.ENOSPC):
            raise
        # The reader of our output has closed the pipe, as in `wooly tasks | head`, or its disk is full; nothing more can be written, not
        # even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1 if error.errno == errno.EPIPE else _fail(f"the output cannot be written: {error.strerror}")
    sys.exit(code if isinstance(code, int) else 0)
