"""Commands of ``wooly tasks``, ``wooly nodes`` and ``wooly groups`` that change state: cancel, priority, drain, resume, create, edit,
delete.
"""

from __future__ import annotations

import click
from msgspec import UNSET

from wooly import config as configuration
from wooly.api import Client
from wooly.api.answers import Group
from wooly.cli.errors import CommandError
from wooly.cli.options import controller_flag

__all__ = [
    "cancel_task", "prioritise_task", "drain_node", "resume_node", "create_group", "edit_group", "delete_group", "leave_to_subcommand",
]  # fmt: skip


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
def cancel_task(task: tuple[str, ...], controller: str) -> None:
    """End tasks, waiting or running."""
    for name in task:
        _client(controller).cancel(name)
        click.echo(f"{name} is cancelled")


@click.command(name="priority")
@click.argument("task")
@click.argument("priority", type=click.IntRange(0, 4))
@controller_flag
def prioritise_task(task: str, priority: int, controller: str) -> None:
    """Give a task another priority: 0, the highest, to 4."""
    _client(controller).set_priority(task, priority)
    click.echo(f"{task} has priority {priority}")


@click.command(name="drain")
@click.argument("node")
@controller_flag
def drain_node(node: str, controller: str) -> None:
    """Give a node no new tasks; it finishes what it has."""
    left = sum(len(device.tasks) for device in _client(controller).drain(node).devices)
    click.echo(f"{node} takes no new tasks; {left} still on it" if left else f"{node} takes no new tasks; nothing is on it")


@click.command(name="resume")
@click.argument("node")
@controller_flag
def resume_node(node: str, controller: str) -> None:
    """Give a drained node tasks again."""
    _client(controller).resume(node)
    click.echo(f"{node} takes tasks")


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
    click.echo(f"{group} is deleted")


def _say(group: Group) -> None:
    click.echo(f"group {group.id}: {', '.join(group.nodes) or 'no node yet'}")
