"""What a check of ``wooly doctor`` answers.

May live here: the finding. May not: checks.
"""

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
