"""``wooly completion bash|zsh|fish``: the script that makes a shell complete commands and flags."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from wooly.cli.group import echo

__all__ = ["completion"]


@click.command()
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
def completion(shell: str) -> None:
    """Print the completion script of SHELL.

    \b
    bash:  eval "$(wooly completion bash)"   in ~/.bashrc
    zsh:   eval "$(wooly completion zsh)"    in ~/.zshrc
    fish:  wooly completion fish > ~/.config/fish/completions/wooly.fish
    """
    from wooly.cli.group import app  # the group imports this module by name, echo

    kind = get_completion_class(shell)
    assert kind is not None  # click has the three that the argument allows
    echo(kind(app, {}, "wooly", "_WOOLY_COMPLETE").source())
