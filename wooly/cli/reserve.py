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

__all__ = ["release", "reserve"]

_POLL_S: Final = 0.5
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

    Exit code 0: it has a place; 75: it waits for one, and keeps waiting when this command has ended; 1: it is over."""
    client = _client(controller)
    until_s = time.monotonic() + wait_s
    found = _submitted(client, {**task_body(options), "id": task, "start_lease_ms": 1000 * term_s}, until_s)
    found = _placed(client, found, until_s)
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
def release(task: str, failed: bool, reason: str, controller: str) -> None:
    """End the reservation TASK: its memory is free, and what still runs on it is ended. Of one that is over: nothing."""
    found = _client(controller).release(task, failed=failed, reason=reason)
    echo(f"{found.id} {found.state}")


def _client(controller: str) -> Client:
    from wooly.api import Client

    found = configuration.load(task=False)
    return Client(controller, api_key=found.api_key, ca=found.tls_ca, insecure=found.insecure)


def _submitted(client: Client, body: dict[str, Any], until_s: float) -> Task:
    """The reservation, new or known. While the controller does not answer it is asked again."""
    while True:
        try:
            return client.submit(**{**body, "groups": tuple(body["groups"])}, queue=True, reservation=True)
        except (ApiError, NoServerError) as error:
            if not _away(error) or time.monotonic() > until_s:
                raise CommandError(str(error)) from None
        time.sleep(_POLL_S)


def _placed(client: Client, task: Task, until_s: float) -> Task:
    """The reservation when it has a place, is over, or the time is; until then it says on standard error why it waits."""
    began_s = time.monotonic()
    with progress.WaitingLine() as line:
        while task.node is None and task.state == "queued":
            try:
                line.show(_why(client, task.id), time.monotonic() - began_s)
                if time.monotonic() > until_s:
                    break
                time.sleep(_POLL_S)
                task = client.task(task.id)
            except (ApiError, NoServerError) as error:
                if not _away(error) or time.monotonic() > until_s:
                    raise CommandError(str(error)) from None
                line.show(None, time.monotonic() - began_s)
                time.sleep(_POLL_S)
    return task


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
