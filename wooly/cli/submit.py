"""``wooly submit`` and ``wooly logs``: scripts that a runner executes."""

from __future__ import annotations

import os
import sys
import time
from typing import Any, Final
from urllib.parse import quote

import click

from bus_schemas.texts import printable
from wooly.cli.group import CommandError, echo, encodable
from wooly.cli.http import get_json, send_json
from wooly.cli.options import controller_flag, json_flag, task_body, task_flags
from wooly.cli.output import print_json

_SCRIPT_BYTES_MAX: Final = 256 << 10
_WAIT_S: Final = 8
_RETRY_S: Final = 1.0
_AWAY_MAX_S: Final = 60.0
"""How long a log is followed while no controller answers."""
_UNKNOWN: Final = 1
"""Exit code where the script's is not known."""


@click.command(context_settings={"allow_interspersed_args": False})
@task_flags
@click.option("--env", "variables", multiple=True, metavar="NAME=VALUE", help="A variable of the script; may be given again. No secrets.")
@click.option("--wall", "wall_s", type=click.IntRange(1, 604_800), default=86_400, show_default=True, help="Seconds it may run.")
@click.option("--ram", "ram_mb", type=click.IntRange(0), default=0, metavar="MB", help="Limit of its address space in MiB (default: none).")
@click.option("--queue-timeout", "queue_s", type=click.IntRange(0), default=0, help="Seconds it may wait in the queue (default: no limit).")
@click.option("--runner", default="", help="The only runner that may execute it (default: any).")
@click.option("--webhook", default="", metavar="URL", help="This URL gets a POST when the task has ended, and when a budget runs low.")
@click.option("--follow/--no-follow", default=True, show_default=True, help="Show its log until it ends, and end with its exit code.")
@controller_flag
@json_flag
@click.argument("script", type=click.Path(dir_okay=False))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def submit(script: str, arguments: tuple[str, ...], controller: str, follow: bool, as_json: bool, **options: Any) -> int:
    """Have a runner execute SCRIPT, one Python file; everything after it goes to the script. Prints the task's id."""
    body = _body(script, arguments, options)
    task = send_json("POST", controller, "/api/v1/runs", body, what="controller")
    if as_json:
        print_json(task)
        return 0
    name = str(task["id"])
    echo(name, err=follow)
    if not follow:
        return 0
    if task["node"] is None:
        echo("wooly: it waits for a place", err=True)
    try:
        return _exit_code(_show_log(controller, name, follow=True))
    except KeyboardInterrupt:
        echo(f"\nwooly: the script keeps running; see `wooly logs {name} -f`, end it with `wooly tasks cancel {name}`", err=True)
        return 130


@click.command()
@click.argument("task")
@click.option("-f", "--follow", is_flag=True, help="Go on until the script ends, and end with its exit code.")
@controller_flag
def logs(task: str, controller: str, follow: bool) -> int:
    """Show what the script of TASK has written."""
    run = _show_log(controller, task, follow=follow)
    return _exit_code(run) if follow else 0


def _body(script: str, arguments: tuple[str, ...], options: dict[str, Any]) -> dict[str, Any]:
    variables: dict[str, str] = {}
    for text in options["variables"]:
        name, sign, value = text.partition("=")
        if not sign:
            raise CommandError(f"--env {text!r} has no value; write NAME=VALUE")
        variables[name] = value
    return {
        **task_body(options),
        "script": _text_of(script),
        "name": os.path.basename(script),
        "arguments": list(arguments),
        "environment": variables,
        "wall_limit_s": options["wall_s"],
        "ram_limit_mb": options["ram_mb"],
        "queue_timeout_ms": 1000 * options["queue_s"],
        "runner": options["runner"],
        "webhook": options["webhook"],
    }


def _text_of(script: str) -> str:
    try:
        with open(script, "rb") as file:
            data = file.read(_SCRIPT_BYTES_MAX + 1)
    except OSError as error:
        raise CommandError(f"{script!r} cannot be read ({error.strerror}); give the path of a Python script") from None
    if len(data) > _SCRIPT_BYTES_MAX:
        raise CommandError(f"{script!r} has more than {_SCRIPT_BYTES_MAX >> 10} KiB; a run is one small file, put data elsewhere")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise CommandError(f"{script!r} is not UTF-8 text") from None


def _show_log(controller: str, task: str, *, follow: bool) -> dict[str, Any]:
    """Print the log; the run then. A controller that does not answer is asked again for a minute once it has answered."""
    after, heard_s = 0, 0.0
    while True:
        path = f"/api/v1/tasks/{quote(task, safe='')}/log"
        try:
            part = get_json(controller, path, {"after": str(after), "wait_s": str(_WAIT_S if follow else 0)}, what="controller")
        except CommandError:
            if not follow or time.monotonic() - heard_s > _AWAY_MAX_S:
                raise
            time.sleep(_RETRY_S)
            continue
        heard_s = time.monotonic()
        text, moved = str(part["text"]), part["next"] != after
        if sys.stdout is not None:  # None: it was closed before the start
            sys.stdout.write(encodable(printable(text) if sys.stdout.isatty() else text))
            sys.stdout.flush()
        after = part["next"]
        if part["run"] is None:
            raise CommandError(f"no runner has to do with task {task}: its script was started elsewhere, or ended more than a week ago")
        if part["ended"] or not (follow or moved):
            return dict(part["run"])


def _exit_code(run: dict[str, Any]) -> int:
    """The script's, as a shell gives it; says on standard error what the code does not."""
    if run["reason"]:
        echo(f"wooly: task {run['task']}: {run['reason']}", err=True)
    if run["exit_code"] is not None:
        return int(run["exit_code"])
    return 128 + int(run["signal"]) if run["signal"] else _UNKNOWN
