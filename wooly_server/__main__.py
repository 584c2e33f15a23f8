"""``python -P -m wooly_server MODULE [ARGUMENT...]``: run a module of the platform in this process."""

from __future__ import annotations

import sys

from wooly_server import run_module

if len(sys.argv) < 2:
    sys.stderr.write("usage: python -P -m wooly_server MODULE [ARGUMENT...]\n")
    raise SystemExit(2)
run_module(sys.argv.pop(1))
