"""Switching the device on in this process: backend, kernels, face, in that order.

May live here: the order. May not: deciding whether (wooly._autoload), how a session opens (wooly.session).
"""

from __future__ import annotations

from collections.abc import Callable

from wooly.config import Config
from wooly.device import install
from wooly.device.face import backend_module, patch
from wooly.device.recorder import RECORDER
from wooly.link import Link

__all__ = ["activate"]


def activate(config: Config, connect: Callable[[], Link] | None = None) -> None:
    """Make ``cuda`` appear. ``connect`` opens the session, at first use; the default goes to the bus that ``config`` names.

    Raises RuntimeError when the device is on already. Nothing is sent and no connection is made here.
    """
    if connect is None:

        def connect() -> Link:
            from wooly.session import open_session

            return open_session(config)

    install.register(connect, backend_module())
    patch(RECORDER, config.device_count)
