"""Minimal scripts: lines are left out as long as what is left fails in the same way."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Final

from tests.programs import leaves
from tests.programs.execute import Verdict
from tests.programs.script import Program

__all__ = ["shrink", "stand_alone"]


def shrink(program: Program, verdict: Verdict, judge: Callable[[list[str]], Verdict]) -> tuple[list[str], Verdict]:
    """The fewest lines that still end in a verdict of the same kind, and that verdict."""
    lines = [line.text for line in program.lines[: verdict.n_lines or None]]
    chunk = max(len(lines) // 2, 1)
    while chunk:
        at = len(lines)
        while at > 0:
            at = max(at - chunk, 0)
            fewer = lines[:at] + lines[at + chunk :]
            if not fewer:
                continue
            tried = judge(fewer)
            if tried.kind == verdict.kind:
                lines, verdict = fewer, tried
                at = min(at, len(lines))
        chunk //= 2
    return lines, verdict


_SCRIPT: Final = """# {complaint}
from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


{helpers}


def program(dev: str) -> dict[str, Any]:
    torch.manual_seed(0)
{body}
    return {{name: value for name, value in locals().items() if name[0] in "tvmo" and name[1:].isdigit()}}


for device in ("cpu", "cuda"):
    for name, value in program(device).items():
        print(device, name, value)
"""


def stand_alone(lines: list[str], complaint: str) -> str:
    """A script that runs without this package: on the CPU, then on the device, printing what each leaves."""
    helpers = inspect.getsource(leaves).split("__all__", 1)[1].split("\n", 1)[1].strip()
    body = "\n".join("    " + part for line in lines for part in line.split("\n"))
    return _SCRIPT.format(complaint=complaint[:400].replace("\n", " "), helpers=helpers, body=body)
