"""Reading a long history without looking through it for garbage."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.support.stack import ROOT

SCRIPT = """
import gc, json
from contextlib import nullcontext
from services.kit.process import history_stays

def collections_while_reading(reading):
    before = gc.get_stats()
    with reading:
        kept = [[number] for number in range(400_000)]
        for _ in range(5_000):
            loop = []
            loop.append(loop)
        alive = sum(1 for found in gc.get_objects() if type(found) is list and found and found[0] is found)
    return [after["collections"] - was["collections"] for after, was in zip(gc.get_stats(), before)], alive, kept

found = [collections_while_reading(reading) for reading in (nullcontext(), history_stays())]
print(json.dumps([part[:2] for part in found] + [gc.get_threshold(), gc.get_freeze_count()]))
"""


def test_what_is_read_is_not_looked_through_for_garbage_and_what_is_dropped_is() -> None:
    command = [sys.executable, "-P", "-c", SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, env={"PYTHONPATH": str(ROOT)}, check=True, timeout=60)
    (otherwise, _), ((young, middle, old), alive), thresholds, frozen = json.loads(done.stdout)
    assert otherwise[2] > 0 and old == 0
    assert young > 100 and middle > 10 and alive < 2_000, "garbage that is young"
    assert thresholds == [700, 10, 10] and frozen > 800_000
