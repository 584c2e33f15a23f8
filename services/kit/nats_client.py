"""nats-py's client, but one that does not give up because a bus or those it asks were away for a moment, and whose inboxes nobody guesses.

May live here: that. May not: what is said over it.
"""

from __future__ import annotations

import secrets

import nats.errors
from nats.aio.client import Client
from nats.nuid import NUID

__all__ = ["LastingClient"]


class _Unguessable(NUID):
    """Names of inboxes. nats-py counts, so that whoever is asked once knows into which inbox the next answer will go, and nodes may
    publish into all inboxes."""

    def next(self) -> bytearray:
        return bytearray(secrets.token_hex(11).encode())  # as long as theirs: nats-py cuts subjects by it


class LastingClient(Client):
    """Where the bus asks somebody else whether we may come in, its answer can be late, and it can be no because nobody was there to say
    yes. nats-py then closes for good; this goes on trying, as after any broken connection."""

    def __init__(self) -> None:
        super().__init__()
        self._nuid = _Unguessable()

    @property
    def asks_who(self) -> bool:
        """Whether the bus that we are connected to wants to know who comes."""
        return bool(self._server_info.get("auth_required"))

    async def _process_err(self, err_msg: str) -> None:
        if "permissions violation" in err_msg.lower() or not self.options.get("allow_reconnect"):
            await super()._process_err(err_msg)
            return
        error = nats.errors.Error(f"nats: {err_msg}")
        await self._error_cb(error)
        await self._process_op_err(error)
