"""Result type of the checks of ``wooly doctor``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Finding"]


@dataclass(frozen=True)
class Finding:
    """``fix`` is empty when there is nothing to do."""

    name: str
    state: Literal["ok", "warn", "fail"]
    text: str
    fix: str = ""
