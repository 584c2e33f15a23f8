"""The file that ``wooly login`` writes: one API key, readable by its owner alone.

Read by ``wooly.config``: keep it light.
"""

from __future__ import annotations

import os
import stat
from typing import Final

from wooly.errors import ConfigError
from wooly.shared.files import write_atomically

__all__ = ["forget", "path", "read", "write"]

_FILE: Final = "~/.config/wooly/credentials"
_NAME: Final = "WOOLY_API_KEY"
_BYTES_MAX: Final = 65_536


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
