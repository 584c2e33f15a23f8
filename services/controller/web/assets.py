"""Stylesheet, scripts and fonts: read once, served from memory under an address that contains a digest of their content, cached without
limit.

A path is a key of a table, so no path leads outside the folder.
"""

from __future__ import annotations

import gzip
import mimetypes
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from blake3 import blake3
from litestar import Request, Response, get

__all__ = ["Assets", "Asset", "ASSETS", "serve_asset"]

_FOLDER: Final = Path(__file__).parent / "static"
_FOR_EVER: Final = "public, max-age=31536000, immutable"
_TYPES: Final = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".woff2": "font/woff2"}
_PACKED: Final = frozenset({".js", ".css", ".svg"})


@dataclass(frozen=True, slots=True)
class Asset:
    """``packed``: gzip of the body, empty where it saves nothing."""

    body: bytes
    packed: bytes
    media_type: str


class Assets:
    """Every file under ``folder``. ``digest`` names the content of all of them together."""

    def __init__(self, folder: Path = _FOLDER) -> None:
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        self.files = {path.relative_to(folder).as_posix().removesuffix(".gz"): _read(path) for path in paths}
        whole = blake3()
        for name, asset in self.files.items():
            whole.update(f"{name}\0{len(asset.body)}\0".encode())
            whole.update(asset.body)
        self.digest = whole.hexdigest()[:16]

    def url(self, name: str) -> str:
        """The address of a file. Raises KeyError when there is no such file: a template's slip shows in its first test."""
        self.files[name]
        return f"/static/{self.digest}/{name}"


def _read(path: Path) -> Asset:
    body = path.read_bytes()
    if path.suffix == ".gz":  # a large library is kept compressed
        plain = path.with_suffix("")
        return Asset(gzip.decompress(body), body, _TYPES[plain.suffix])
    media_type = _TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0] or "text/plain"
    return Asset(body, gzip.compress(body, 9, mtime=0) if path.suffix in _PACKED else b"", media_type)


ASSETS: Final = Assets()


@get("/static/{digest:str}/{name:path}", include_in_schema=False, action=None)
async def serve_asset(request: Request[Any, Any, Any], digest: str, name: str) -> Response[bytes]:
    """An old digest gets the new content, to be asked for again: a page that was open over an upgrade keeps its looks."""
    asset = ASSETS.files.get(str(name).lstrip("/"))
    if asset is None:
        return Response(b"", status_code=404, media_type="text/plain")
    tag = f'"{ASSETS.digest}"'
    headers = {
        "cache-control": _FOR_EVER if digest == ASSETS.digest else "no-cache",
        "etag": tag,
        "vary": "accept-encoding",
        "x-content-type-options": "nosniff",
    }
    if request.headers.get("if-none-match") == tag:
        return Response(b"", status_code=304, headers=headers, media_type=asset.media_type)
    if asset.packed and "gzip" in request.headers.get("accept-encoding", ""):
        return Response(asset.packed, headers=headers | {"content-encoding": "gzip"}, media_type=asset.media_type)
    return Response(asset.body, headers=headers, media_type=asset.media_type)
