"""Structured logs: one JSON object a line on standard error."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from typing import Any, TextIO, cast

import structlog


class _Tolerant:
    """Standard error that may lie on a full disk: a line is lost then, and nothing else.

    Lines go to the descriptor itself: what a failed flush leaves in Python's buffer would fail again when the interpreter ends, and turn
    the exit code into 120.
    """

    def __init__(self, file: TextIO) -> None:
        self._descriptor = file.fileno()
        self._line = ""

    def write(self, text: str) -> int:
        self._line += text
        if self._line.endswith("\n"):
            line, self._line = self._line, ""
            with contextlib.suppress(OSError):
                os.write(self._descriptor, line.encode(errors="backslashreplace"))
        return len(text)

    def flush(self) -> None:
        """Nothing is held back but an unfinished line."""


def setup_logging(service: str) -> None:
    """Configure logging for this process; level from WOOLY_LOG (debug, info, warning, error; default info)."""
    level = getattr(logging, os.environ.get("WOOLY_LOG", "info").upper(), logging.INFO)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, _Tolerant(sys.stderr))),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(service=service)
    logging.basicConfig(level=max(level, logging.WARNING), stream=sys.stderr)


def get_logger() -> Any:
    """A structlog logger (its type is dynamic)."""
    return structlog.get_logger()
