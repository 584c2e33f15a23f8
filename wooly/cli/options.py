"""Flags shared by commands: one for every configuration key, addresses, and output forms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from wooly import config as configuration
from wooly.cli.group import CommandError
from wooly.config import KEYS

F = TypeVar("F", bound=Callable[..., Any])

json_flag: Final = click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")

_FLAGS: Final = [key for key in KEYS if not key.secret]
_CONTROLLER_DEFAULT: Final = "http://127.0.0.1:8080"


def config_flags(function: F) -> F:
    """A flag for every key but secrets (every user of a machine sees command lines); the values go to ``given_flags`` as
    ``key_<field>``."""
    for key in reversed(_FLAGS):
        help_text = f"{key.help} ({key.name}: {key.allowed})"
        form: dict[str, Any] = {"is_flag": True, "flag_value": "1"} if key.bare else {"metavar": "VALUE"}
        option = click.option(configuration.flag_name(key), f"key_{key.field}", default=None, help=help_text, **form)
        function = option(function)
    return function


def given_flags(options: dict[str, Any]) -> dict[str, str]:
    """The configuration flags that were given, by key name; takes them out of ``options``."""
    given = {}
    for key in _FLAGS:
        value = options.pop(f"key_{key.field}")
        if value is not None:
            given[key.name] = value
    return given


def nats_flag(function: F) -> F:
    return click.option("--nats-url", default=None, metavar="URL", help="The bus (default: WOOLY_NATS_URL).")(function)


def _address_flag(flag: str, variable: str, default: str, what: str) -> Callable[[F], F]:
    """A URL option; given or not, the function gets the address to ask. ``default``: the default in words."""
    fallback = _CONTROLLER_DEFAULT

    def value_of(context: click.Context, parameter: click.Parameter, value: str | None) -> str:
        if not value:
            found = configuration.load(task=False)
            value = (variable == "WOOLY_BILLING_URL" and found.billing_url) or found.controller_url or fallback
        if not value.startswith(("http://", "https://")):
            raise CommandError(f"{flag} {value!r} is not a URL; use one such as {fallback}")
        return value.rstrip("/")

    return click.option(flag, default=None, metavar="URL", callback=value_of, help=f"The {what} (default: {default}).")


controller_flag: Final = _address_flag("--controller", "CONTROLLER_URL", f"CONTROLLER_URL, else {_CONTROLLER_DEFAULT}", "controller")
billing_flag: Final = _address_flag("--billing", "WOOLY_BILLING_URL", "WOOLY_BILLING_URL, else the controller", "billing service")

_TASK: Final = (
    click.option(
        "--required-vram", type=click.IntRange(1), metavar="MB", help="Device memory on each GPU, in MiB (default: the cluster's)."
    ),
    click.option("--prio", type=click.IntRange(0, 4), help="Priority, 0 is highest (default: the middle of what the tier allows)."),
    click.option("--gpus", type=click.IntRange(1, 64), default=1, show_default=True, help="Devices, all on one node."),
    click.option("--exclusive", is_flag=True, help="No other task on its devices."),
    click.option("--noswap", is_flag=True, help="Never swap its memory out."),
    click.option("--group", "groups", multiple=True, help="Only nodes of this group; may be given again."),
    click.option("--tenant", default="", help="The tenant that owns the task (default: your own)."),
    click.option("--title", default="", help="Name of the task in lists (default: the name of its script)."),
)


def task_flags(function: F) -> F:
    """A flag for each thing that a task asks for."""
    for option in reversed(_TASK):
        function = option(function)
    return function


def task_body(options: dict[str, Any]) -> dict[str, Any]:
    """The fields of a submission by the values of ``task_flags``."""
    body = {
        "required_vram_mb": options["required_vram"],
        "priority": options["prio"],
        "gpu_count": options["gpus"],
        "gpu_mode": "Exclusive" if options["exclusive"] else "Shared",
        "noswap": options["noswap"],
        "groups": list(options["groups"]),
        "title": options["title"],
    }
    return {**body, **({"tenant": options["tenant"]} if options["tenant"] else {})}
