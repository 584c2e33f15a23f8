"""Findings and counts of the checking mode in this process.

After the first difference every further operation raises it again, so that a script which catches RuntimeError stops too.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

from wooly.errors import CheckFailed

__all__ = ["Report", "REPORT"]


class Report:
    """The first difference, and how many calls were compared how."""

    def __init__(self) -> None:
        #: Calls whose values were compared.
        self.compared = 0
        #: Calls that draw random numbers: their results were tested for type, shape and range.
        self.by_property = 0
        #: Calls that the CPU cannot compute, by operation.
        self.skipped: Counter[str] = Counter()
        self._folder = Path()
        self._failed: CheckFailed | None = None
        self._lock = threading.Lock()

    def open(self, folder: Path) -> None:
        """Scripts go to ``folder``, which is made when it is needed."""
        self._folder = folder

    def stop(self) -> None:
        """Raise the difference that was found, if there was one."""
        if self._failed is not None:
            raise self._failed

    def forget(self) -> None:
        """Go on after a difference: for suites that look for many in one process."""
        self._failed = None

    def fail(self, name: str, text: str, write: Callable[[Path], None]) -> CheckFailed:
        """The error for a difference in operation ``name``; ``write(path)`` writes its script."""
        self._folder.mkdir(parents=True, exist_ok=True)
        script = self._path(name)
        write(script)
        advice = f"makes this one call again on both; run it with `wooly run {script.name}`, and send it with your report"
        message = f"{text}\n  script: {script} {advice}"
        with self._lock:
            if self._failed is None:
                self._failed = CheckFailed(message, operation=name, script=str(script))
            return self._failed

    def _path(self, name: str) -> Path:
        """A file that does not exist yet."""
        stem = "wooly_check_" + re.sub(r"\W+", "_", name.removeprefix("aten::"))
        number = 0
        while (path := self._folder / f"{stem}{f'_{number}' if number else ''}.py").exists():
            number += 1
        return path

    def summary(self) -> str:
        """One line for the end of a script."""
        text = f"{self.compared} operations gave the same on the CPU, {self.by_property} random ones passed by type, shape and range"
        if self.skipped:
            text += f"; the CPU cannot compute {', '.join(f'{name} ({n})' for name, n in sorted(self.skipped.items()))}"
        return text


REPORT: Final = Report()
"""The report of this process."""
