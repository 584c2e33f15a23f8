"""``python -P -m services.up.keyring FOLDER --node NAME=HOST...``: make the keyring of an installation, once, for a compose file.

WOOLY_HOSTS: names and addresses that clients call this machine by, separated by commas (beside those of the compose network).

``python -P -m services.up.keyring FOLDER add|use|retire seal|ca|bus``: one step of the rotation of a key, while the services run.
WOOLY_NATS_URL: the bus, which ``retire seal`` asks for the end of the log.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from bus_schemas.subjects import EVENTS_STREAM
from services.kit import rotation
from services.kit.bus import connect
from services.kit.bus_permissions import CONTROLLER
from services.kit.credentials import Credentials
from services.kit.errors import KitError, SettingError
from services.kit.keyring import Keyring
from services.up.secure import LOOPBACK


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="services.up.keyring", description="Make certificates, service users and first keys.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--bus-at", default="", help="where the bus finds its part (default: in the folder)")
    parser.add_argument("--bus", action="append", default=[], metavar="HOST", help="a server of the bus, as clients call it")
    parser.add_argument("--node", action="append", default=[], metavar="NAME=HOST", help="a node, and the host it runs on")
    parser.add_argument("step", nargs="?", choices=rotation.STEPS, help="rotate a key: a step, and the kind of key")
    parser.add_argument("kind", nargs="?", choices=rotation.KINDS)
    options = parser.parse_args(arguments)
    if options.step is not None:
        if options.kind is None:
            parser.error(f"{options.step} what? One of: {', '.join(rotation.KINDS)}")
        return _rotate(options.folder, options.step, options.kind)
    nodes = dict(text.partition("=")[::2] for text in options.node)
    ours = [name.strip() for name in os.environ.get("WOOLY_HOSTS", "").split(",") if name.strip()]
    hosts = {"controller": "controller", "billing": "billing", "etcd": "etcd", "trace": "otel-collector"}
    called = {part: [host, *LOOPBACK, *ours] for part, host in hosts.items()}
    called["bus"] = ["nats", "nats-2", "nats-3", *options.bus, *LOOPBACK, *ours]
    called |= {f"nodes/{name}": [host or name, *LOOPBACK, *ours] for name, host in nodes.items()}
    try:
        Keyring.make(options.folder, called, list(nodes), bus_at=options.bus_at)
    except (KitError, OSError) as error:
        print(f"keyring: {error}", file=sys.stderr)
        return 2
    print(f"the keyring is in {options.folder}; give clients a ca.pem of it; the first admin key is in controller/admin.key")
    return 0


def _rotate(folder: Path, step: str, kind: str) -> int:
    """One step, and what the keys are good for after it."""
    try:
        match step:
            case "add":
                rotation.add(folder, kind)
            case "use":
                rotation.use(folder, kind)
            case _:
                rotation.retire(folder, kind, asyncio.run(_log_end(folder)) if kind == "seal" else 0)
        print("\n".join(rotation.describe(folder, kind)))
        if (step, kind) == ("use", "bus"):
            print("now restart the servers of the bus, one after another (`wooly up` does); then: retire bus")
    except (KitError, OSError) as error:
        print(f"keyring: {error}", file=sys.stderr)
        return 2
    return 0


async def _log_end(folder: Path) -> int:
    """Position of the last event. Raises SettingError, BusUnavailable."""
    url = os.environ.get("WOOLY_NATS_URL", "")
    if not url:
        raise SettingError("WOOLY_NATS_URL is not set; give the address of the bus: the old key counts for the events that the log has now")
    shown = Credentials.from_environment(Keyring(folder).environment(CONTROLLER), url)
    bus = await connect(url, name=CONTROLLER, credentials=shown)
    try:
        return await bus.last_position(EVENTS_STREAM)
    finally:
        await bus.close()


if __name__ == "__main__":
    sys.exit(main())
