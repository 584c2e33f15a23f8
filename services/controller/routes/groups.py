"""Groups: who is in them, who targets them; create, edit, delete."""

from __future__ import annotations

from typing import Final

__all__ = ["ROUTES"]

ROUTES: Final = []  # type: ignore[var-annotated]
