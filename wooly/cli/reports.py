"""``wooly nodes`` and ``wooly tasks``: what the controller knows.

May live here: asking the controller and showing its answers. May not: deciding anything.
"""

from __future__ import annotations

from typing import Any

import click

from wooly.cli.http import get_json
from wooly.cli.options import controller_flag, json_flag
from wooly.cli.output import bytes_text, print_json, print_table

__all__ = ["nodes", "tasks"]

_WHAT = "controller"


@click.command()
@controller_flag
@json_flag
def nodes(controller: str, as_json: bool) -> None:
    """List nodes, their GPUs and how busy they are."""
    found = get_json(controller, "/api/v1/nodes", what=_WHAT)
    live = get_json(controller, "/api/v1/telemetry", what=_WHAT)
    if as_json:
        print_json({**found, "telemetry": live["items"]})
        return
    measured = {(seen["node"], seen["gpu"]): seen for seen in live["items"]}
    rows = [
        _device_row(node, device, measured.get((node["id"], device["index"]), {}), first=device is node["devices"][0])
        for node in found["items"]
        for device in node["devices"]
    ]
    columns = ("node", "state", "gpu", "device", "utilization", "starvation", "VRAM used", "VRAM", "tasks")
    print_table(columns, rows, numbers=columns[4:], empty="no node has joined; start one with: wooly server")


def _device_row(node: dict[str, Any], device: dict[str, Any], seen: dict[str, Any], *, first: bool) -> tuple[Any, ...]:
    used = seen.get("vram_used_bytes")
    return (
        node["name"] if first else "",
        node["state"] if first else "",
        device["index"],
        device["name"],
        _percent(seen.get("utilization_percent")),
        _percent(seen.get("starvation_percent")),
        "" if used is None else bytes_text(used),
        bytes_text(device["vram_bytes"]),
        len(device["tasks"]),
    )


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.0f} %"


@click.command()
@controller_flag
@click.option("--state", type=click.Choice(["queued", "started", "completed", "failed"]), default=None, help="Only tasks in this state.")
@click.option("--node", default=None, metavar="ID", help="Only tasks of this node.")
@click.option("--tenant", default=None, metavar="NAME", help="Only tasks of this tenant.")
@json_flag
def tasks(controller: str, state: str | None, node: str | None, tenant: str | None, as_json: bool) -> None:
    """List tasks, newest first, and where each was placed."""
    asked = {"state": state, "node": node, "tenant": tenant}
    found = get_json(controller, "/api/v1/tasks", {key: value for key, value in asked.items() if value}, what=_WHAT)
    if as_json:
        print_json(found)
        return
    columns = ("task", "title", "tenant", "prio", "state", "node", "gpus", "VRAM MB", "updated")
    print_table(columns, [_task_row(task) for task in found["items"]], numbers=("prio", "VRAM MB"), empty="no tasks")


def _task_row(task: dict[str, Any]) -> tuple[Any, ...]:
    return (
        task["id"],
        task["title"],
        task["tenant"],
        task["priority"],
        task["state"],
        task["node_name"] or task["node"] or "",
        ",".join(map(str, task["gpus"])),
        task["required_vram_mb"],
        task["updated_at"],
    )
