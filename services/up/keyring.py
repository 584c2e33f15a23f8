"""``python -P -m services.up.keyring FOLDER --node NAME=HOST...``: make the keyring of an installation, once, for a compose file.

WOOLY_HOSTS: names and addresses that clients call this machine by, separated by commas (beside those of the compose network).
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from services.kit.errors import KitError
from services.kit.keyring import Keyring
from services.up.secure import LOOPBACK


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="services.up.keyring", description="Make certificates, service users and first keys.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--bus-at", default="", help="where the bus finds its part (default: in the folder)")
    parser.add_argument("--node", action="append", default=[], metavar="NAME=HOST", help="a node, and the host it runs on")
    options = parser.parse_args(arguments)
    nodes = dict(text.partition("=")[::2] for text in options.node)
    ours = [name.strip() for name in os.environ.get("WOOLY_HOSTS", "").split(",") if name.strip()]
    hosts = {"bus": "nats", "controller": "controller", "billing": "billing", "etcd": "etcd", "trace": "otel-collector"}
    called = {part: [host, *LOOPBACK, *ours] for part, host in hosts.items()}
    called |= {f"nodes/{name}": [host or name, *LOOPBACK, *ours] for name, host in nodes.items()}
    try:
        Keyring.make(options.folder, called, list(nodes), bus_at=options.bus_at)
    except (KitError, OSError) as error:
        print(f"keyring: {error}", file=sys.stderr)
        return 2
    print(f"the keyring is in {options.folder}; give clients a ca.pem of it; the first admin key is in controller/admin.key")
    return 0


if __name__ == "__main__":
    sys.exit(main())
