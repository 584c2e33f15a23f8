"""Build hook: where the wheel of ``wooly-server`` puts the packages of the tree. Run by hatchling; no part of the wheel."""

from __future__ import annotations

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGES = ("jit", "scheduler", "billing", "services")
FILES = ("__init__.py", "__main__.py", "cgroup.py", "isolation.py", "sandbox.py")


class WheelLayout(BuildHookInterface):  # type: ignore[type-arg]  # hatchling has no types for its configuration
    """Puts every package inside ``wooly_server``. An editable installation holds no copies: its path is the checkout's."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        build_data["force_include"] |= {name: f"wooly_server/{name}" for name in FILES}
        build_data["force_include"] |= {f"../{name}": f"wooly_server/{name}" for name in (*PACKAGES, "LICENSE")}
