"""``python -m wooly.cli``: the same as ``wooly``."""

from __future__ import annotations

from wooly.cli.group import main

if __name__ == "__main__":
    main()
