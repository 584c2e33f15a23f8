"""Pages from templates: ``page(request, "nodes/list.html", title="Nodes", ...)``, their security headers, the terms that they explain (with
the words of docs/glossary.md), and their assets: stylesheet, scripts and fonts are read once, served from memory under an address that
contains a digest of their content, and cached without limit.

Whatever a template prints is escaped; an undefined name is an error, not an empty string.

An asset's path is a key of a table, so no path leads outside the folder.
"""

from __future__ import annotations

import gzip
import mimetypes
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from blake3 import blake3
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from litestar import Request, Response, get

from services.controller.web.formats import FILTERS
from services.controller.web.forms import forget_cookie, read_flash
from services.controller.web.scope import Scope
from services.kit.access.rules import Identity, local_identity
from services.kit.access.web import ANONYMOUS

__all__ = [
    "ASSETS", "ENVIRONMENT", "NAVIGATION", "PAGE_HEADERS", "POLICY", "TERMS", "page", "page_text", "scope_of", "serve_asset",
    "term_of",
]  # fmt: skip

TERMS: Final = {
    "balance": "The credits granted to a tenant less those charged; negative when the tenant owes.",
    "batch": "The message of one flush: allocations, uploads, one program, reads and frees.",
    "blocked": "Of a device's time: it moved memory or did other work that is no launch, "
    "or the task that held it waited for its tenant's budget.",
    "budget": "The most credits a tenant may spend in a day, a month or in all; further batches are refused when it is used up.",
    "busy": "Of a device's time: what its work would have taken with all cores occupied.",
    "core share": "The part of all cores' time of a device that a session used in the last window. "
    "Utilization counts the time in which anything ran, so shares may add up to less.",
    "core time": "The time that cores of a device worked for a task, added up over cores: two cores for one second are two core-seconds.",
    "CPU bound": "Of a device's time: tasks that had just run there gave it nothing to do, and memory was free for others.",
    "credit": "The unit of the bill: core credits for measured core time, VRAM credits for memory held over time.",
    "default VRAM": "The memory by which a task is placed that names none: of its tenant's tier, else of the cluster. The task may grow.",
    "drain": "To give a node no new tasks while it finishes those it has.",
    "epoch": "One incarnation of a process.",
    "exclusive": "Of a task: no other task is placed on its devices.",
    "fragmented": "Of a device's time: nothing ran, while a task waited that the whole device could hold.",
    "GiB-second": "One GiB of device memory held for one second.",
    "group": "A named set of nodes; a node in a group serves only tasks that ask for the group.",
    "idle": "Of a device's time: nothing ran, and no task waited that the device could hold.",
    "launch": "The execution of one batch's program on a device.",
    "mean wait": "How long the launches of a session waited for the device, on average over the last window.",
    "memory bound": "Of a device's time: like CPU bound, but its memory was too full for another task.",
    "node": "The server process of one machine, with all its devices.",
    "overcommit": "Promising more memory than the device has; idle tasks are swapped out when it is needed.",
    "placement": "The choice of node and GPUs for a task.",
    "priority": "0 (first) to 4 (last): work of a higher priority always runs before work of a lower one.",
    "promised": "Of device memory: what placed tasks may use, whether or not they do.",
    "reservation": "Memory or devices that are held for a task.",
    "resident": "Of memory: it is on the device now.",
    "session": "A client's use of one node, from opening to closing.",
    "shared": "Of memory: weights that several tasks use, held once.",
    "starvation": "The percentage of a window in which a device was busy and at least one further launch waited.",
    "swapped": "Of memory: moved from the device to host memory or disk; it is moved back before it is used.",
    "task": "What a user asks to run: priority, memory, GPUs, groups.",
    "tenant": "The party that owns tasks and pays for them.",
    "tier": "The price class of a tenant, which also bounds the priority of its tasks.",
    "underused": "Of a device's time: a launch ran and left cores unoccupied.",
    "utilization": "The percentage of a window in which a device was busy.",
    "VRAM": "The memory of a device.",
    "waste": "The core time of a device that no launch occupied.",
}

_ALSO: Final = {
    "best priority": "priority", "core credits": "credit", "credits": "credit", "core-second": "core time",
    "credits per hour": "credit", "devices": "node",
    "for core time": "core time", "for vram": "GiB-second", "gib·s": "GiB-second", "groups": "group", "launches": "launch",
    "nodes ready": "node", "running tasks": "task", "queued tasks": "task", "swapped out": "swapped", "vram credits": "credit",
    "cost of waste": "waste", "vram in use": "VRAM", "vram overcommit": "overcommit", "vram time": "GiB-second",
}  # fmt: skip
"""Labels of pages -> the term that they are about."""
_BY_LABEL: Final = {word.lower(): word for word in TERMS} | _ALSO


def term_of(label: str) -> tuple[str, str] | None:
    """(term, what it means) for a label of a page; None where no term is meant."""
    word = _BY_LABEL.get(label.lower())
    return None if word is None else (word, TERMS[word])


_STATIC: Final = Path(__file__).parent / "static"
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

    def __init__(self, folder: Path = _STATIC) -> None:
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


_TEMPLATES: Final = Path(__file__).parent / "templates"
_HTML: Final = "text/html"
THEMES: Final = ("system", "light", "dark")

NAVIGATION: Final = (
    ("/", "Dashboard", "dashboard", "cluster.read"),
    ("/tasks", "Tasks", "tasks", "task.read"),
    ("/nodes", "Nodes", "nodes", "node.read"),
    ("/groups", "Groups", "groups", "group.read"),
    ("/credits", "Credits", "credits", "credits.read"),
    ("/utilization", "Utilization", "activity", "credits.read"),
    ("/settings", "Settings", "settings", "config.read"),
)
"""(path, label, icon, the action one needs to be shown it)."""
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "manifest-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
PAGE_HEADERS: Final = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}


def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters.update(FILTERS)
    made.globals.update(asset=ASSETS.url, navigation=NAVIGATION, themes=THEMES, terms=TERMS, term_of=term_of)
    return made


ENVIRONMENT: Final = _environment()


def scope_of(request: Request[Any, Any, Any]) -> Scope:
    return Scope.of(_asking(request))


def _asking(request: Request[Any, Any, Any]) -> Identity:
    """The caller's identity. Without a route there was no authentication: then ANONYMOUS, or ``local_identity()`` where access is off."""
    found = request.scope.get("user")
    if isinstance(found, Identity):
        return found
    return ANONYMOUS if request.app.state.access.on else local_identity()


def page(
    request: Request[Any, Any, Any],
    template: str,
    /,
    *,
    status: int = 200,
    live: str = "",
    headers: Mapping[str, str] | None = None,
    **context: Any,
) -> Response[str]:
    """A whole page. ``live``: the topic (web.live) that keeps it up to date, with the page's own query string; empty: none.

    Every template knows: ``scope`` (``scope.may("task.cancel")``), ``identity``, ``path``, ``csrf_token``, ``flash``, ``theme`` and
    ``live_url``.
    """
    answer = Response(page_text(request, template, live=live, **context), status_code=status, media_type=_HTML)
    answer.headers.update(PAGE_HEADERS | dict(headers or {}))
    if read_flash(request) is not None:
        answer.set_cookie(forget_cookie())
    return answer


def page_text(request: Request[Any, Any, Any], template: str, /, *, live: str = "", **context: Any) -> str:
    query = request.scope.get("query_string", b"").decode("ascii", "replace")
    theme = request.cookies.get("wooly_theme", "system")
    known = {
        "identity": _asking(request),
        "scope": scope_of(request),
        "path": request.url.path,
        "csrf_token": request.scope.get("state", {}).get("csrf_token", ""),
        "flash": read_flash(request),
        "theme": theme if theme in THEMES else "system",
        "live_url": f"/live/{live}" + (f"?{query}" if query else "") if live else "",
    }
    return ENVIRONMENT.get_template(template).render(known | context)
