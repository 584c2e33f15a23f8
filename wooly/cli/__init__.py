"""The ``wooly`` command. Each command is a module, imported when it is called."""

from __future__ import annotations

from wooly.cli.group import main

__all__ = ["main"]
