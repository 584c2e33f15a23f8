"""Measures the executor's own work beside its launches: CPU time a batch of steady scripts, in one process, without a bus.

    python -m benchmarks.executor FOLDER [--batches N] [--profile] [--against TREE]

FOLDER holds recordings of benchmarks.sla (``python -m benchmarks.sla.record KIND FILE`` makes one). ``--against``: another checkout of this
repository; the two are measured in turns, each round in processes of its own, and the ratio of their medians is printed.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from benchmarks.sla.recording import Endless, load
from bus_schemas.batch import LIMITS, decode_done
from bus_schemas.frames import Frames, frame
from bus_schemas.terms import TaskTerms
from jit.backends import create_engine
from services.server.executor.content import Content
from services.server.executor.data_port import DataPort, listen
from services.server.executor.loop import Commands, Executor
from services.server.executor.memory import DeviceMemory
from services.server.executor.staging import Staging
from services.server.protocol import Confirm, Execute, Executed, OpenSpace, decode_command, decode_report
from services.server.settings import MemorySettings
from wooly.link import Flush
from wooly.transport.batches import BatchEncoder

__all__ = ["main"]

_ROUNDS: Final = 7
_WARM: Final = 200


class _Sink:
    """Stands where the server's socket is: takes reports, as cheaply as a kernel buffer would."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def sendall(self, data: bytes) -> None:
        self.sent.append(data)


class _Native:
    """CPU time of the thread inside the walker's native code."""

    def __init__(self, walker: Any) -> None:
        self.cpu_ns = 0
        self._walk = walker.walk
        walker.walk = self

    def __call__(self, *args: Any) -> Any:
        before_ns = time.thread_time_ns()
        at = self._walk(*args)
        self.cpu_ns += time.thread_time_ns() - before_ns
        return at


def _executor(folder: Path) -> Executor:
    engine = create_engine("host", cache_dir=folder / "cache", threads=1, vram_bytes=1 << 31, fuel=None, device=0)
    staging = Staging()
    content = Content(staging)
    port = DataPort(staging, content, listen(folder / "d", "127.0.0.1", 0), "127.0.0.1")
    memory = DeviceMemory(engine, content, MemorySettings(swap_disk_bytes=0))
    commands = Commands.open(folder / "x")
    return Executor(engine=engine, commands=commands, data_port=port, staging=staging, content=content, memory=memory, orphan_s=1.0)


def play(path: Path, batches: int, profile: bool = False) -> dict[str, float]:
    """Microseconds a batch, medians: ``beside`` (as the node's facts have it: taken up to answered, without the launch), ``cpu`` (CPU time
    of the thread but in native phases: what a busy machine distorts least), ``launch``."""
    recording = load(path)
    script = Endless(recording)
    encoder = BatchEncoder("s", 1, LIMITS.batch_bytes_max)
    with tempfile.TemporaryDirectory() as name:
        executor: Any = _executor(Path(name))
        executor._server = sink = _Sink()
        executor._carry_out(OpenSpace("s", "t", b"", TaskTerms(tenant="bench", priority=0)))
        native = _Native(executor._engine.walker)
        frames, seq, step = Frames(), 0, 0
        profiler = cProfile.Profile()
        out: dict[str, list[float]] = {"beside": [], "cpu": [], "launch": []}
        taken = 0
        pending = list(recording.setup)
        while taken < batches:
            if not pending:
                pending, step = list(script.step(step)), step + 1
            sent = pending.pop(0)
            seq += 1
            flush: Flush = recording.flush(sent)
            data = encoder.encode(seq, flush, (), "") if not flush.uploads else _with_uploads(encoder, seq, flush)
            body = frames.feed(frame(Execute("s", seq, b"c" * 32, _plain(data), seq, 3, 0)))[0]
            counts = seq > _WARM
            if counts and profile:
                profiler.enable()
            native.cpu_ns, cpu_ns, executor._begin_ns = 0, time.thread_time_ns(), time.monotonic_ns()
            executor._carry_out(decode_command(body))
            executor._memory_news(False)
            cpu_ns = time.thread_time_ns() - cpu_ns - native.cpu_ns
            if counts and profile:
                profiler.disable()
            said = [decode_report(body) for part in sink.sent for body in Frames().feed(part)]
            (report,) = [one for one in said if isinstance(one, Executed)]
            sink.sent.clear()
            done = decode_done(report.done)
            if done.needs or done.fault is not None:
                raise RuntimeError(f"batch {seq}: {done.fault or 'bodies are missing'}")
            executor._carry_out(Confirm(report.index))
            if counts:
                taken += 1
                launch_ns = report.end_ns - report.start_ns
                out["launch"].append(launch_ns / 1e3)
                out["beside"].append((report.finish_ns - report.begin_ns - launch_ns) / 1e3)
                out["cpu"].append(cpu_ns / 1e3)
        if profile:
            pstats.Stats(profiler).sort_stats("cumtime").print_stats(60)
        executor._memory.shut()
    return {what: statistics.median(values) for what, values in out.items()}


def _plain(data: bytes) -> bytes:
    """As the server hands it on: inflated."""
    from bus_schemas.batch import LIMITS, unpack_message

    return unpack_message(data, LIMITS.batch_bytes_max)


def _with_uploads(encoder: BatchEncoder, seq: int, flush: Flush) -> bytes:
    from bus_schemas.batch import Upload

    uploads = tuple(Upload(handle, len(data), inline=bytes(data)) for handle, data in flush.uploads)
    return encoder.encode(seq, flush, uploads, "")


def _in(tree: Path, folder: Path, kind: str, batches: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.executor", str(folder), "--one", kind, "--batches", str(batches)]
    result = subprocess.run(command, cwd=tree, env={"PYTHONPATH": str(tree), "PATH": "/usr/bin:/bin", "HOME": str(Path.home())},
                            capture_output=True, text=True, check=True)  # fmt: skip
    found: dict[str, float] = json.loads(result.stdout.splitlines()[-1])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.executor", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--batches", type=int, default=5_000)
    parser.add_argument("--one", default="")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--against", type=Path)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(play(options.folder / options.one, options.batches, options.profile)))
        return 0
    here = Path(__file__).resolve().parents[1]
    for kind in sorted(path.name for path in options.folder.iterdir()):
        trees = [here] if options.against is None else [here, options.against.resolve()]
        rounds: list[list[dict[str, float]]] = [
            [_in(tree, options.folder, kind, options.batches) for tree in trees] for _ in range(_ROUNDS)
        ]
        for what in ("beside", "cpu", "launch"):
            medians = [statistics.median(one[at][what] for one in rounds) for at in range(len(trees))]
            ratio = f", {medians[0] / medians[1]:.2f} of the other's {medians[1]:.1f}" if len(medians) > 1 else ""
            print(f"{kind} {what}: {medians[0]:.1f} us a batch{ratio}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
