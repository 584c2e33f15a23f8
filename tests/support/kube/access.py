"""How tests reach an API server: as its administrator, by a token."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Final

__all__ = ["ADMIN", "write_kubeconfig"]

ADMIN: Final = "admin-token-of-tests"


def write_kubeconfig(path: Path, url: str, ca: Path, token: str = ADMIN) -> Path:
    data = base64.b64encode(ca.read_bytes()).decode()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "tests",
        "clusters": [{"name": "tests", "cluster": {"server": url, "certificate-authority-data": data}}],
        "users": [{"name": "admin", "user": {"token": token}}],
        "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "admin"}}],
    }
    path.write_text(json.dumps(config))
    return path
