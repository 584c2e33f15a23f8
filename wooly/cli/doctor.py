"""``wooly doctor``: what is wrong on this machine, and the fix."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import click

from wooly.cli import checks
from wooly.cli.checks import Finding
from wooly.cli.errors import CommandError
from wooly.cli.options import json_flag
from wooly.cli.output import print_json

__all__ = ["doctor"]

_MARK = {"ok": "ok  ", "warn": "warn", "fail": "FAIL"}


def findings() -> Iterator[Finding]:
    """All checks, in the order in which their fixes make sense."""
    yield checks.python()
    yield checks.torch()
    yield checks.entry_point()
    yield checks.platform_parts()
    yield checks.local_gpu()
    config, finding = checks.configuration()
    yield finding
    if config is None:
        return  # nothing else can be asked without a configuration
    yield checks.fallback(config)
    yield from checks.bus(config)
    yield from checks.controller(config)


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
