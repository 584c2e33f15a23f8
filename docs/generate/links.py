"""Links of Markdown pages: finding them, resolving them against the repository and the site, anchors of headings."""

from __future__ import annotations

import posixpath
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from docs.generate import OUTSIDE, REFERENCE, ROOT

__all__ = ["Link", "anchors", "links", "repository_path", "rewritten", "site_path"]

_LINK: Final = re.compile(r"\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^()\s]+)\)")
_CODE: Final = re.compile(r"^(```|~~~).*?^\1[^\n]*$|(`+)(?!`).+?(?<!`)\2(?!`)", re.MULTILINE | re.DOTALL)
_HEADING: Final = re.compile(r"^#{1,6}\s+(.*?)\s*#*$", re.MULTILINE)
_ELSEWHERE: Final = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Link:
    """A link that stays in the repository, at ``start`` to ``end``. ``path`` is relative to the page, and empty for the page itself."""

    text: str
    path: str
    anchor: str
    start: int
    end: int


def _masked(text: str) -> str:
    """``text`` of the same length with code blotted out."""
    return _CODE.sub(lambda match: "x" * len(match[0]), text)


def links(text: str) -> Iterator[Link]:
    """The relative links outside of code, in order."""
    for match in _LINK.finditer(_masked(text)):
        if not _ELSEWHERE.match(match["target"]):
            path, _, anchor = match["target"].partition("#")
            yield Link(text[match.start("text") : match.end("text")], path, anchor, match.start(), match.end())


def anchors(text: str) -> set[str]:
    """The ids of the headings, as Python-Markdown makes them."""
    found: set[str] = set()
    for match in _HEADING.finditer(re.sub(r"^(```|~~~).*?^\1[^\n]*$", "", text, flags=re.MULTILINE | re.DOTALL)):
        plain = re.sub(r"`|\*|!?\[([^\]]*)\]\([^)]*\)", r"\1", match[1])
        word = unicodedata.normalize("NFKD", plain).encode("ascii", "ignore").decode()
        slug = base = re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", word).strip().lower())
        number = 0
        while slug in found:
            number += 1
            slug = f"{base}_{number}"
        found.add(slug)
    return found


def repository_path(site: str) -> str:
    """Where the page of the site lives in the repository; a generated page would live in docs/."""
    return next((path for path, at in OUTSIDE.items() if at == site), f"docs/{site}")


def site_path(repository: str) -> str | None:
    """Where the site has the file; None when it has not."""
    if repository in OUTSIDE:
        return OUTSIDE[repository]
    if not repository.startswith("docs/"):
        return None
    site = repository.removeprefix("docs/")
    return site if site in REFERENCE or site in OUTSIDE.values() or (ROOT / repository).is_file() else None


def rewritten(text: str, site: str) -> str:
    """The text of a page for its place in the site: links to files that the site does not have become plain text."""
    out, at = [], 0
    page = repository_path(site)
    for link in links(text):
        if not link.path:
            continue
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page), link.path))
        found = site_path(target)
        out.append(text[at : link.start])
        if found is not None:
            anchor = f"#{link.anchor}" if link.anchor else ""
            out.append(f"[{link.text}]({posixpath.relpath(found, posixpath.dirname(site) or '.')}{anchor})")
        elif (ROOT / target).exists():
            out.append(link.text)
        else:
            out.append(text[link.start : link.end])  # the strict build reports it
        at = link.end
    return "".join([*out, text[at:]])
