"""Where an API key comes from that no variable names: the file that ``wooly login`` writes, readable by its owner alone, or the token of a
pod, which the Kubernetes operator exchanges.

Read by ``wooly.config``: keep it light.
"""

from __future__ import annotations

import functools
import json
import os
import stat
from typing import Final

from wooly.errors import ConfigError, WoolyError
from wooly.shared.files import write_atomically

_FILE: Final = "~/.config/wooly/credentials"
_NAME: Final = "WOOLY_API_KEY"
_BYTES_MAX: Final = 65_536
_EXCHANGE_S: Final = 10.0


def path() -> str:
    return os.path.expanduser(_FILE)


def read(file: str) -> str:
    """The key; empty when there is no file. Raises ConfigError when others may read it too, or it holds no key."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise ConfigError(f"the credentials {file} cannot be read ({error.strerror}); fix its permissions, or delete it") from None
    with os.fdopen(descriptor, "rb") as opened:
        mode = os.fstat(opened.fileno()).st_mode
        if not stat.S_ISREG(mode) or mode & 0o077:
            raise ConfigError(f"the credentials {file} may be read by others; run: chmod 600 {file}")
        text = opened.read(_BYTES_MAX).decode("utf-8", "replace")
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals and name.strip() == _NAME:
            return value.strip().strip('"')
    raise ConfigError(f"the credentials {file} hold no {_NAME}; delete the file and run `wooly login`")


def write(file: str, key: str, comment: str = "") -> None:
    """Replace the file in one step; other users can never read it. Raises ConfigError."""
    text = (f"# {comment}\n" if comment else "") + f'{_NAME} = "{key}"\n'
    try:
        os.makedirs(os.path.dirname(file), mode=0o700, exist_ok=True)
        write_atomically(file, text.encode(), mode=0o600)
    except OSError as error:
        raise ConfigError(f"the credentials {file} cannot be written ({error.strerror})") from None


def forget(file: str) -> bool:
    """Remove the file; whether there was one."""
    try:
        os.unlink(file)
    except FileNotFoundError:
        return False
    return True


@functools.cache
def exchange(url: str, token_file: str, authorities: str) -> str:
    """The API key for the token in ``token_file``, asked for once in a process. ``authorities``: a PEM file that the certificate at ``url``
    is verified with. Raises ConfigError."""
    from wooly.rest import Credentials, ask  # only in pods

    try:
        with open(token_file, encoding="ascii") as opened:
            token = opened.read(_BYTES_MAX).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"WOOLY_TOKEN_FILE={token_file} cannot be read: {error}") from None
    try:
        answer = ask(url, "", Credentials(token, authorities), what="operator", method="POST", timeout_s=_EXCHANGE_S)
        return str(json.loads(answer)["key"])
    except WoolyError as error:
        raise ConfigError(f"there is no API key for this pod: {error}") from None
    except (ValueError, KeyError, TypeError):
        raise ConfigError(f"what answers at WOOLY_KEY_URL={url} is not the operator; check the address") from None
