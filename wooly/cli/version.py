"""``wooly version``."""

from __future__ import annotations

import importlib.metadata
import platform

import click

from wooly import __version__
from wooly.cli.group import echo
from wooly.cli.options import json_flag
from wooly.cli.output import print_json


def installed(package: str) -> str | None:
    """The installed version of ``package``, without importing it."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


@click.command()
@json_flag
def version(as_json: bool) -> None:
    """Show the versions of wooly, torch and Python."""
    found = {"wooly": __version__, "torch": installed("torch"), "python": platform.python_version()}
    if as_json:
        print_json(found)
        return
    for name, text in found.items():
        echo(f"{name} {text or 'not installed'}")
