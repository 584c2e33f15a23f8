"""The ``wooly`` command.

May live here: the group and the way errors are shown. May not: any command (each is a module, imported when it is called).
"""

from __future__ import annotations

from wooly.cli.group import main

__all__ = ["main"]
