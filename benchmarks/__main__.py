"""Run the benchmarks: two processes a workload, local torch and ours, in turn; medians and their ratio.

With ``--backend cuda`` the GPU of this machine executes both, local torch's work and ours; results go to docs/benchmarks-cuda.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks import rgpu
from benchmarks.ops import OPS
from benchmarks.workloads import LARGE, WORKLOADS
from tests.support.kernel_devices import gpu_name
from tests.support.stack import ROOT, EmbeddedStack, plain_environment

_ROUNDS: Final = 7
BARS: Final = {"mlp": 2.5, "digits_cnn": 1.1, "gpt_train": 1.2, "llama_decode": 3.5}
"""Highest accepted ratio ours / local torch of a step."""
OP_BAR_US: Final = 10.0


class Worker:
    """A benchmark process that waits for its turn. It is started without waiting until it is ready: its first round does that."""

    def __init__(self, name: str, device: str, environment: dict[str, str], module: str = "benchmarks.worker", root: Path = ROOT) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, name, device],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=root,
            env=environment,
        )
        self._ready = False

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"a benchmark process ended with code {self.process.wait(10)}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def round(self) -> dict[str, Any]:
        assert self.process.stdin is not None
        if not self._ready:
            self._read()
            self._ready = True
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return self._read()

    def close(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(30)
        self.process.stdout.close()


@contextmanager
def worker(name: str, device: str, environment: dict[str, str], module: str = "benchmarks.worker", root: Path = ROOT) -> Iterator[Worker]:
    one = Worker(name, device, environment, module, root)
    try:
        yield one
    finally:
        one.close()


_LOCAL: Final = {"host": "cpu", "cuda": "cuda"}
"""By back end: the device of local torch beside it."""


def environments(stack: EmbeddedStack) -> tuple[dict[str, str], dict[str, str]]:
    """(local torch with all cores, ours)."""
    cores = str(os.cpu_count() or 1)
    return plain_environment(OMP_NUM_THREADS=cores), stack.client_environment(OMP_NUM_THREADS="1")


PLACES: Final = {"client": "", "bus": "nats-server", "server": "services.server ", "executor": "services.server.executor"}
"""The processes that a step passes, with a part of their command line; the client is a benchmark process."""


def processes_of(stack: int, client: int) -> dict[str, list[psutil.Process]]:
    """By place, of the stack's process and the client's."""
    below = [(process, " ".join(process.cmdline()) + " ") for process in psutil.Process(stack).children(recursive=True)]
    found = {place: [process for process, line in below if part in line] for place, part in PLACES.items() if part}
    return found | {"client": [psutil.Process(client)]}


def cpu_s(processes: dict[str, list[psutil.Process]]) -> dict[str, float]:
    """Processor time so far, in seconds."""
    return {place: sum(sum(process.cpu_times()[:2]) for process in several) for place, several in processes.items()}


def compare_steps(name: str, stack: EmbeddedStack, backend: str = "host") -> dict[str, Any]:
    local_env, our_env = environments(stack)
    used: dict[str, list[float]] = {place: [] for place in PLACES}
    with worker(name, _LOCAL[backend], local_env) as local, worker(name, "cuda", our_env) as ours:
        local.round(), ours.round()
        processes = processes_of(stack.process.pid, ours.process.pid)
        pairs = []
        for _ in range(_ROUNDS):
            here, before = local.round(), cpu_s(processes)
            there, after = ours.round(), cpu_s(processes)
            pairs.append((here, there))
            for place in PLACES:
                used[place].append((after[place] - before[place]) * 1e3 / (WORKLOADS | LARGE)[name][1])
    ratios = [b["ms"] / a["ms"] for a, b in pairs]
    return {
        "local_ms": statistics.median(a["ms"] for a, _ in pairs),
        "ours_ms": statistics.median(b["ms"] for _, b in pairs),
        "issue_ms": statistics.median(b["issue_ms"] for _, b in pairs),
        "ratio": statistics.median(ratios),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
        "counts": pairs[-1][1]["counts"],
        "cpu_ms": {place: statistics.mean(found) for place, found in used.items()},
        "bar": BARS.get(name) if backend == "host" else None,
    }


def compare_ops(stack: EmbeddedStack) -> dict[str, dict[str, float]]:
    """Microseconds a call of every operation: local, ours, and rgpu where it is installed."""
    local_env, our_env = environments(stack)
    table = {}
    with ExitStack() as peers:
        rival = peers.enter_context(rgpu.server()) if rgpu.installed() else None
        for name in OPS:
            with worker(name, "cpu", local_env) as local, worker(name, "cuda", our_env) as ours:
                rounds = [(local.round()["us"], ours.round()["us"]) for _ in range(3)]
            row = {"local_us": min(r[0] for r in rounds), "ours_us": min(r[1] for r in rounds)}
            if rival is not None:
                with worker(name, "rgpu", rival, "benchmarks.rgpu") as other:
                    row["rgpu_us"] = min(other.round()["us"] for _ in range(3))
            table[name] = row
    return table


def rgpu_mlp_ms() -> float | None:
    """The MLP step on rgpu, its server on the same cores; None where it is not installed."""
    if not rgpu.installed():
        return None
    with rgpu.server() as environment, worker("mlp", "rgpu", environment, "benchmarks.rgpu") as other:
        other.round()
        return statistics.median(other.round()["ms"] for _ in range(3))


def report(steps: dict[str, dict[str, Any]], ops: dict[str, dict[str, float]], mlp_ms: float | None, gpu: str = "") -> str:
    """The results as Markdown. ``gpu``: on which both sides computed; empty: on this machine's cores."""
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, torch {version('torch')}"
    lines = [
        f"# Benchmarks{' on a GPU' if gpu else ''}",
        "",
        f"Written by `make {'bench-cuda' if gpu else 'bench'}` on {machine}{f', {gpu}' if gpu else ''}.",
        f"Two processes take turns, {_ROUNDS} rounds; the ratio is the median of the rounds' ratios (ours / local torch"
        f"{', on the same GPU' if gpu else ' on all cores'}).",
        "Client, bus and node share these cores.",
        "",
        "| training or decode step | local ms | ours ms | ratio | range | bar | waits | batches | wire bytes | ops | fallbacks |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, r in steps.items():
        c = r["counts"]
        counts = f"{c['waits']:.2f} | {c['batches']:.2f} | {c['wire_bytes']:.0f} | {c['ops']:.0f} | {c['fallbacks']:.2f}"
        span = f"{r['ratio_min']:.2f}-{r['ratio_max']:.2f}"
        bar = r["bar"] or "-"
        lines.append(f"| {name} | {r['local_ms']:.2f} | {r['ours_ms']:.2f} | **{r['ratio']:.2f}** | {span} | {bar} | {counts} |")
    lines += ["", "Processor time of one step by process, in ms, means of the same rounds (resolution 10 ms a round):", ""]
    lines += [f"| step | {' | '.join(PLACES)} |", f"|---|{'---|' * len(PLACES)}"]
    lines += [f"| {name} | {' | '.join(f'{ms:.2f}' for ms in r['cpu_ms'].values())} |" for name, r in steps.items()]
    if mlp_ms is not None:
        lines += ["", f"The mlp step on rgpu 0.1.1 in the same run: {mlp_ms:.2f} ms."]
    if ops:
        lines += ["", f"Cost of issuing one operation, microseconds (bar: {OP_BAR_US:g}), flushing included:", ""]
        lines += ["| operation | local torch | ours | rgpu 0.1.1 |", "|---|---|---|---|"]
    for name, row in ops.items():
        rival = f"{row['rgpu_us']:.1f}" if "rgpu_us" in row else "-"
        lines.append(f"| {name} | {row['local_us']:.2f} | {row['ours_us']:.2f} | {rival} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join([*WORKLOADS, *LARGE, 'ops'])}; none: all")
    parser.add_argument("--backend", default="host", choices=list(_LOCAL))
    options = parser.parse_args()
    everything = [*WORKLOADS, *LARGE] if options.backend == "cuda" else [*WORKLOADS, "ops"]
    names = options.names or everything
    memory_mb = "32768" if options.backend == "cuda" else "8192"
    with EmbeddedStack(None, "--backend", options.backend, WOOLY_DEVICE_VRAM_MB=memory_mb) as stack:
        steps = {}
        for name in (name for name in names if name != "ops"):
            try:
                steps[name] = compare_steps(name, stack, options.backend)
                print(f"{name}: {steps[name]['ratio']:.2f}", file=sys.stderr, flush=True)
            except RuntimeError as error:  # the others are worth having
                print(f"{name}: {error}", file=sys.stderr)
        ops = compare_ops(stack) if "ops" in names else {}
    text = report(steps, ops, rgpu_mlp_ms() if "ops" in names else None, gpu_name() if options.backend == "cuda" else "")
    print(text)
    if names == everything and len(steps) == len([name for name in names if name != "ops"]):
        (Path(ROOT) / "docs" / ("benchmarks.md" if options.backend == "host" else "benchmarks-cuda.md")).write_text(text)


if __name__ == "__main__":
    main()
