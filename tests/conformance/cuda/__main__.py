"""``make cuda-roundtrip``: the cuda back end executed without a GPU, and docs/cuda-roundtrip.md.

usage: python -m tests.conformance.cuda [--parts corpus library ...] [--size N] [--faults] [--publish]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from tests.conformance.cuda.faults import FAULTS, Caught, caught
from tests.conformance.cuda.page import page
from tests.conformance.cuda.parts import PARTS, Part

_DOC = Path(__file__).parents[3] / "docs" / "cuda-roundtrip.md"


def _in_a_process(name: str, size: int | None) -> Part:
    """A part in a process of its own: what compilers keep for one is not in the way of the next."""
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "part.json"
        command = [sys.executable, "-m", "tests.conformance.cuda", "--child", name, "--record", str(record)]
        done = subprocess.run([*command, *([] if size is None else ["--size", str(size)])], check=False)
        if done.returncode:
            return Part(name, "", refused=[f"{name}: the process ended with {done.returncode}"])
        return msgspec.json.decode(record.read_bytes(), type=Part)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.cuda", description=__doc__)
    parser.add_argument("--parts", nargs="*", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--size", type=int, help="cases, programs or rounds of a part")
    parser.add_argument("--faults", action="store_true", help="then plant every known fault into the emitter and see that tests fail")
    parser.add_argument("--publish", action="store_true", help="write docs/cuda-roundtrip.md")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--record", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        execute, size = PARTS[options.child]
        Path(options.record).write_bytes(msgspec.json.encode(execute(size if options.size is None else options.size)))
        return 0
    parts = []
    for name in options.parts:
        part = _in_a_process(name, options.size)
        parts.append(part)
        print(f"{name}: {part.kernels} kernels, {part.launches} launches, {part.equal} equal, {part.near} near", flush=True)
        print(*(f"    {text}" for text in (*part.refused, *part.wrong)), sep="\n", flush=True)
    found: list[Caught] = []
    for fault in FAULTS if options.faults else ():
        found.append(caught(fault))
        print(f"{'caught' if found[-1].test else 'NOT CAUGHT'}: {fault.file}: {fault.what}  {found[-1].test}", flush=True)
    if options.publish:
        _DOC.write_text(page(parts, found))
    return 1 if any(part.refused or part.wrong for part in parts) or not all(f.test for f in found) else 0


if __name__ == "__main__":
    sys.exit(main())
