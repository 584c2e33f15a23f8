"""``python -P -m services.kit.health URL``: does a service of ours answer there? Exit status 0 or 1, for health checks.

Believes WOOLY_TLS_CA.
"""

from __future__ import annotations

import os
import sys
import urllib.request
from typing import Final

from services.kit.errors import SettingError
from services.kit.tls import client_context

_TIMEOUT_S: Final = 3.0


def main() -> int:
    url = sys.argv[1]
    try:
        context = client_context(os.environ) if url.startswith("https:") else None
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S, context=context) as answer:
            print(f"healthy: {answer.status}")
    except (OSError, SettingError) as error:  # HTTPError is one of them
        print(f"unhealthy: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
