"""``make attacks``: every attack on every kernel device, and docs/attacks.md.

usage: python -m tests.adversarial [--backends reference host opencl] [--only NAME] [--report FILE]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jit.errors import ToolchainError
from tests.adversarial.attack import Attack, Completes, Ends, OutOfFuel, Promise, Refused, Traps
from tests.adversarial.attacks import ATTACKS
from tests.adversarial.canary import Canary
from tests.adversarial.trial import SECONDS_MAX, trial
from tests.support.kernel_devices import KERNEL_DEVICES

_DOC = Path(__file__).parents[2] / "docs" / "attacks.md"

_HEAD = """# Attacks on kernel isolation

{count} hostile kernels, launches and byte strings (`tests/adversarial`), each run on every kernel device ({devices}) beside a
canary: a second tenant whose kernel runs on the same device right before and right after, whose buffers are in the same process, and which
fills its shared and local memory with a secret. Made by `make attacks`.

An attack is *ok* when it ended as promised, within {seconds:.0f} s of processor time; nothing around its own buffers was written; it read
no byte that is not its own; and the canary's memory and results were the same afterwards. *At import*: refused before it reaches a
device. Real nodes with two sessions: `tests/integration/test_node_attacks.py`.

{summary}

"""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.adversarial", description=__doc__)
    parser.add_argument("--backends", nargs="+", default=["reference", "host", "opencl"], choices=list(KERNEL_DEVICES))
    parser.add_argument("--only", nargs="+", default=[""], help="attacks whose names begin so")
    parser.add_argument("--report", default="", help="write the record to this file (docs/attacks.md: --report default)")
    return parser.parse_args()


def _promised(promise: Promise) -> str:
    match promise:
        case Refused():
            return "refused"
        case Traps(kind, cta, thread):
            where = f" (block {cta}, thread {thread})" if cta is not None else ""
            return f"trap {kind.name.lower()}{where}"
        case OutOfFuel():
            return "out of fuel"
        case Completes():
            return "completes, values defined"
        case Ends():
            return "ends"


def _targets(names: Sequence[str]) -> dict[str, tuple[Any, Canary]]:
    found = {}
    for name in names:
        try:
            device = KERNEL_DEVICES[name]()
        except ToolchainError as error:
            print(f"{name}: not on this machine: {error}")
            continue
        found[name] = (device, Canary(device))
    return found


def _tried(attack: Attack, targets: dict[str, tuple[Any, Canary]]) -> dict[str, list[str]]:
    """Faults by device."""
    chosen = list(targets)[:1] if attack.everywhere_alike else list(targets)
    faults = {}
    for name in chosen:
        start = time.perf_counter()
        try:
            faults[name] = trial(attack, *targets[name])
        except Exception as error:  # a device that fails on one attack must not keep the others from being made
            faults[name] = [f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"]
        wrong = "".join(f"\n        {fault}" for fault in faults[name])
        print(f"{'ok   ' if not wrong else 'WRONG'} {name:9} {time.perf_counter() - start:6.1f} s  {attack.name}{wrong}", flush=True)
    return faults


def _page(results: dict[str, dict[str, list[str]]], devices: Sequence[str]) -> str:
    wrong = {name: faults for name, faults in results.items() if any(faults.values())}
    summary = f"{len(results) - len(wrong)} of {len(results)} ended as promised everywhere; the canary was unchanged after each."
    if wrong:
        summary = f"{len(wrong)} of {len(results)} did not end as promised everywhere (below)."
    head = _HEAD.format(count=len(results), devices=", ".join(devices), seconds=SECONDS_MAX, summary=summary)
    lines = ["| attack | what it tries | promised | " + " | ".join(devices) + " |", "|---" * (3 + len(devices)) + "|"]
    for name, faults in results.items():
        attack = ATTACKS[name]
        fine = "at import" if attack.everywhere_alike else "ok"
        cells = ["**no**" if faults.get(device) else fine if device in faults else "" for device in devices]
        what = " ".join(attack.what.split()).rstrip(".").replace("|", "\\|")
        lines.append(f"| {name} | {what} | {_promised(attack.promise)} | " + " | ".join(cells) + " |")
    below = [f"- {name} on {device}: {text}" for name, faults in wrong.items() for device, found in faults.items() for text in found]
    return head + "\n".join(lines) + "\n" + ("\n## Not as promised\n\n" + "\n".join(below) + "\n" if below else "")


def main() -> int:
    options = _arguments()
    targets = _targets(options.backends)
    chosen = [attack for name, attack in ATTACKS.items() if name.startswith(tuple(options.only))]
    results = {attack.name: _tried(attack, targets) for attack in chosen}
    for device, _ in targets.values():
        device.close()
    wrong = sum(any(faults.values()) for faults in results.values())
    print(f"{len(results)} attacks, {wrong} not as promised")
    if options.report:
        (_DOC if options.report == "default" else Path(options.report)).write_text(_page(results, list(targets)))
    return 1 if wrong or not results or not targets else 0


if __name__ == "__main__":
    sys.exit(main())
