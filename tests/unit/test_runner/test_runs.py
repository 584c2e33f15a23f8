"""One script on a runner without a bus."""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest

from bus_schemas.runs import RunOrder, RunScript
from services.runner import runs as module
from services.runner.process import ScriptProcess, remove_folder
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
    served, waits, discard = threading.Event(), list[bool](), ScriptProcess.discard
    monkeypatch.setattr(module, "kill_orphans", lambda *_: None)  # children of other tests

    async def work() -> None:
        begun, loop = asyncio.Event(), asyncio.get_running_loop()

        def slowly(script: ScriptProcess) -> None:
            loop.call_soon_threadsafe(begun.set)
            waits.append(served.wait(5))
            discard(script)

        monkeypatch.setattr(ScriptProcess, "discard", slowly)
        bus: Any = Bus()
        runs = Runs(bus, Settings("r", "nats://127.0.0.1:1", "http://127.0.0.1:1", "", (), 1, tmp_path / "runs"))
        runs._start(RunOrder(RunScript("t", "acme", "print(1)", "script.py", (), {}, 60)))
        (task,) = runs._tasks.values()
        await begun.wait()
        served.set()
        await task

    asyncio.run(work())
    assert waits == [True] and not list((tmp_path / "runs").iterdir())


def test_folders_without_write_permission_are_removed() -> None:
    """By a user whom permissions bind, as root is not."""
    before = os.geteuid()
    with tempfile.TemporaryDirectory() as own:  # others may not enter the folders of pytest
        folder = Path(own) / "run"
        if before == 0:
            os.chown(own, 65534, -1)
            os.seteuid(65534)
        try:
            (folder / "a" / "b").mkdir(parents=True)
            (folder / "shut").mkdir()
            for name, mode in (("a/b", 0o500), ("a", 0o500), ("shut", 0), (".", 0o500)):
                if name != "a":
                    (folder / name / "file").write_text("x")
                (folder / name).chmod(mode)
            remove_folder(folder)
            assert not folder.exists()
            folder.mkdir()
            Path(own).chmod(0o500)
            remove_folder(folder)
            assert Path(own).stat().st_mode & 0o777 == 0o500, "folders around it stay as they are"
            Path(own).chmod(0o700)
        finally:
            os.seteuid(before)
