"""Settings of a runner, from environment variables."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bus_schemas.subjects import token
from services.kit.errors import SettingError
from services.kit.variables import integer


@dataclass(frozen=True, slots=True)
class Settings:
    """Of one runner process."""

    #: unique among the runners of a cluster
    name: str
    #: of the runner and of its scripts
    nats_url: str
    #: as scripts reach it
    controller_url: str
    tls_ca: str
    #: the tenants whose scripts it takes; empty: all
    tenants: tuple[str, ...]
    #: scripts at a time
    slots: int
    #: of the scripts' working folders
    folder: Path
    #: PYTHONPATH of scripts; empty: none
    python_path: str = ""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        """Raises SettingError naming the variable."""
        for variable, example in (("WOOLY_NATS_URL", "nats://127.0.0.1:4222"), ("CONTROLLER_URL", "http://127.0.0.1:8080")):
            if not environment.get(variable):
                raise SettingError(f"{variable} is not set; give its address, for example {example}")
        name = environment.get("RUNNER_NAME", "") or re.sub(r"[^A-Za-z0-9_-]", "-", platform.node())[:64] or "runner"
        try:
            token(name)
        except ValueError as error:
            raise SettingError(f"RUNNER_NAME: {error}") from None
        return cls(
            name=name,
            nats_url=environment["WOOLY_NATS_URL"],
            controller_url=environment["CONTROLLER_URL"],
            tls_ca=environment.get("WOOLY_TLS_CA", ""),
            tenants=tuple(sorted({part.strip() for part in environment.get("RUNNER_TENANTS", "").split(",") if part.strip()})),
            slots=integer(environment, "RUNNER_SLOTS"),
            folder=Path(environment.get("WOOLY_DATA_DIR", ".wooly")).resolve() / "runs",
            python_path=environment.get("RUNNER_PYTHONPATH", ""),
        )
