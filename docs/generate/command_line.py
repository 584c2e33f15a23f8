"""The command-line reference: the help of every command."""

from __future__ import annotations

from collections.abc import Iterator

import click

from wooly.cli.group import app

__all__ = ["page"]


def page() -> str:
    """The page."""
    parts = [
        "# Command-line reference",
        "",
        "Every command with its options, as `wooly COMMAND --help` prints them. Exit status: 0; 2 after an error or wrong usage; 130 after "
        "Ctrl-C; `wooly run` ends with the status of the script.",
        "",
    ]
    for depth, path, text in _commands(app, None, "wooly"):
        parts += [f"{'#' * min(depth + 2, 4)} {path}", "", "```text", text.rstrip(), "```", ""]
    return "\n".join(parts)


def _commands(command: click.Command, parent: click.Context | None, name: str, depth: int = 0) -> Iterator[tuple[int, str, str]]:
    context = click.Context(command, parent=parent, info_name=name, terminal_width=100, max_content_width=100)
    yield depth, context.command_path, command.get_help(context)
    if isinstance(command, click.Group):
        for below in command.list_commands(context):
            found = command.get_command(context, below)
            if found is not None and not found.hidden:
                yield from _commands(found, context, below, depth + 1)
