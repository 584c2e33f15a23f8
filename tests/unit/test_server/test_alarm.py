"""The alarm: rings once, at the time that was set last and not before it."""

from __future__ import annotations

import asyncio
import time

from services.server.dispatch_log import Alarm


def test_it_rings_once_at_the_time_set_last() -> None:
    async def body() -> tuple[list[int], int, int]:
        rung: list[int] = []
        heard = asyncio.Event()

        def ring() -> None:
            rung.append(time.monotonic_ns())
            heard.set()

        alarm = Alarm(ring)
        now_ns = time.monotonic_ns()
        alarm.set(now_ns + 3600 * 10**9)
        alarm.set(now_ns + 3_300_000)
        await asyncio.wait_for(heard.wait(), 20)
        heard.clear()
        alarm.set(now_ns)  # past: at once
        await asyncio.wait_for(heard.wait(), 20)
        alarm.set(time.monotonic_ns() + 1)
        alarm.set(None)
        marker = asyncio.Event()
        asyncio.get_running_loop().call_later(0.01, marker.set)
        await marker.wait()
        return rung, now_ns, len(rung)

    rung, now_ns, count = asyncio.run(body())
    assert count == 2
    assert rung[0] >= now_ns + 3_300_000
