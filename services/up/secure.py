"""Additions of a secure stack: its keyring, its host names, and the credentials of its readiness checks.

May live here: making the keyring of a stack on this machine, environments of its children. May not: starting them.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from services.kit.keyring import Keyring
from services.kit.tls import client_context
from wooly.shared.tls import is_loopback

LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class Secure:
    """``listen``: where everything of the stack listens. ``new``: the keyring was just created, and its admin key has not been shown
    yet."""

    ring: Keyring
    listen: str
    node: str
    new: bool

    @classmethod
    def make(cls, folder: Path, listen: str, node: str) -> Secure:
        """Raises SettingError, OSError."""
        names = names_of(listen)
        new = not (folder / "controller" / "admin.key").exists()
        called = dict.fromkeys(("bus", "controller", "billing", f"nodes/{node}"), names)
        return cls(Keyring.make(folder, called, [node]), listen, node, new)

    @property
    def bus_config(self) -> Path:
        return self.ring.folder / "bus" / "security.conf"

    def environment(self, child: str) -> dict[str, str]:
        """What the child has more. The secrets of one are not in the environment of another."""
        if child != "server":
            return self.ring.environment(child)
        return {
            **self.ring.environment(f"nodes/{self.node}"),
            "WOOLY_DATA_HOST": self.listen,
            "NODE_ADDRESS": os.environ.get("NODE_ADDRESS") or _advertised(self.listen),
        }

    def context(self) -> ssl.SSLContext:
        return client_context({"WOOLY_TLS_CA": str(self.ring.ca)})

    def headers(self) -> Mapping[str, str]:
        return {"Authorization": f"Bearer {self.ring.admin_key}"}


def names_of(listen: str) -> tuple[str, ...]:
    """What this machine is called by those who reach ``listen``: loopback, the address itself, or all its names and addresses."""
    given = [name for name in (listen, os.environ.get("NODE_ADDRESS", "")) if name and name not in ("0.0.0.0", "::")]
    own = [] if is_loopback(listen) else [socket.gethostname(), _own_address()]
    return tuple(dict.fromkeys([*LOOPBACK, *given, *(name for name in own if name)]))


def _advertised(listen: str) -> str:
    return listen if listen not in ("0.0.0.0", "::") else _own_address() or socket.gethostname()


def _own_address() -> str:
    """The address from which this machine reaches others; empty when there is none. Nothing is sent."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        return str(probe.getsockname()[0])
    return ""
