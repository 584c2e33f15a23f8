"""Pages of the site that are made when it is built: the reference, from code, and the pages that live outside ``docs/``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from docs.generate import command_line, configuration, errors, events, instructions, metrics, quotas, rest

__all__ = ["OUTSIDE", "REFERENCE", "ROOT"]

ROOT: Final = Path(__file__).resolve().parents[2]

REFERENCE: Final[dict[str, Callable[[], str]]] = {
    "reference/configuration.md": configuration.page,
    "reference/command-line.md": command_line.page,
    "reference/rest-controller.md": rest.controller_page,
    "reference/rest-billing.md": rest.billing_page,
    "reference/metrics.md": metrics.page,
    "reference/quotas.md": quotas.page,
    "reference/events.md": events.page,
    "reference/errors.md": errors.page,
    "reference/instructions.md": instructions.page,
}
"""Path in the site: what makes its text."""

OUTSIDE: Final = {
    "ARCHITECTURE.md": "explanation/architecture.md",
    "CONTRIBUTING.md": "contributing/contributing.md",
    "SECURITY.md": "contributing/report-a-vulnerability.md",
    "tests/README.md": "contributing/tests.md",
    "deploy/README.md": "how-to/deploy.md",
    "wis/README.md": "explanation/instruction-set.md",
}
"""Path in the repository: path in the site."""
