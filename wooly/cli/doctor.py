"""``wooly doctor``: what is wrong on this machine, and the fix."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import click

from wooly.cli import checks_local, checks_remote
from wooly.cli.checks import Finding
from wooly.cli.errors import CommandError
from wooly.cli.options import json_flag
from wooly.cli.output import print_json

__all__ = ["doctor"]

_MARK = {"ok": "ok  ", "warn": "warn", "fail": "FAIL"}


def findings() -> Iterator[Finding]:
    """All checks, in the order in which their fixes make sense."""
    yield checks_local.python()
    yield checks_local.torch()
    yield checks_local.entry_point()
    yield checks_local.platform_parts()
    yield checks_local.local_gpu()
    config, finding = checks_local.configuration()
    yield finding
    if config is None:
        return  # nothing else can be asked without a configuration
    yield checks_local.fallback(config)
    yield from checks_remote.bus(config)
    yield from checks_remote.controller(config)


@click.command()
@json_flag
def doctor(as_json: bool) -> None:
    """Say what is wrong on this machine, and the fix."""
    found = []
    for finding in findings():
        found.append(finding)
        if not as_json:
            click.echo(f"{_MARK[finding.state]}  {finding.name}: {finding.text}")
            if finding.fix:
                click.echo(f"      fix: {finding.fix}")
    if as_json:
        print_json([dataclasses.asdict(finding) for finding in found])
    failed = [finding.name for finding in found if finding.state == "fail"]
    if failed:
        raise CommandError(f"{len(failed)} check{'s' if len(failed) > 1 else ''} failed: {', '.join(failed)}")
