"""The journals' record of one task: runs services.replay in a child process, with bounds on concurrency, and caches its answers.

Replaying a journal takes seconds of processor time, so it never happens in this process. The answer for a task that is over is cached until
it is evicted, that for a running one for a few seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import msgspec

from services.controller.errors import Busy, OutOfState
from services.controller.presenters import Json
from services.kit.access.turns import aside
from services.kit.errors import BusUnavailable
from services.kit.log import get_logger
from services.kit.process import child_environment
from wooly.shared.lru import LruDict
from wooly_server import module_command

SLOTS: Final = 240
"""Of a timeline."""
_TOP: Final = 20
_READ_S: Final = 20.0
"""After so long the answer is made of what was read until then."""
_END_S: Final = 30.0
_FRESH_S: Final = 10.0
_SETTLED_S: Final = 5.0
"""Nodes publish their journals once a second: so long after its end there is nothing new of a task."""
_KEPT_MAX: Final = 64
_AT_ONCE_MAX: Final = 2
_OF_TENANT_MAX: Final = 4
"""Waiting or under way. One of them at a time waits for ``_AT_ONCE_MAX``, so that tenants take turns."""
_WAITING_MAX: Final = 64
_ANSWER_BYTES_MAX: Final = 8 << 20
_NOTHING: Final = 3
"""Exit code of services.replay when the journals hold nothing of what is asked for."""


@dataclass(frozen=True, slots=True)
class Life:
    """One task as the event log has it."""

    task: str
    tenant: str
    #: ids
    sessions: tuple[str, ...]
    #: (node, GPU index) of every device that had one of the sessions
    devices: tuple[tuple[str, int], ...]
    #: first session opened, Unix ns
    from_ns: int
    #: end of the task, Unix ns; 0: it is not over
    to_ns: int


@dataclass(slots=True)
class _Kept:
    document: Json | None
    life: Life
    read_s: float
    settled: bool

    def good(self, life: Life, now_s: float) -> bool:
        return self.life == life and (self.settled or now_s - self.read_s < _FRESH_S)


class Journals:
    """``bus_url``: where the journals are, reached with this process's credentials."""

    def __init__(self, bus_url: str) -> None:
        self._bus_url = bus_url
        self._kept: LruDict[str, _Kept] = LruDict(_KEPT_MAX)
        self._reading: dict[str, asyncio.Task[_Kept]] = {}
        self._asking: Counter[str] = Counter()
        self._turn = asyncio.Semaphore(_AT_ONCE_MAX)
        self._of_tenant: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def of(self, life: Life) -> Json:
        """The document of ``services.replay why`` with its timeline; callers must not change it. Sessions are named by id only. Raises
        OutOfState where the journals hold nothing of the task, Busy, BusUnavailable."""
        kept = self._kept.get(life.task)
        if kept is not None and kept.good(life, time.monotonic()):
            self._kept.move_to_end(life.task)
            return _held(kept, life)
        if not life.sessions:
            raise OutOfState(f"task {life.task} has not run: no device has had a session of it")
        reading = self._reading.get(life.task)
        if reading is None:
            if self._asking[life.tenant] >= _OF_TENANT_MAX or sum(self._asking.values()) >= _WAITING_MAX:
                raise Busy("another journal is being read; ask again in a few seconds")
            reading = self._reading[life.task] = asyncio.create_task(self._read(life), name=f"journal of {life.task}")
            self._asking[life.tenant] += 1
            reading.add_done_callback(partial(self._over, life))
        async with aside():
            kept = await asyncio.shield(reading)
        return _held(kept, life)

    def _over(self, life: Life, done: asyncio.Task[_Kept]) -> None:
        self._asking[life.tenant] -= 1
        del self._reading[life.task]
        if not done.cancelled():
            done.exception()  # retrieved: its caller may have left

    async def _read(self, life: Life) -> _Kept:
        async with self._of_tenant[life.tenant], self._turn:
            read_s, now_ns = time.monotonic(), time.time_ns()
            document = await self._run(life, now_ns)
        settled = 0 < life.to_ns < now_ns - int(_SETTLED_S * 1e9)
        kept = self._kept[life.task] = _Kept(document, life, read_s, settled)
        return kept

    async def _run(self, life: Life, now_ns: int) -> Json | None:
        """The document, None where the journals hold nothing of the task."""
        command = module_command("services.replay", *_arguments(life, now_ns))
        environment = child_environment(WOOLY_NATS_URL=self._bus_url, WOOLY_DIE_WITH_PARENT=str(os.getpid()))
        pipe = asyncio.subprocess.PIPE
        child = await asyncio.create_subprocess_exec(
            *command, env=environment, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe, start_new_session=True
        )
        try:
            async with asyncio.timeout(_END_S):
                out, errors = await child.communicate()
        except TimeoutError:
            raise BusUnavailable(f"the journals were not read within {_END_S:g} s; ask again") from None
        finally:
            if child.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    child.kill()
        if child.returncode == _NOTHING:
            return None
        if child.returncode != 0 or len(out) > _ANSWER_BYTES_MAX:
            lines = errors.decode(errors="replace").strip().splitlines()
            get_logger().warning("the journals could not be read", task=life.task, code=child.returncode, problem="".join(lines[-1:]))
            raise BusUnavailable("the journals could not be read; the controller's log says why")
        document: dict[str, Any] = msgspec.json.decode(out)
        return document


def _held(kept: _Kept, life: Life) -> Json:
    if kept.document is None:
        raise OutOfState(f"the journals hold nothing of task {life.task}: they are kept for a week at most, and the oldest end first")
    return kept.document


def _arguments(life: Life, now_ns: int) -> list[str]:
    """Names are joined to their flags: they may begin with a hyphen."""
    bounds = ["--from", f"{life.from_ns / 1e9:.3f}", "--to", f"{(life.to_ns or now_ns) / 1e9:.3f}"]
    nodes = {node for node, _ in life.devices}
    only = [f"--node={name}" for name in nodes] if len(nodes) == 1 else []
    only += ["--gpu", str(life.devices[0][1])] if len(life.devices) == 1 else []
    sessions = [f"--session={name}" for name in life.sessions]
    shape = ["--top", str(_TOP), "--slots", str(SLOTS), "--limit-s", f"{_READ_S:g}", "--service", "controller"]
    return ["why", *shape, *bounds, *only, *sessions, "--", life.task]
