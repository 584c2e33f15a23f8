"""``wooly reserve`` and ``wooly release``: a place on a device that an outside scheduler holds for a job."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import click

from wooly import config as configuration
from wooly import progress
from wooly.cli.group import CommandError, echo
from wooly.cli.options import controller_flag, json_flag, task_body, task_flags
from wooly.cli.output import print_json
from wooly.errors import ApiError, NoServerError

if TYPE_CHECKING:
    from wooly.api import Client
    from wooly.api.answers import Task, Waiting

_POLL_S: Final = 0.5
_POLL_MAX_S: Final = 5.0
"""A scheduler waits with hundreds of these commands: the longer one has waited, the more rarely it asks."""
_STILL_WAITS: Final = 75
"""EX_TEMPFAIL of sysexits.h: try again later."""
_OVER: Final = 1


@click.command()
@task_flags
@click.option("--id", "task", required=True, help="Id of the reservation: 1 to 64 letters, digits, '-' or '_'. The same again is the same.")
@click.option("--term", "term_s", type=click.IntRange(0, 604_800), default=0, metavar="SECONDS", help="Time it is held without a session "
              "(default: the cluster's).")  # fmt: skip
@click.option("--wait", "wait_s", type=click.IntRange(0), default=0, metavar="SECONDS", help="Wait that long for a place (default: not).")
@controller_flag
@json_flag
def reserve(task: str, term_s: int, wait_s: int, controller: str, as_json: bool, **options: Any) -> int:
    """Hold a place on a device for a job, and print the variables with which its scripts use it, as NAME=VALUE.

    Exit code 0: it has a place; 75: it waits for one, and keeps waiting when this command has ended, or the controller does not answer;
    1: it is over."""
    client = _client(controller)
    until_s = time.monotonic() + wait_s
    body = {**task_body(options), "id": task, "start_lease_ms": 1000 * term_s}
    found = _placed(client, {**body, "groups": tuple(body["groups"])}, until_s)
    if found is None:
        return _STILL_WAITS
    if as_json:
        import msgspec

        print_json(msgspec.to_builtins(found))
    elif found.node is not None and found.state in ("queued", "started"):
        for name, value in _variables(found.id, controller).items():
            echo(f"{name}={value}")
    if found.state not in ("queued", "started"):
        echo(f"wooly: reservation {found.id} is {found.state}{f': {found.reason}' if found.reason else ''}", err=True)
        return _OVER
    return 0 if found.node is not None else _STILL_WAITS


@click.command()
@click.option("--failed", is_flag=True, help="The job failed.")
@click.option("--reason", default="", help="Shown with the task.")
@controller_flag
@click.argument("task")
def release(task: str, failed: bool, reason: str, controller: str) -> int:
    """End the reservation TASK: its memory is free, and what still runs on it is ended. Of one that is over: nothing.

    Exit code 75: the controller does not answer."""
    try:
        found = _client(controller).release(task, failed=failed, reason=reason)
    except (ApiError, NoServerError) as error:
        if not _away(error):
            raise
        echo(f"wooly: {error}", err=True)
        return _STILL_WAITS
    echo(f"{found.id} {found.state}")
    return 0


def _client(controller: str) -> Client:
    from wooly.api import Client

    found = configuration.load(task=False)
    return Client(controller, api_key=found.api_key, ca=found.tls_ca, insecure=found.insecure)


def _placed(client: Client, body: dict[str, Any], until_s: float) -> Task | None:
    """Submit the reservation, new or known, and wait until it has a place, is over, or the time is; None when the controller does not
    answer then. Meanwhile say on standard error why it waits."""
    began_s, task, away = time.monotonic(), None, ""
    with progress.WaitingLine() as line:
        while True:
            waited_s = time.monotonic() - began_s
            try:
                task = client.submit(**body, queue=True, reservation=True) if task is None else client.task(task.id)
                if task.node is not None or task.state != "queued":
                    return task
                line.show(_why(client, task.id), waited_s)
                away = ""
            except (ApiError, NoServerError) as error:
                if not _away(error):
                    raise CommandError(str(error)) from None
                if str(error) != away:
                    echo(f"wooly: waiting for the controller: {error}", err=True)
                away = str(error)
            if time.monotonic() > until_s:
                return None if away else task
            time.sleep(min(_POLL_MAX_S, _POLL_S + waited_s / 20))


def _why(client: Client, task: str) -> Waiting | None:
    """None once it does not wait any more."""
    try:
        return client.waiting(task)
    except ApiError as error:
        if error.status == 409:
            return None
        raise


def _away(error: ApiError | NoServerError) -> bool:
    return isinstance(error, NoServerError) or error.status >= 500


def _variables(task: str, controller: str) -> dict[str, str]:
    found = configuration.load(task=False)
    known = {"WOOLY_TASK_ID": task, "CONTROLLER_URL": controller, "WOOLY_NATS_URL": ",".join(found.nats_urls), "WOOLY_TLS_CA": found.tls_ca}
    return {name: value for name, value in known.items() if value}
