"""The platform distribution ``wooly-server``: where its packages lie, and how a process of it is started.

In an installation the packages ``jit``, ``scheduler``, ``billing`` and ``services`` lie inside this package's folder, not beside it: their
names are generic, and a package of the same name in a user's environment is neither overwritten nor imported. In a checkout they lie beside
this folder. ``python -P -m wooly_server MODULE`` puts the folder first on the path of one process and runs MODULE in it.

May live here: the path, the launcher, the sandbox that processes enter, the project file of the distribution. May not: anything that a
service does.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Final, NoReturn

__all__ = ["SERVICES", "main", "module_command", "packages_folder", "run_module"]

SERVICES: Final = {
    "server": "services.server",
    "controller": "services.controller",
    "billing": "services.billing",
    "runner": "services.runner",
    "operator": "services.operator",
    "up": "services.up",
    "keyring": "services.up.keyring",
    "kube-keyring": "services.operator.keyring",
    "health": "services.kit.health",
    "node-health": "services.server.health",
}
"""Commands of ``wooly-server`` and the modules that they run."""


def packages_folder() -> Path:
    """The folder that holds the packages ``services``, ``jit``, ``scheduler`` and ``billing``."""
    here = Path(__file__).resolve().parent
    return here if (here / "services").is_dir() else here.parent


def module_command(module: str, *arguments: str) -> list[str]:
    """The command that runs a module of the platform. ``-P`` keeps the current folder off the path."""
    return [sys.executable, "-P", "-m", __name__, module, *arguments]


def run_module(module: str) -> None:
    """Run ``module`` as ``__main__`` with the platform's packages first on the path."""
    folder = str(packages_folder())
    if sys.path[:1] != [folder]:
        sys.path.insert(0, folder)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def main() -> NoReturn:
    """The console command ``wooly-server``: run one service in this process, configured by the environment."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    module = SERVICES.get(name)
    if module is None:
        wanted = f"wooly-server: unknown service {name!r}; " if name and name not in ("-h", "--help") else ""
        sys.stderr.write(f"{wanted}usage: wooly-server {{{'|'.join(SERVICES)}}} [ARGUMENT...]\n")
        raise SystemExit(0 if name in ("-h", "--help") else 2)
    del sys.argv[1]
    run_module(module)
    raise SystemExit(0)
