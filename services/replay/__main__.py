"""``python -P -m services.replay check|why|whatif``: one JSON document on standard output.

Exit code: 0, 1 when a journal run again differs from what is on record, 2 when the question cannot be answered, 3 when the journals hold
nothing of what is asked for.
Environment: WOOLY_NATS_URL (the bus; not needed with --file).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator

from services.kit.bus import Bus, connect
from services.kit.errors import KitError, SettingError
from services.kit.process import run
from services.replay.answers import answer
from services.replay.question import NothingFound, Question, ReplayError, parse

_DIFFERENT = 1
_REFUSED = 2
_NOTHING = 3
_BACKGROUND = 10
"""Added niceness of what a service asks: its own work goes first."""


async def main(stop: asyncio.Event) -> int:
    try:
        question = parse(sys.argv[1:])
        if question.service:
            os.nice(_BACKGROUND)
        async with _bus(question) as bus:
            working = asyncio.create_task(answer(bus, question))
            stopped = asyncio.create_task(stop.wait())
            await asyncio.wait((working, stopped), return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                working.cancel()
                return _REFUSED
            stopped.cancel()
            document = working.result()
    except (KitError, ReplayError) as error:
        sys.stderr.write(f"{error}\n")
        return _NOTHING if isinstance(error, NothingFound) else _REFUSED
    json.dump(document, sys.stdout)
    sys.stdout.write("\n")
    return 0 if document.get("equal", True) else _DIFFERENT


@contextlib.asynccontextmanager
async def _bus(question: Question) -> AsyncIterator[Bus | None]:
    """The bus, or None where files are asked for."""
    if question.files:
        yield None
        return
    url = os.environ.get("WOOLY_NATS_URL", "")
    if not url:
        raise SettingError("WOOLY_NATS_URL is not set; give the address of the bus, for example nats://127.0.0.1:4222")
    bus = await connect(url, name=question.service or "replay")
    try:
        yield bus
    finally:
        await bus.close()


if __name__ == "__main__":
    sys.exit(run(main))
