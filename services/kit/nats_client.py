"""nats-py's client, but one that keeps reconnecting when the bus or its auth callout is away for a moment, whose inboxes are
unpredictable, and whose parser survives any message, whatever bytes its sender put where.
"""

from __future__ import annotations

import re
import secrets
from typing import Any, Final

import nats.errors
from nats.aio.client import Client
from nats.nuid import NUID
from nats.protocol import parser

__all__ = ["LastingClient"]

_WORD: Final = rb"([^ \t\r\n]+)[ \t]+"

# NATS tokenises on SP and TAB only, so a subject may contain any other byte; nats-py's regex splits on all that Python calls white space,
# rejects such a message, and reconnects: for ever, when a stream redelivers it.
parser.MSG_RE = re.compile(rb"\AMSG[ \t]+" + _WORD * 2 + rb"(" + _WORD + rb")?(\d+)\r\n")
parser.HMSG_RE = re.compile(rb"\AHMSG[ \t]+" + _WORD * 2 + rb"(" + _WORD + rb")?(\d+)[ \t]+(\d+)\r\n")


class _Unguessable(NUID):
    """Unpredictable names of inboxes. nats-py counts, so the responder of one request could compute the inbox of the next, and nodes may
    publish into all inboxes."""

    def next(self) -> bytearray:
        return bytearray(secrets.token_hex(11).encode())  # as long as theirs: nats-py cuts subjects by it


class LastingClient(Client):
    """With an auth callout, the bus's answer to a connection can be late, and it is a refusal while the callout service is down. nats-py
    then closes for good; this client keeps trying, as after any broken connection."""

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

    async def _process_headers(self, headers: Any) -> dict[str, str] | None:
        """What cannot be read is no header: nats-py would hear nothing more."""
        try:
            read: dict[str, str] | None = await super()._process_headers(headers)
        except (IndexError, UnicodeDecodeError):
            return None
        return read

    def _build_message(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: dict[str, str] | None) -> Any:
        """Subjects need not be text; the rest of such a one still says whose it is."""
        try:
            return super()._build_message(sid, subject, reply, data, headers)
        except UnicodeDecodeError:
            return super()._build_message(sid, _text(subject), _text(reply), data, headers)


def _text(raw: bytes) -> bytes:
    return raw.decode(errors="replace").encode()
