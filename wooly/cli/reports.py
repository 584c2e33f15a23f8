"""``wooly nodes``, ``wooly tasks`` and ``wooly groups``: reports of the controller, and commands that change nodes, tasks and groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import click
from msgspec import UNSET

from wooly import config as configuration
from wooly.api import Client
from wooly.api.answers import Group, Task
from wooly.cli.group import EXIT_ERROR, CommandError, echo
from wooly.cli.http import get_json
from wooly.cli.options import controller_flag, json_flag
from wooly.cli.output import Columns, bytes_text, print_items, print_json, print_table
from wooly.errors import ApiError

__all__ = ["groups", "nodes", "tasks"]


def leave_to_subcommand(context: click.Context) -> bool:
    """Whether a subcommand follows. Raises CommandError for a flag before it, which would mean nothing to it."""
    if context.invoked_subcommand is None:
        return False
    for name in context.params:
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            raise CommandError(f"give flags behind `{context.invoked_subcommand}`, not before it")
    return True


def _client(controller: str) -> Client:
    found = configuration.load(task=False)
    return Client(controller, api_key=found.api_key, ca=found.tls_ca, insecure=found.insecure)


@click.command(name="cancel")
@click.argument("task", nargs=-1, required=True)
@controller_flag
def cancel_task(task: tuple[str, ...], controller: str) -> int:
    """End tasks, waiting or running."""
    client = _client(controller)
    return _each(task, client.cancel, lambda _: "is cancelled")


def _each(names: tuple[str, ...], change: Callable[[str], Task], said: Callable[[Task], str]) -> int:
    """Change each task and say so; one that is refused does not keep the others from it. The exit code."""
    code = 0
    for name in names:
        try:
            echo(f"{name} {said(change(name))}")
        except ApiError as error:
            echo(f"wooly: {error}", err=True)
            code = EXIT_ERROR
    return code


def _goes_to(task: Task) -> str:
    return task.move.node_name if task.move is not None else "another node"


@click.command(name="move")
@click.argument("task", nargs=-1, required=True)
@click.option("--to", default="", metavar="NODE", help="Where it shall run; without it, on any other node.")
@controller_flag
def move_task(task: tuple[str, ...], to: str, controller: str) -> int:
    """Have running tasks run on another node; their scripts continue there."""
    client = _client(controller)
    return _each(task, lambda name: client.move(name, to), lambda found: f"goes to {_goes_to(found)}")


@click.command(name="priority")
@click.argument("task")
@click.argument("priority", type=click.IntRange(0, 4))
@controller_flag
def prioritise_task(task: str, priority: int, controller: str) -> None:
    """Give a task another priority: 0, the highest, to 4."""
    _client(controller).set_priority(task, priority)
    echo(f"{task} has priority {priority}")


@click.command(name="drain")
@click.argument("node")
@click.option("--move", is_flag=True, help="Have what runs there continue on other nodes.")
@controller_flag
def drain_node(node: str, move: bool, controller: str) -> None:
    """Give a node no new tasks; it finishes what it has."""
    client = _client(controller)
    tasks = list(dict.fromkeys(task for device in client.drain(node).devices for task in device.tasks))
    left = len(tasks)
    for task in tasks if move else ():
        try:
            moved = client.move(task)
        except ApiError as error:
            echo(f"{task} stays: {error.detail}", err=True)
        else:
            left -= 1
            echo(f"{task} goes to {_goes_to(moved)}")
    echo(f"{node} takes no new tasks; {left} still on it" if left else f"{node} takes no new tasks; nothing stays on it")


@click.command(name="resume")
@click.argument("node")
@controller_flag
def resume_node(node: str, controller: str) -> None:
    """Give a drained node tasks again."""
    _client(controller).resume(node)
    echo(f"{node} takes tasks")


@click.command(name="create")
@click.argument("group")
@click.option("--title", default="", metavar="TEXT", help="A name for lists.")
@click.option("--node", "nodes", multiple=True, metavar="ID", help="A member; several times for several.")
@controller_flag
def create_group(group: str, title: str, nodes: tuple[str, ...], controller: str) -> None:
    """Make a group; a node in it serves only tasks that target it."""
    _say(_client(controller).create_group(group, title=title, nodes=nodes))


@click.command(name="edit")
@click.argument("group")
@click.option("--title", default=None, metavar="TEXT", help="A name for lists.")
@click.option("--node", "nodes", multiple=True, metavar="ID", help="A member; those not given leave it.")
@click.option("--no-nodes", is_flag=True, help="Take every node out of it.")
@controller_flag
def edit_group(group: str, title: str | None, nodes: tuple[str, ...], no_nodes: bool, controller: str) -> None:
    """Change a group's title or its members."""
    if no_nodes and nodes:
        raise CommandError("give --node or --no-nodes, not both")
    if title is None and not (nodes or no_nodes):
        raise CommandError("nothing to change: give --title, --node or --no-nodes")
    members = nodes if nodes or no_nodes else UNSET
    _say(_client(controller).edit_group(group, title=UNSET if title is None else title, nodes=members))


@click.command(name="delete")
@click.argument("group")
@controller_flag
def delete_group(group: str, controller: str) -> None:
    """Delete a group; its nodes serve any task then, unless they are in another."""
    _client(controller).delete_group(group)
    echo(f"{group} is deleted")


def _say(group: Group) -> None:
    echo(f"group {group.id}: {', '.join(group.nodes) or 'no node yet'}")


_WHAT = "controller"
STATES: Final = ("queued", "started", "completed", "failed", "cancelled", "lost")


@click.group(invoke_without_command=True)
@controller_flag
@json_flag
@click.pass_context
def nodes(context: click.Context, controller: str, as_json: bool) -> None:
    """List nodes, their GPUs and how busy they are; drain and resume them."""
    if leave_to_subcommand(context):
        return
    found = get_json(controller, "/api/v1/nodes", what=_WHAT)
    live = get_json(controller, "/api/v1/telemetry", what=_WHAT)
    if as_json:
        print_json({**found, "telemetry": live["items"]})
        return
    measured = {(seen["node"], seen["gpu"]): seen for seen in live["items"]}
    rows = [row for node in found["items"] for row in _device_rows(node, measured)]
    columns = ("node", "state", "gpu", "device", "utilization", "starvation", "VRAM used", "VRAM", "tasks")
    print_table(columns, rows, numbers=columns[4:], empty="no node has joined; start one with: wooly server")


def _device_rows(node: dict[str, Any], measured: dict[tuple[str, int], dict[str, Any]]) -> Iterator[tuple[Any, ...]]:
    """A row for each device, with what is ``measured`` unless the node is lost; of a node without any, one that says why."""
    if not node["devices"]:
        yield (node["name"], node["state"], "", node["reason"] or "no device", "", "", "", "", "")
    for device in node["devices"]:
        seen = measured.get((node["id"], device["index"]), {}) if node["state"] != "lost" else {}
        yield _device_row(node, device, seen, first=device is node["devices"][0])


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


@click.group(invoke_without_command=True)
@controller_flag
@click.option("--state", type=click.Choice(STATES), default=None, help="Only tasks in this state.")
@click.option("--node", default=None, metavar="ID", help="Only tasks of this node.")
@click.option("--tenant", default=None, metavar="NAME", help="Only tasks of this tenant.")
@click.option("--search", "q", default=None, metavar="WORDS", help="Only tasks whose id, title, tenant, node or groups hold these words.")
@click.option("--sort", default=None, metavar="COLUMN", help="submitted, updated, priority, ...; with - before it the other way round.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="How many at most.")
@json_flag
@click.pass_context
def tasks(context: click.Context, /, controller: str, as_json: bool, **asked: Any) -> None:
    """List tasks, newest first, and where each was placed; cancel and move them, change their priority."""
    if leave_to_subcommand(context):
        return
    found = get_json(controller, "/api/v1/tasks", {key: str(value) for key, value in asked.items() if value}, what=_WHAT)
    optional = ("VRAM MB", "gpus", "tenant", "prio")
    numbers, more = ("prio", "VRAM MB"), "; --limit shows more"
    print_items(found, found["items"], _TASK, as_json=as_json, numbers=numbers, optional=optional, empty="no tasks", more=more)


_TASK: Final[Columns] = {
    "task": "id",
    "title": "title",
    "tenant": "tenant",
    "prio": "priority",
    "state": "state",
    "node": lambda task: task["node_name"] or task["node"] or "",
    "gpus": lambda task: ",".join(map(str, task["gpus"])),
    "VRAM MB": "required_vram_mb",
    "updated": "updated_at",
    "reason": "reason",
}


@click.group(invoke_without_command=True)
@controller_flag
@json_flag
@click.pass_context
def groups(context: click.Context, controller: str, as_json: bool) -> None:
    """List groups of nodes; create, edit and delete them."""
    if not leave_to_subcommand(context):
        _list_groups(controller, as_json)


@groups.command(name="list")
@controller_flag
@json_flag
def list_groups(controller: str, as_json: bool) -> None:
    """List groups, also those without a node."""
    _list_groups(controller, as_json)


def _list_groups(controller: str, as_json: bool) -> None:
    found = get_json(controller, "/api/v1/groups", what=_WHAT)
    columns: Columns = {"group": "id", "title": "title", "nodes": lambda group: ", ".join(group["nodes"]) or "(empty)", "tasks": "tasks"}
    print_items(found, found["items"], columns, as_json=as_json, numbers=("tasks",), empty="no groups")


for _command in (cancel_task, move_task, prioritise_task):
    tasks.add_command(_command)
for _command in (drain_node, resume_node):
    nodes.add_command(_command)
for _command in (create_group, edit_group, delete_group):
    groups.add_command(_command)
