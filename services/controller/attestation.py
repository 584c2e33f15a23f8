"""Attestation of nodes: a command of the operator's decides, beside the key, whether a node may connect to the bus.

It reads one JSON object (``node``, ``key``, ``address``) from its standard input, and accepts with exit code 0; else the first line of its
output is the reason. What it compares is its own: a list of machines, or the state of a verifier of TPM quotes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shlex
from typing import Final

from services.kit.access.errors import Forbidden
from services.kit.errors import SettingError

__all__ = ["ATTESTATION_VARIABLE", "Attestation"]

ATTESTATION_VARIABLE: Final = "WOOLY_NODE_ATTESTATION"
_ANSWER_S: Final = 5.0
"""The bus ends a connection that is not admitted after ten seconds."""
_AT_ONCE: Final = 4
_REASON_CHARS_MAX: Final = 200
_OUTPUT_BYTES_MAX: Final = 4096


class Attestation:
    """``command``: as a shell would split it. Raises SettingError when it is no command."""

    def __init__(self, command: str) -> None:
        try:
            self._command = shlex.split(command)
        except ValueError as error:
            raise SettingError(f"{ATTESTATION_VARIABLE}={command}: {error}") from None
        if not self._command:
            raise SettingError(f"{ATTESTATION_VARIABLE} names no command")
        self._free = asyncio.Semaphore(_AT_ONCE)

    async def check(self, node: str, key: str, address: str) -> None:
        """Raises Forbidden with the reason when the command refuses the node, cannot be run, or does not answer."""
        asked = json.dumps({"node": node, "key": key, "address": address}).encode()
        async with self._free:
            try:
                code, said = await self._run(asked)
            except TimeoutError:
                raise Forbidden(f"{ATTESTATION_VARIABLE}: no answer about node {node} within {_ANSWER_S:g} s") from None
            except OSError as error:
                raise Forbidden(f"{ATTESTATION_VARIABLE}: {error}") from None
        if code:
            reason = said.decode(errors="replace").strip().partition("\n")[0][:_REASON_CHARS_MAX]
            raise Forbidden(f"node {node} is not attested: {reason or f'exit code {code}'}")

    async def _run(self, asked: bytes) -> tuple[int, bytes]:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*self._command, stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.DEVNULL)
        assert process.stdin is not None and process.stdout is not None
        try:
            async with asyncio.timeout(_ANSWER_S):
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it need not read
                    process.stdin.write(asked)
                    await process.stdin.drain()
                process.stdin.close()
                said = await process.stdout.read(_OUTPUT_BYTES_MAX)
                return await process.wait(), said
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
