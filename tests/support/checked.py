"""Runs scripts with the device switched on over the loopback link, checked against the CPU or not, with or without planted faults.

    python -m tests.support.checked [--check DIR] [--backend NAME] < JSON, a list of {"script": PATH, "fault": SOURCE}

Writes one JSON object a script: {"error": traceback or "", "code": of its exit, "printed": TEXT, "summary": TEXT}. A fault is Python that
runs before the script; lowerings that it changes are put back after it, and functions that it appends to ``undo`` are called.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import runpy
import sys
import traceback
from collections.abc import Callable
from typing import Any

import torch

from tests.support.loopback import LoopbackLink
from wooly.activation import activate
from wooly.config import Config
from wooly.device import kernels
from wooly.device.lowering import LOWERINGS


def _result(script: str) -> dict[str, Any]:
    printed, code, error = io.StringIO(), 0, ""
    with contextlib.redirect_stdout(printed):
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        except Exception:  # shown to the test
            error, code = traceback.format_exc(), 1
    return {"error": error, "code": code, "printed": printed.getvalue()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", default="", help="compare every operation; scripts go to this folder")
    parser.add_argument("--backend", default="reference", choices=["reference", "host"])
    given = parser.parse_args()
    torch.set_num_threads(1)
    engine = None
    if given.backend == "host":
        from jit.backends import create_engine

        engine = create_engine("host", cache_dir=None, threads=1, vram_bytes=4 << 30)
    activate(Config(check="cpu" if given.check else "off", check_dir=given.check), lambda index: LoopbackLink(engine))
    whole = dict(LOWERINGS)
    for case in json.load(sys.stdin):
        undo: list[Callable[[], None]] = []
        exec(case.get("fault", ""), {"undo": undo})
        kernels.forget_plans()
        result = _result(case["script"])
        if given.check:
            from wooly.device.checking import REPORT

            result["summary"] = REPORT.summary()
            REPORT.forget()
        LOWERINGS.update(whole)
        for step in undo:
            step()
        kernels.forget_plans()
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
