"""One script on a runner without a bus."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from bus_schemas.runs import RunOrder, RunScript
from services.runner import runs as module
from services.runner.process import ScriptProcess
from services.runner.runs import Runs
from services.runner.settings import Settings


class Bus:
    """Takes whatever is published."""

    async def request(self, *_: Any) -> bytes:
        return b""

    async def publish_acked(self, *_: Any) -> int:
        return 1


def test_the_runner_serves_other_scripts_while_a_folder_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder may hold millions of files; a runner that says nothing for half a minute loses its scripts."""
    begun, served, waits, discard = threading.Event(), threading.Event(), list[bool](), ScriptProcess.discard

    def slowly(script: ScriptProcess) -> None:
        begun.set()
        waits.append(served.wait(5))
        discard(script)

    monkeypatch.setattr(ScriptProcess, "discard", slowly)
    monkeypatch.setattr(module, "kill_orphans", lambda *_: None)  # children of other tests

    async def work() -> None:
        bus: Any = Bus()
        runs = Runs(bus, Settings("r", "nats://127.0.0.1:1", "http://127.0.0.1:1", "", (), 1, tmp_path / "runs"))
        runs._start(RunOrder(RunScript("t", "acme", "print(1)", "script.py", (), {}, 60)))
        while runs._running:
            if begun.is_set():
                served.set()
            await asyncio.sleep(0.01)

    asyncio.run(work())
    assert waits == [True] and not list((tmp_path / "runs").iterdir())
