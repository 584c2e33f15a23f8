"""The hook of mkdocs.yml: adds generated pages and those outside ``docs/``, and adapts links to the site."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any, Final

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

_ROOT: Final = Path(__file__).resolve().parents[2]
if str(_ROOT) not in sys.path:  # mkdocs runs a hook by its path, so the checkout is not on it
    sys.path.insert(0, str(_ROOT))

from docs.generate import OUTSIDE, REFERENCE  # noqa: E402  # found by the path above
from docs.generate.links import rewritten  # noqa: E402  # likewise

_FETCHED: Final = re.compile(r"""<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=["']?https?://""")


def on_files(files: Files, config: Any) -> Files:
    for path, make in REFERENCE.items():
        files.append(File.generated(config, path, content=make()))
    for source, path in OUTSIDE.items():
        files.append(File.generated(config, path, content=(_ROOT / source).read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    return rewritten(markdown, page.file.src_uri)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Nothing is fetched from the network when a page is read."""
    found = _FETCHED.search(output)
    if found:
        raise PluginError(f"{page.file.src_uri} would fetch from the network: {found[0]}...")
    return output
