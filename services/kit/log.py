"""Structured logs: one JSON object a line on standard error."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from typing import Any, TextIO, cast

import structlog

__all__ = ["get_logger", "setup_logging"]


class _Tolerant:
    """Standard error that may lie on a full disk: a line is lost then, and nothing else."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            return self._file.write(text)
        return 0

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._file.flush()


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
