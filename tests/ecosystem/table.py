"""docs/ecosystem.md: what each case came to, and why."""

from __future__ import annotations

import importlib.metadata
from collections import Counter
from typing import Final

import torch

from tests.ecosystem.case import VERDICTS, Outcome

__all__ = ["totals", "document"]

_GROUPS: Final = {"a": "trainers", "b": "inference", "c": "torch features", "d": "kernels", "e": "misuse"}
_LIBRARIES: Final = (
    "transformers peft accelerate trl lightning diffusers timm torchvision kornia monai torch_geometric fastai sentence-transformers "
    "stable-baselines3 torchmetrics segmentation-models-pytorch open_clip_torch ultralytics tensordict torchrl"
).split()


def totals(outcomes: list[Outcome]) -> str:
    """One line: how many of each verdict."""
    counts = Counter(o.verdict for o in outcomes)
    return f"{len(outcomes)} cases: " + ", ".join(f"{v} {counts[v]}" for v in VERDICTS if counts[v])


def _versions() -> str:
    found = [f"torch {torch.__version__}"]
    for name in _LIBRARIES:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return ", ".join(found)


def document(outcomes: list[Outcome], explained: dict[str, dict[str, str]], earlier: str = "") -> str:
    """The page: totals by group, then a line a case. Cases that did not run keep the lines that they have in ``earlier``."""
    rows = {line.split(" | ")[0]: line for line in earlier.splitlines() if line.startswith("| ") and line[3:5].isdigit()}
    rows |= {f"| {o.case.path.stem}": _row(o, explained) for o in outcomes}
    verdicts = {name: row.split(" | ")[2] for name, row in rows.items()}
    lines = [
        "# Ecosystem: which libraries run unmodified",
        "",
        "Which programs with other people's libraries run unmodified, and what to expect of the others. Made by `make ecosystem`: each",
        "script of `tests/ecosystem/cases` runs on the CPU and on the device of an embedded stack (`wooly up`); what it saves is compared.",
        "",
        f"Versions: {_versions()}.",
        "",
        "- *pass*: equal values within tolerance, everything computed on the device.",
        "- *fallback*: equal values; the operations named were computed on the client's CPU, with a warning.",
        "- *wrong*: other values without an error. *hang*: no end within the limit.",
        "- *error*: the script ended with the message shown; the session continued. *session-lost*: the session ended as well.",
        "- *not installed*: a library that the script needs is missing here; nothing is known about it.",
        "",
        "| group | " + " | ".join(VERDICTS) + " |",
        "|---" * (len(VERDICTS) + 1) + "|",
    ]
    for letter, group in [*_GROUPS.items(), ("", "all")]:
        counts = Counter(verdict for name, verdict in verdicts.items() if name.startswith(f"| {letter}"))
        lines.append(f"| {letter.upper()} {group} | ".replace("|  all", "| all") + " | ".join(str(counts[v]) for v in VERDICTS) + " |")
    lines += ["", "| case | what it does | verdict | operations | on the client's CPU | explanation |", "|---|---|---|---|---|---|"]
    lines += [rows[name] for name in sorted(rows)]
    return "\n".join(lines) + "\n"


def _row(outcome: Outcome, explained: dict[str, dict[str, str]]) -> str:
    used = ", ".join(f"`{name.removeprefix('aten::')}` x{n}" for name, n in sorted(outcome.fallbacks.items()))
    entry = explained.get(outcome.case.name, {})
    why = entry.get("why", "") if entry.get("verdict") == outcome.verdict else ""
    note = f"`{outcome.note[:200].replace('`', chr(39))}`" if outcome.note else ""
    cells = [outcome.case.path.stem, outcome.case.title, outcome.verdict, str(outcome.ops), used, ". ".join(filter(None, (note, why)))]
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
