"""``python -P -m services.runner``: run tenants' scripts on this machine until SIGTERM or SIGINT.

IT RUNS TENANTS' PYTHON CODE AS ITS OWN UNIX USER. A script can read every file that this user can read, its credentials included, and reach
every address that this machine can reach. Give the runner a user or a container of its own.

Environment: WOOLY_NATS_URL (the bus), CONTROLLER_URL (the controller, as scripts reach it), WOOLY_NATS_NKEY and WOOLY_TLS_CA (secured bus),
RUNNER_NAME (default: this machine's name; one process a name), RUNNER_SLOTS (scripts at a time, default 2), RUNNER_TENANTS (tenants whose
scripts it takes, separated by commas; default: all), RUNNER_PYTHONPATH (folders that scripts import from beside
the installed packages), WOOLY_DATA_DIR (where scripts have their folders while they run).
"""

from __future__ import annotations

import asyncio
import contextlib
import sys

from services.kit.bus import connect
from services.kit.log import get_logger
from services.kit.process import ready, run_service
from services.runner.process import become_subreaper, kill_marked, remove_folder
from services.runner.runs import Runs
from services.runner.settings import Settings


async def serve_until(stop: asyncio.Event, settings: Settings) -> None:
    """Everything a runner is, for as long as ``stop`` is not set."""
    become_subreaper()
    kill_marked(f"{settings.folder}:")  # what a runner that was killed has left behind
    remove_folder(settings.folder)
    bus = await connect(settings.nats_url, name="runner")
    runs = Runs(bus, settings)
    working = asyncio.create_task(runs.run())
    stopping = asyncio.create_task(stop.wait())
    connected = asyncio.create_task(runs.connected.wait())
    try:
        await asyncio.wait((connected, stopping, working), return_when=asyncio.FIRST_COMPLETED)
        if connected.done():
            get_logger().info("runner ready", name=settings.name, slots=settings.slots, tenants=settings.tenants)
            ready({"runner": settings.name})
        await asyncio.wait((stopping, working), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
    finally:
        for task in (working, stopping, connected):
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await working
        await runs.close()
        await bus.close()


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(__doc__)
        sys.exit(0)
    sys.exit(run_service("runner", lambda stop: serve_until(stop, Settings.from_environment())))
