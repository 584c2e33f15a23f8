"""``make conformance``: the operator database on the device, and docs/conformance.md.

usage: python -m tests.conformance [--publish] [--ops NAME,NAME] [--forward N] [--backward N] [--backend NAME] [--cut] [--report FILE]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db

from tests.conformance.harness import CLASSES, Outcome, backward, forward, op_name
from tests.support.cutting import CutEngine
from tests.support.loopback import LoopbackLink
from wooly.activation import activate
from wooly.config import Config

_DOCS = Path(__file__).parents[2] / "docs"
_PUBLISHED = {"host": ("conformance.md", None, 4), "opencl": ("conformance-opencl.md", 2, 1)}
"""By backend: the file, and how many samples an operator (forward, backward) are run for it."""


def _link(backend: str, *, cut: bool) -> LoopbackLink:
    """``cut``: every program runs in many pieces, between which its buffers move."""
    if backend == "reference" and not cut:
        return LoopbackLink()
    from jit.engine import create_engine

    engine = create_engine(backend, cache_dir=None, threads=2, vram_bytes=8 << 30)
    return LoopbackLink(CutEngine(engine) if cut else engine)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("--ops", default="", help="only these operators")
    parser.add_argument("--forward", type=int, default=None, help="samples an operator, forward (default: all)")
    parser.add_argument("--backward", type=int, default=4, help="samples an operator, backward (0: none)")
    parser.add_argument("--every", type=int, default=1, help="only every Nth operator")
    parser.add_argument("--publish", action="store_true", help="the samples that are published, and the file in docs/")
    parser.add_argument("--backend", default="reference", choices=["reference", "host", "opencl"])
    parser.add_argument("--cut", action="store_true", help="stop every run in many places and go on with it")
    parser.add_argument("--report", default="", help="write every operator that is not native to this file")
    return parser.parse_args()


def _totals(outcomes: list[Outcome]) -> dict[str, int]:
    ran = [o for o in outcomes if o.result != "skipped"]
    return {c: sum(o.result == c for o in ran) for c in CLASSES} | {"ops": len(ran), "samples": sum(o.samples for o in ran)}


def _line(name: str, totals: dict[str, int]) -> str:
    share = 100.0 / max(totals["ops"], 1)
    parts = ", ".join(f"{c} {totals[c]} ({totals[c] * share:.1f} %)" for c in CLASSES)
    return f"{name}: {totals['ops']} operators, {totals['samples']} samples: {parts}"


def _run(ops: list[Any], arguments: argparse.Namespace) -> tuple[list[Outcome], list[Outcome]]:
    ahead, back = [], []
    for op in ops:
        ahead.append(forward(op, arguments.forward))
        if arguments.backward and op.supports_autograd:
            back.append(backward(op, arguments.backward))
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{len(ahead)}/{len(ops)} {ahead[-1].name:50.50}")
    return ahead, back


def _report(path: str, ahead: list[Outcome], back: list[Outcome]) -> None:
    with open(path, "w") as file:
        for name, outcomes in (("forward", ahead), ("backward", back)):
            print(_line(name, _totals(outcomes)), file=file)
            for result in reversed(CLASSES[1:]):
                for o in outcomes:
                    if o.result == result:
                        used = ",".join(sorted(o.fallbacks))
                        print(f"{name:8} {result:8} {o.name:45} {o.counts[result]}/{o.samples} {o.note or used}", file=file)


def _document(ahead: list[Outcome], back: list[Outcome], backend: str, every: int) -> str:
    gradients = {o.name: o for o in back}
    lines = [
        "# Conformance" + ("" if backend == "host" else f" of the {backend} backend"),
        "",
        f"torch {torch.__version__.partition('+')[0]}'s operator database on the device, compared with the CPU (float32).",
        f"Made by `make conformance{'' if backend == 'host' else '-' + backend}`; executed in process by the {backend} backend.",
        *([f"Every {every}th operator."] if every > 1 else []),
        "",
        "*native*: computed on the device. *fallback*: some operation of it was computed on the client's machine, visibly.",
        "*refused*: a clear error. *wrong*: another result than the CPU's.",
        "",
        f"- {_line('forward, ' + _samples(_PUBLISHED[backend][1]), _totals(ahead))}",
        f"- {_line('backward, ' + _samples(_PUBLISHED[backend][2]), _totals(back))}",
        "",
        "| operator | forward | backward | what falls back or is refused |",
        "|---|---|---|---|",
    ]
    for o in ahead:
        gradient = gradients.get(o.name)
        used = o.fallbacks | (gradient.fallbacks if gradient else set())
        note = ", ".join(f"`{name}`" for name in sorted(used))
        for outcome in (o, gradient):
            if outcome and outcome.result in ("refused", "wrong"):
                note = outcome.note.replace("|", "\\|")[:120]
        lines.append(f"| {o.name} | {o.result} | {gradient.result if gradient else ''} | {note} |")
    return "\n".join(lines) + "\n"


def _samples(n: int | None) -> str:
    return "all samples" if n is None else f"{n} sample{'s' if n > 1 else ''} an operator"


def main() -> int:
    arguments = _arguments()
    if arguments.publish:
        _, arguments.forward, arguments.backward = _PUBLISHED[arguments.backend]
    torch.set_num_threads(1)
    link = _link(arguments.backend, cut=arguments.cut)
    activate(Config(), lambda: link)
    wanted = set(filter(None, arguments.ops.split(",")))
    ops = [op for op in op_db if torch.float32 in op.dtypes and (not wanted or op.name in wanted or op_name(op) in wanted)]
    ops = ops[:: arguments.every]
    ahead, back = _run(ops, arguments)
    print(_line("forward", _totals(ahead)))
    print(_line("backward", _totals(back)))
    if arguments.report:
        _report(arguments.report, ahead, back)
    if arguments.publish and not wanted:
        (_DOCS / _PUBLISHED[arguments.backend][0]).write_text(_document(ahead, back, arguments.backend, arguments.every))
    return 1 if _totals(ahead)["wrong"] + _totals(back)["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
