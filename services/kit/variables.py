"""Integers from the environment, within the limits of the table of variables."""

from __future__ import annotations

from collections.abc import Mapping

from services.kit.errors import SettingError
from wooly.shared.variables import BY_NAME


def integer(environment: Mapping[str, str], name: str, default: int | None = None) -> int:
    """The number that ``name`` is set to, else ``default``, else the table's. Raises SettingError that names the limits."""
    variable = BY_NAME[name]
    text = environment.get(name, "").strip()
    if not text:
        return int(variable.default) if default is None else default
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and variable.low <= int(text) <= variable.high):
        raise SettingError(f"{name}={text}: must be an integer from {variable.low} to {variable.high}")
    return int(text)


def optional_integer(environment: Mapping[str, str], name: str) -> int | None:
    """As ``integer``; None when ``name`` is not set."""
    return integer(environment, name) if environment.get(name, "").strip() else None
