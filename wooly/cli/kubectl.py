"""``kubectl wooly``: commands of ``wooly`` for those who know their pods by name. kubectl runs a program called kubectl-wooly for it."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import click

from wooly.cli.group import CommandError, echo
from wooly.cli.group import main as wooly

__all__ = ["app", "main"]

_PASSED_ON = {"ignore_unknown_options": True, "help_option_names": []}


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def app() -> None:
    """Why pods wait for a device, what runs on devices, and what it cost."""


@app.command(context_settings=_PASSED_ON)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def top(arguments: tuple[str, ...]) -> None:
    """Watch tasks; the options are those of `wooly top`."""
    wooly(["top", *arguments])


@app.command(name="credits", context_settings=_PASSED_ON)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def credits_(arguments: tuple[str, ...]) -> None:
    """Show the credits used; the options are those of `wooly credits`."""
    wooly(["credits", *arguments])


@app.command()
@click.option("-n", "--namespace", default="", help="The pod's namespace (default: that of kubectl's context).")
@click.argument("pod")
def why(pod: str, namespace: str) -> None:
    """Tell why POD waits for a device, or once it has one, why its work waited there."""
    found = _woolytask(pod, namespace)
    status = found.get("status") or {}
    if status.get("phase") in ("Waiting", "Refused") or status.get("remedy"):
        remedy = f"; what helps: {status['remedy']}" if status.get("remedy") else ""
        echo(f"pod {pod} is {status['phase'].lower()}: {status.get('reason') or 'it was not looked at yet'}{remedy}")
    else:
        wooly(["why", found["spec"]["task"]])


def _woolytask(pod: str, namespace: str) -> dict[str, Any]:
    """The WoolyTask of the pod. Raises CommandError."""
    command = ["kubectl", "get", "woolytask", pod, "-o", "json", *(["--namespace", namespace] if namespace else [])]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            found: dict[str, Any] = json.loads(done.stdout)
            return found
    except (OSError, ValueError) as error:
        raise CommandError(f"kubectl cannot be asked ({error}); install it, and set its context") from None
    raise CommandError(f"{done.stderr.strip()}; does the pod have the label gpu-runtime: woolyai?")


def main() -> None:
    """Entry point of ``kubectl-wooly``."""
    wooly(None, app, "kubectl wooly")
