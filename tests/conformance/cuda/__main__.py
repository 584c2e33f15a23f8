"""``make cuda-roundtrip``: the cuda back end executed without a GPU, and docs/cuda-roundtrip.md; ``make cuda-gpu``: on a GPU, and
docs/cuda-gpu.md.

usage: python -m tests.conformance.cuda [--parts corpus library ...] [--size N] [--processes N] [--gpu] [--faults] [--publish]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from tests.conformance.cuda.faults import FAULTS, Caught, caught
from tests.conformance.cuda.page import page
from tests.conformance.cuda.parts import PARTS, Part
from tests.support.kernel_devices import gpu_name

_DOCS = Path(__file__).parents[3] / "docs"


def _in_processes(names: list[str], size: int | None, processes: int, *, on_gpu: bool) -> Iterator[Part]:
    """The parts as they are done, each in so many processes of its own at a time: what compilers keep for one is not in the way of the
    next."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(processes) as pool:
        shares = {name: [(name, first) for first in range(processes if PARTS[name][1] else 1)] for name in names}

        def execute(share: tuple[str, int]) -> Part:
            name, first = share
            record = Path(folder) / f"{name}{first}.json"
            seeds = [str(first), str(PARTS[name][1] if size is None else size), str(processes)]
            command = [sys.executable, "-m", "tests.conformance.cuda", "--child", name, "--record", str(record), "--seeds", *seeds]
            done = subprocess.run([*command, *(["--gpu"] if on_gpu else [])], check=False)
            if done.returncode:
                return Part(name, "", refused=[f"{name}: the process ended with {done.returncode}"])
            return msgspec.json.decode(record.read_bytes(), type=Part)

        begun = {name: [pool.submit(execute, share) for share in parts] for name, parts in shares.items()}
        for executed in begun.values():
            part = executed[0].result()
            for other in executed[1:]:
                part.merge(other.result())
            yield part


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.cuda", description=__doc__)
    parser.add_argument("--parts", nargs="*", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--size", type=int, help="cases, programs or rounds of a part")
    parser.add_argument("--processes", type=int, default=1, help="which share the cases of a part")
    parser.add_argument("--gpu", action="store_true", help="on the GPU of this machine, through CuPy")
    parser.add_argument("--faults", action="store_true", help="then plant every known fault into the emitter and see that tests fail")
    parser.add_argument("--publish", action="store_true", help="write docs/cuda-roundtrip.md, or docs/cuda-gpu.md")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--record", help=argparse.SUPPRESS)
    parser.add_argument("--seeds", nargs=3, type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        made = PARTS[options.child][0](range(*options.seeds), on_gpu=options.gpu)
        Path(options.record).write_bytes(msgspec.json.encode(made))
        return 0
    parts = []
    for part in _in_processes(options.parts, options.size, options.processes, on_gpu=options.gpu):
        parts.append(part)
        tally = part.tally
        counts = f"{len(tally.kernels)} kernels, {tally.launches} launches, {tally.equal} equal, {len(tally.near)} near"
        print(f"{part.name}: {counts}", flush=True)
        print(*(f"    {text}" for text in (*part.refused, *part.wrong)), sep="\n", flush=True)
    found: list[Caught] = []
    for fault in FAULTS if options.faults else ():
        found.append(caught(fault))
        print(f"{'caught' if found[-1].test else 'NOT CAUGHT'}: {fault.file}: {fault.what}  {found[-1].test}", flush=True)
    if options.publish:
        if options.gpu:
            (_DOCS / "cuda-gpu.md").write_text(page(parts, found, gpu_name()))
        else:
            (_DOCS / "cuda-roundtrip.md").write_text(page(parts, found))
    return 1 if any(part.refused or part.wrong for part in parts) or not all(f.test for f in found) else 0


if __name__ == "__main__":
    sys.exit(main())
