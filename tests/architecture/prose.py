"""Finds words of a private vocabulary in comments, docstrings, messages, documentation, templates and configuration.

    python -m tests.architecture.prose           check the roots of CHECKED: a line for each finding, exit status 1 if there is one
    python -m tests.architecture.prose docs wis  check these files and folders instead

Of Python files, comments and string literals that contain a space are prose; names in code are not. Of all other files, every line is.
Text between backticks, expressions of f-strings and expressions of templates are code and are skipped.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from typing import Final, NamedTuple

from tests.support.stack import ROOT

CHECKED: Final[tuple[str, ...]] = (
    "wis", "bus_schemas", "billing", "scheduler", "jit", "services", "wooly", "wooly_server", "tests", "benchmarks", "examples", "deploy",
    "docs", "docker-compose.yml", "mkdocs.yml", "Makefile", "README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md",
    "SECURITY.md",
)  # fmt: skip
"""Files and folders that `make lint` checks."""
SUFFIXES: Final = (".py", ".md", ".html", ".yml", ".yaml", ".conf", ".toml", ".cu", ".h", ".js", ".sh", "Makefile")


class Word(NamedTuple):
    """A word that prose does not use: a regular expression, and what to write instead. ``skip``: folders that `make lint` does not check;
    the census counts it there too."""

    pattern: str
    instead: str
    skip: tuple[str, ...] = ()


_LATER: Final = ("bus_schemas", "jit", "scheduler", "services")


WORDS: Final = (
    Word(r"nobody(?:'s)?", "name the component or the role: no client, no session, no writer"),
    Word(r"somebody(?:'s)?", "name the component or the role: a user, another session"),
    Word(r"whoever", "name the component or the role: the caller, the owner"),
    Word(r"strangers?(?:'s)?", "unauthenticated client, untrusted code, another tenant"),
    Word(r"told", "name the message: reported, notified, configured, requested"),
    Word(r"gone", "name the state: closed, deleted, lost, exited, revoked, unreachable"),
    Word(r"who\s+came", "name the client: clients authenticated by API key"),
    Word(r"it\s+is\s+so", "name the property: secured by default"),
    Word(r"stands?\s+on|standing\s+on|stood\s+on", "depends on, refers to, is backed by"),
    Word(r"com(?:es?|ing)\s+to\s+rest|came\s+to\s+rest", "becomes idle"),
    Word(r"(?:journals?|logs?|messages?|events?|keys?)\s+of\s+old", "name the version: v1 journals"),
    Word(r"of\s+before", "earlier, cached, previous"),
    Word(r"had\s+too\s+much", "say which limit was exceeded"),
    Word(r"hurried", "preemptible"),
    Word(r"refuges?", "fuel-exit block"),
    Word(r"parted", "diverged, divergent, separated"),
    Word(r"whose\s+turn", "name the mechanism: fence, round robin, queue"),
    Word(r"forfeit\w*", "poisoned, poison", _LATER),
    Word(r"not\s+one\s+without\s+the\s+other", "commit atomically", _LATER),
    Word(r"under\s+new\s+names", "with new message ids, bypassing deduplication", _LATER),
    Word(r"and\s+is\s+none", "name the property: Non-inbox subjects", _LATER),
    Word(r"(?<!/)life(?![\s-]cycle)|lives\s+of", "epoch of a process, duration of an object, heartbeat of a node, run", _LATER),
    Word(r"(?:every|any)(?:body|one)(?:'s)?|someone(?:'s)?", "name the component or the role: all sessions, each caller", _LATER),
    Word(
        r"who\s+(?:comes?|reads|hears|waits|asks|writes|holds|knows)", "name the component or the role: the caller, the subscriber", _LATER
    ),
    Word(r"shel(?:f|ves)", "secondary index, free list", _LATER),
    Word(r"dut(?:y|ies)", "periodic work of the leader", _LATER),
    Word(r"outdated\s+(?:entr(?:y|ies)|places?)", "stale heap entry (lazy deletion)", _LATER),
    Word(r"foreign\s+kernels?", "user kernel", _LATER),
    Word(r"meets?\s+again|meeting\s+points?", "reconverge, reconvergence point", _LATER),
)

ALLOWED: Final = re.compile(r"410\s+Gone|told\s+apart|event:\s+gone|\"gone\"|game\s+of\s+life|void\s+life|\"anyone\"", re.IGNORECASE)
"""Uses with a standard meaning: the name of an HTTP status, the participle of "to tell apart" (to distinguish), the name of an event in
the pages' stream, a cellular automaton, and the action of routes that any identity may call."""

_WORD: Final = re.compile("|".join(rf"(?P<w{i}>\b(?:{word.pattern})\b)" for i, word in enumerate(WORDS)), re.IGNORECASE)
_CODE: Final = re.compile(r"``[^`]*``|`[^`\n]*`")
_TEMPLATE: Final = re.compile(r"\{\{.*?\}\}|\{%.*?%\}", re.DOTALL)
_BRACES: Final = re.compile(r"\{\{|\}\}|\{[^{}\n]*\}")
_STRINGS: Final = frozenset({tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)})


class Finding(NamedTuple):
    """``line`` counts from 1."""

    line: int
    text: str
    instead: str
    skip: tuple[str, ...] = ()


def _blank(match: re.Match[str]) -> str:
    """Spaces as long as the match, with its line breaks, so that line numbers stay."""
    return re.sub(r"[^\n]", " ", match[0])


def _match(text: str, first_line: int) -> Iterator[Finding]:
    text = ALLOWED.sub(_blank, _CODE.sub(_blank, text))
    for match in _WORD.finditer(text):
        word = WORDS[int((match.lastgroup or "w0")[1:])]
        yield Finding(first_line + text.count("\n", 0, match.start()), " ".join(match[0].split()), word.instead, word.skip)


def check(source: str, *, python: bool) -> list[Finding]:
    """The findings in the text of one file. Raises tokenize.TokenError and SyntaxError for text that is no Python though ``python``."""
    if not python:
        return list(_match(_TEMPLATE.sub(_blank, source), 1))
    found: list[Finding] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        text = token.string
        if token.type in _STRINGS:
            prefix = text[: len(text) - len(text.lstrip("rRbBuUfF"))]
            text = _BRACES.sub(_blank, text) if "f" in prefix.lower() else text
        elif token.type != tokenize.COMMENT:
            continue
        if " " in text:
            found += _match(text, token.start[0])
    return found


def main(roots: list[str]) -> int:
    """Print the findings in tracked and new files under ``roots`` (by default CHECKED); the exit status."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *(roots or CHECKED)]
    files = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    count = 0
    for name in files:
        path = ROOT / name
        if not name.endswith(SUFFIXES) or not path.is_file():
            continue
        for line, text, instead, skip in check(path.read_text(), python=name.endswith(".py")):
            if name.split("/")[0] not in skip:
                print(f"{name}:{line}: {text!r}: {instead}")
                count += 1
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
